// The media that Links use. One table (media_table.cpp) serves client, server, connections between
// workers, tools and tests. It holds each medium's name and traits, the functions that check
// whether the medium can be used here, and the function that makes a Link. docs/architecture.md
// says how to add a medium. Any thread may call.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/transport/link.h"
#include "common/transport/traits.h"

namespace rcuda::transport {

struct Medium {
  MediumTraits traits;
  // Whether make() can work on this side of a control socket; an error with the reason if not.
  // Null: make() always can. May block while a library is loaded.
  Status (*usable_over)(int control_socket) = nullptr;
  // Called only if the user did not choose the medium. Returns whether this host is fit for the
  // medium; kUnsupported with the reason if not. Null: every host is fit. Loads no library.
  Status (*fit_host)() = nullptr;
  Result<std::unique_ptr<Link>> (*make)(Bootstrap bootstrap, const LinkOptions& options) = nullptr;

  const char* name() const { return traits.name; }
  Status usable(int control_socket) const {
    return usable_over ? usable_over(control_socket) : Status();
  }
  // Whether to choose the medium for this socket by default; an error with the reason if not.
  // `encrypts_because` says why everything must be encrypted; empty: encryption is not required.
  Status suits(int control_socket, const std::string& encrypts_because) const;
};

// Returns all media. Of the media of one reach, the first needs only a socket (usable_over is
// null), and a later medium is preferred if it suits.
std::span<const Medium> media();

// Returns null if no medium has that name.
const Medium* find_medium(std::string_view name);
// Returns the first medium of that reach, which works with every socket.
const Medium& plain_medium(Reach reach);
// The result of best_medium(), which chooses the last suitable medium of a reach.
struct Choice {
  const Medium* medium = nullptr;  // never null
  std::string why;                 // why better media do not suit; empty: `medium` is the best
};
Choice best_medium(Reach reach, int control_socket, const std::string& encrypts_because);
// Returns the names of the media for messages: "shm, tcp or verbs". With `reach`, only the media of
// that reach.
std::string medium_names(std::optional<Reach> reach = {});

// Makes one end of a Link; see Bootstrap. Code outside of the media's folders makes Links only with
// this function.
Result<std::unique_ptr<Link>> make_link(const Medium& medium, Bootstrap bootstrap,
                                        const LinkOptions& options);

}  // namespace rcuda::transport

// The media that Links go over. One table (media_table.cpp) serves the client, the server, workers
// that call on one another, tools and tests: what a medium is called, what it can do, whether it
// can be used here, and how a Link over it is made. docs/architecture.md says how to add one.
// Any thread.
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
  // Whether make() has a chance on this side of a control socket; kUnsupported with the reason
  // where it has none. Null: it always has. May block for as long as loading a library takes.
  Status (*usable_over)(int control_socket) = nullptr;
  Result<std::unique_ptr<Link>> (*make)(Bootstrap bootstrap, const LinkOptions& options) = nullptr;

  const char* name() const { return traits.name; }
  Status usable(int control_socket) const {
    return usable_over ? usable_over(control_socket) : Status();
  }
};

// All media. Of those with the same reach the first needs nothing but a socket (usable_over is
// null), and a later one is preferred by whoever may use any that is usable.
std::span<const Medium> media();

// Null where there is none of that name.
const Medium* find_medium(std::string_view name);
// The first of that reach; it can be used wherever a socket can be had.
const Medium& plain_medium(Reach reach);
// The last one that is usable over this socket and has that reach.
const Medium& best_medium(Reach reach, int control_socket);
// "shm, tcp or verbs", for messages; of one reach only, if it is given.
std::string medium_names(std::optional<Reach> reach = {});

// Makes one end of a Link; see Bootstrap. The only way to one outside of the media's own folders.
Result<std::unique_ptr<Link>> make_link(const Medium& medium, Bootstrap bootstrap,
                                        const LinkOptions& options);

}  // namespace rcuda::transport

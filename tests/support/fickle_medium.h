// A medium that exists only in tests. Like verbs, it is preferred to TCP, needs more than a socket,
// moves data in the clear, and may fail. RCUDA_TEST_FICKLE sets its behaviour in a process:
//
//   not set    the host does not support the medium
//   unusable   the medium cannot be used over the socket
//   fails      this side makes no Link, and reports that to the peer
//   silent     this side makes no Link, and reports that only at the end of its timeout
//   dies       the process ends when it should make a Link
//   works      the medium is TCP under another name, with the delays of fault_link.h
#pragma once

#include "common/transport/media.h"
#include "tests/support/late_media.h"

namespace rcuda::test {

Status fickle_host();
Status fickle_over(int control_socket);
Result<std::unique_ptr<transport::Link>> make_fickle(transport::Bootstrap bootstrap,
                                                     const transport::LinkOptions& options);

inline constexpr transport::MediumTraits kFickleTraits = [] {
  transport::MediumTraits traits = named(transport::tcp::kTraits, "fickle");
  traits.moves_in_clear = true;
  return traits;
}();
inline constexpr transport::Medium kFickle{.traits = kFickleTraits,
                                           .usable_over = fickle_over,
                                           .fit_host = fickle_host,
                                           .make = make_fickle};

}  // namespace rcuda::test

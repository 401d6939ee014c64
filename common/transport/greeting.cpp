#include "common/transport/greeting.h"

#include <algorithm>
#include <string>

#include "common/transport/link_core.h"

namespace rcuda::transport {

Greeting make_greeting(uint64_t magic, const LinkOptions& options, size_t most_streams,
                       size_t usual_streams) {
  const bool are_set = options.bulk_streams != 0;
  const size_t wanted =
      are_set ? static_cast<size_t>(std::max(options.bulk_streams, 1)) : usual_streams;
  return {magic,
          options.window_bytes,
          static_cast<uint32_t>(options.peer_timeout.count()),
          static_cast<uint8_t>(std::clamp<size_t>(wanted, 1, most_streams)),
          are_set,
          static_cast<uint16_t>(
              std::clamp<size_t>(options.retained_bytes / kRetainedBlock, 1, UINT16_MAX))};
}

Status check_greeting(const Greeting& peer, uint64_t magic, const char* protocol) {
  if (peer.magic != magic || peer.streams == 0) {
    return {Code::kProtocol, std::string("the peer's greeting does not fit this build's ") +
                                 protocol + " protocol (streams: " + std::to_string(peer.streams) +
                                 "): install the same build of rcuda on both hosts"};
  }
  return check_window_bytes(peer.window_bytes, "the peer's");
}

}  // namespace rcuda::transport

#include "common/transport/greeting.h"

#include <algorithm>
#include <string>

#include "common/transport/link_core.h"

namespace rcuda::transport {

Greeting make_greeting(uint64_t magic, const LinkOptions& options, size_t most_streams) {
  const int streams = std::clamp(options.bulk_streams, 1, static_cast<int>(most_streams));
  return {magic, options.window_bytes, static_cast<uint32_t>(options.peer_timeout.count()),
          static_cast<uint32_t>(streams)};
}

Status check_greeting(const Greeting& peer, uint64_t magic, const char* protocol) {
  if (peer.magic != magic || peer.streams == 0) {
    return {Code::kProtocol, std::string("the peer does not speak this ") + protocol + " protocol"};
  }
  return check_window_bytes(peer.window_bytes, "the peer's");
}

}  // namespace rcuda::transport

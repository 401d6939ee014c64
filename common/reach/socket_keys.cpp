#include "common/reach/socket_keys.h"

#include <algorithm>

#include "common/tls/keyed.h"

namespace rcuda::wire {

std::string attach_label(uint32_t index) { return "rcuda attach " + std::to_string(index); }

std::string socket_label(uint32_t index) { return "rcuda socket " + std::to_string(index); }

std::string peer_socket_label(uint32_t link, uint32_t stream) {
  return "rcuda peer " + std::to_string(link) + " " + std::to_string(stream);
}

AttachToken attach_token(const uint8_t (&token)[16], uint32_t index) {
  tls::Key secret{};
  std::copy(std::begin(token), std::end(token), secret.begin());
  const tls::Key derived = tls::derive(secret, attach_label(index).c_str());
  AttachToken result;
  std::copy_n(derived.begin(), result.size(), result.begin());
  return result;
}

tls::Key socket_key(const tls::Key& key, uint32_t index) {
  return tls::derive(key, socket_label(index).c_str());
}

tls::Key peer_socket_key(const tls::Key& secret, uint32_t link, uint32_t stream) {
  return tls::derive(secret, peer_socket_label(link, stream).c_str());
}

}  // namespace rcuda::wire

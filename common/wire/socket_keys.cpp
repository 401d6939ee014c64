#include "common/wire/socket_keys.h"

#include <algorithm>
#include <string>

#include "common/tls/keyed.h"

namespace rcuda::wire {

AttachToken attach_token(const uint8_t (&token)[16], uint32_t index) {
  tls::Key secret{};
  std::copy(std::begin(token), std::end(token), secret.begin());
  const tls::Key derived = tls::derive(secret, ("rcuda attach " + std::to_string(index)).c_str());
  AttachToken result;
  std::copy_n(derived.begin(), result.size(), result.begin());
  return result;
}

tls::Key socket_key(const tls::Key& key, uint32_t index) {
  return tls::derive(key, ("rcuda socket " + std::to_string(index)).c_str());
}

tls::Key peer_socket_key(const tls::Key& secret, uint32_t link, uint32_t stream) {
  const std::string label = "rcuda peer " + std::to_string(link) + " " + std::to_string(stream);
  return tls::derive(secret, label.c_str());
}

}  // namespace rcuda::wire

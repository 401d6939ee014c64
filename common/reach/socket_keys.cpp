#include "common/reach/socket_keys.h"

#include <algorithm>

#include "common/tls/keyed.h"

namespace rcuda::wire {

std::string attach_label(uint32_t index, uint32_t attempt) {
  return "rcuda attach " + std::to_string(index) + " " + std::to_string(attempt);
}

std::string socket_label(uint32_t index, uint32_t attempt) {
  return "rcuda socket " + std::to_string(index) + " " + std::to_string(attempt);
}

std::string peer_attach_label(uint32_t link, uint32_t stream, uint32_t attempt) {
  return "rcuda peer attach " + std::to_string(link) + " " + std::to_string(stream) + " " +
         std::to_string(attempt);
}

std::string peer_socket_label(uint32_t link, uint32_t stream, uint32_t attempt) {
  return "rcuda peer " + std::to_string(link) + " " + std::to_string(stream) + " " +
         std::to_string(attempt);
}

namespace {

tls::Key derived_from(const uint8_t (&token)[16], const std::string& label) {
  tls::Key secret{};
  std::copy(std::begin(token), std::end(token), secret.begin());
  return tls::derive(secret, label.c_str());
}

}  // namespace

AttachName attach_name(const uint8_t (&token)[16]) {
  const tls::Key derived = derived_from(token, kAttachNameLabel);
  AttachName result;
  std::copy_n(derived.begin(), result.size(), result.begin());
  return result;
}

AttachToken attach_token(const uint8_t (&token)[16], uint32_t index, uint32_t attempt) {
  const tls::Key derived = derived_from(token, attach_label(index, attempt));
  AttachToken result;
  std::copy_n(derived.begin(), result.size(), result.begin());
  return result;
}

tls::Key socket_key(const tls::Key& key, uint32_t index, uint32_t attempt) {
  return tls::derive(key, socket_label(index, attempt).c_str());
}

tls::Key peer_socket_key(const tls::Key& secret, uint32_t link, uint32_t stream, uint32_t attempt) {
  return tls::derive(secret, peer_socket_label(link, stream, attempt).c_str());
}

AttachToken peer_attach_token(const tls::Key& secret, uint32_t link, uint32_t stream,
                              uint32_t attempt) {
  const tls::Key derived = tls::derive(secret, peer_attach_label(link, stream, attempt).c_str());
  AttachToken result;
  std::copy_n(derived.begin(), result.size(), result.begin());
  return result;
}

}  // namespace rcuda::wire

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

tls::Key key_of(const uint8_t (&secret)[16]) {
  tls::Key key{};
  std::copy(std::begin(secret), std::end(secret), key.begin());
  return key;
}

// Returns the first bytes of the key that `label` derives from `key`, as many as `Bytes` holds.
template <typename Bytes>
Bytes derive(const tls::Key& key, const std::string& label) {
  const tls::Key derived = tls::derive(key, label);
  Bytes result;
  std::copy_n(derived.begin(), result.size(), result.begin());
  return result;
}

}  // namespace

void session_name(const uint8_t (&session)[16], uint8_t (&name)[16]) {
  std::ranges::copy(derive<AttachToken>(key_of(session), "rcuda session name"), name);
}

AttachName attach_name(const uint8_t (&token)[16]) {
  return derive<AttachName>(key_of(token), kAttachNameLabel);
}

AttachToken attach_token(const uint8_t (&token)[16], uint32_t index, uint32_t attempt) {
  return derive<AttachToken>(key_of(token), attach_label(index, attempt));
}

tls::Key socket_key(const tls::Key& key, uint32_t index, uint32_t attempt) {
  return tls::derive(key, socket_label(index, attempt));
}

tls::Key peer_socket_key(const tls::Key& secret, uint32_t link, uint32_t stream, uint32_t attempt) {
  return tls::derive(secret, peer_socket_label(link, stream, attempt));
}

AttachToken peer_attach_token(const tls::Key& secret, uint32_t link, uint32_t stream,
                              uint32_t attempt) {
  return derive<AttachToken>(secret, peer_attach_label(link, stream, attempt));
}

}  // namespace rcuda::wire

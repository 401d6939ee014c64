#include "server/worker/worker_messages.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace rcuda::server {
namespace {

struct Packet {
  WorkerMessageType type;
  uint32_t index;
  uint8_t token[16];
};
static_assert(sizeof(Packet) == 24);

}  // namespace

Status send_worker_message(int socket, const WorkerMessage& message, Deadline deadline) {
  Packet packet{message.type, message.index, {}};
  std::memcpy(packet.token, message.token, sizeof packet.token);
  std::vector<std::byte> bytes(sizeof packet + message.body.size());
  std::memcpy(bytes.data(), &packet, sizeof packet);
  std::copy(message.body.begin(), message.body.end(), bytes.begin() + sizeof packet);
  const int descriptor = message.socket.get();
  return send_with_fds(socket, bytes, {&descriptor, message.socket ? 1u : 0u}, deadline)
      .with_context("writing to the other process");
}

Result<WorkerMessage> receive_worker_message(int socket) {
  // One byte more than the longest packet: a packet that fills the buffer was too long.
  std::vector<std::byte> buffer(kMaxWorkerMessageBytes + 1);
  std::vector<UniqueFd> descriptors;
  Result<size_t> got = recv_packet_with_fds(socket, buffer, descriptors, Deadline::max());
  if (!got.ok()) return Status(got.status()).with_context("reading from the other process");
  WorkerMessage message;
  if (!descriptors.empty()) message.socket = std::move(descriptors.back());
  Packet packet;
  if (*got < sizeof packet || *got == buffer.size()) {
    return Status(Code::kProtocol, "a packet between daemon and worker was cut short");
  }
  std::memcpy(&packet, buffer.data(), sizeof packet);
  message.type = packet.type;
  message.index = packet.index;
  std::memcpy(message.token, packet.token, sizeof packet.token);
  message.body.assign(buffer.begin() + sizeof packet,
                      buffer.begin() + static_cast<ptrdiff_t>(*got));
  return message;
}

std::vector<uint32_t> WorkerReady::ordinals() const {
  std::vector<uint32_t> all;
  for (const wire::ServerStatus::Device& device : devices) all.push_back(device.ordinal);
  return all;
}

// A ServerStatus without sessions contains exactly these values.
std::vector<std::byte> encode(const WorkerReady& ready) {
  wire::ServerStatus status;
  status.driver = ready.driver;
  status.devices = ready.devices;
  return wire::encode(status);
}

Result<WorkerReady> decode_worker_ready(const std::vector<std::byte>& body) {
  Result<wire::ServerStatus> status = wire::decode_status(body);
  if (!status.ok()) return status.status();
  return WorkerReady{std::move(status->driver), std::move(status->devices)};
}

}  // namespace rcuda::server

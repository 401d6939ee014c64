#include "server/protocol/worker_messages.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <sys/socket.h>

#include "common/messages/message_codec.h"
#include "common/messages/work_codec.h"

namespace rcuda::server {
namespace {

struct Packet {
  WorkerMessageType type;
  uint32_t index;
  uint8_t token[16];
  uint32_t peeked;
};
static_assert(sizeof(Packet) == 28);

constexpr size_t kMostOutcomeBytes = 1024;

// They have arrived, so nothing blocks. If they are gone, the other end notices.
void take_peeked(int socket, size_t bytes) {
  std::byte taken[4096];
  while (bytes > 0) {
    const ssize_t got = ::recv(socket, taken, std::min(bytes, sizeof taken), MSG_DONTWAIT);
    if (got <= 0) return;
    bytes -= static_cast<size_t>(got);
  }
}

}  // namespace

Status send_worker_message(int socket, const WorkerMessage& message, Deadline deadline) {
  Packet packet{message.type, message.index, {}, message.peeked};
  std::memcpy(packet.token, message.token, sizeof packet.token);
  std::vector<std::byte> bytes(sizeof packet + message.body.size());
  std::memcpy(bytes.data(), &packet, sizeof packet);
  std::copy(message.body.begin(), message.body.end(), bytes.begin() + sizeof packet);
  const int descriptor = message.descriptor.get();
  return send_with_fds(socket, bytes, {&descriptor, message.descriptor ? 1u : 0u}, deadline)
      .with_context("writing to the other process");
}

Result<WorkerMessage> receive_worker_message(int socket) {
  // One byte more than the longest packet: a packet that fills the buffer was too long.
  std::vector<std::byte> buffer(kMaxWorkerMessageBytes + 1);
  std::vector<UniqueFd> descriptors;
  Result<size_t> got = recv_packet_with_fds(socket, buffer, descriptors, Deadline::max());
  if (!got.ok()) return Status(got.status()).with_context("reading from the other process");
  WorkerMessage message;
  if (!descriptors.empty()) message.descriptor = std::move(descriptors.back());
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
  take_peeked(message.descriptor.get(), packet.peeked);
  return message;
}

template <typename Visitor>
void fields(Visitor& visit, SessionTotals& m) {
  visit.object("work", m.work);
  visit.string("outcome", m.outcome);
  if constexpr (Visitor::kReads) m.outcome.resize(std::min(m.outcome.size(), kMostOutcomeBytes));
}

std::vector<uint32_t> WorkerReady::ordinals() const {
  std::vector<uint32_t> all;
  for (const wire::ServerStatus::Device& device : devices) all.push_back(device.ordinal);
  return all;
}

template <typename Visitor>
void fields(Visitor& visit, WorkerReady::Identity& m) {
  visit.string("uuid", m.uuid);
  visit.string("pci_bus_id", m.pci_bus_id);
}

template <typename Visitor>
void fields(Visitor& visit, WorkerReady& m) {
  visit.string("driver", m.driver);
  visit.string("warning", m.warning);
  visit.string("driver_path", m.driver_path);
  visit.number("driver_version", m.driver_version);
  visit.list("devices", m.devices, wire::kMaxDevices);
  visit.list("identities", m.identities, wire::kMaxDevices);
  visit.check(m.devices.size() == m.identities.size());
}

}  // namespace rcuda::server

template struct rcuda::wire::Codec<rcuda::server::SessionTotals>;
template struct rcuda::wire::Codec<rcuda::server::WorkerReady>;

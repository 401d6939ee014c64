#include "server/worker/worker_messages.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <sys/socket.h>

#include "common/wire/codec.h"

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

std::vector<std::byte> encode(const SessionTotals& totals) {
  wire::Encoder out(kMaxWorkerMessageBytes);
  for (const uint64_t count : totals.work.counts) out.value(count);
  out.string(totals.outcome.substr(0, kMostOutcomeBytes).c_str());
  return {out.body().begin(), out.body().end()};
}

Result<SessionTotals> decode_session_totals(const std::vector<std::byte>& body) {
  wire::Decoder in(body);
  SessionTotals totals;
  for (uint64_t& count : totals.work.counts) count = in.value<uint64_t>();
  const char* const outcome = in.string();
  if (!in.complete() || !outcome) {
    return Status(Code::kProtocol, "what a worker says of its session is malformed");
  }
  totals.outcome = std::string(outcome).substr(0, kMostOutcomeBytes);
  return totals;
}

std::vector<uint32_t> WorkerReady::ordinals() const {
  std::vector<uint32_t> all;
  for (const wire::ServerStatus::Device& device : devices) all.push_back(device.ordinal);
  return all;
}

std::vector<std::byte> encode(const WorkerReady& ready) {
  wire::Encoder out(kMaxWorkerMessageBytes);
  out.string(ready.driver.c_str());
  out.string(ready.warning.c_str());
  out.string(ready.driver_path.c_str());
  out.value(ready.driver_version);
  out.value(static_cast<uint32_t>(ready.devices.size()));
  for (size_t i = 0; i < ready.devices.size(); ++i) {
    const bool identified = i < ready.identities.size();
    out.value(ready.devices[i].ordinal);
    out.value(ready.devices[i].total_bytes);
    out.string(ready.devices[i].name.c_str());
    out.string(identified ? ready.identities[i].uuid.c_str() : "");
    out.string(identified ? ready.identities[i].pci_bus_id.c_str() : "");
  }
  return {out.body().begin(), out.body().end()};
}

Result<WorkerReady> decode_worker_ready(const std::vector<std::byte>& body) {
  wire::Decoder in(body);
  WorkerReady ready;
  const auto text = [&in] {
    const char* found = in.string();
    return std::string(found ? found : "");
  };
  ready.driver = text();
  ready.warning = text();
  ready.driver_path = text();
  ready.driver_version = in.value<uint32_t>();
  const auto count = in.value<uint32_t>();
  for (uint32_t i = 0; in.ok() && i < count; ++i) {
    wire::ServerStatus::Device device;
    device.ordinal = in.value<uint32_t>();
    device.total_bytes = in.value<uint64_t>();
    device.name = text();
    ready.devices.push_back(std::move(device));
    WorkerReady::Identity identity;
    identity.uuid = text();
    identity.pci_bus_id = text();
    ready.identities.push_back(std::move(identity));
  }
  if (in.complete()) return ready;
  return Status(Code::kProtocol, "what a worker says of itself is malformed");
}

}  // namespace rcuda::server

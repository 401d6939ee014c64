#include "server/protocol/worker_messages.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <sys/socket.h>

#include "common/messages/message_codec.h"
#include "common/messages/work_codec.h"
#include "server/protocol/limits_codec.h"
#include "server/protocol/work_page.h"

namespace rcuda::server {
namespace {

constexpr size_t kMostOutcomeBytes = 1024;
// One allowance for the session, one for its user, and one for each of the user's groups.
constexpr uint32_t kMostAllowances = 2 + SessionGrant::kMostGroups;

// Takes the bytes that the daemon has peeked at. They have arrived, so this does not block. If the
// bytes are gone, the socket has failed, and the next read of the socket reports that.
void take_peeked(int socket, size_t bytes) {
  std::byte taken[4096];
  while (bytes > 0) {
    const ssize_t got = ::recv(socket, taken, std::min(bytes, sizeof taken), MSG_DONTWAIT);
    if (got <= 0) return;
    bytes -= static_cast<size_t>(got);
  }
}

template <typename Any, size_t kType = 0>
Result<Any> decode_as(uint32_t type, const std::vector<std::byte>& body) {
  if constexpr (kType == std::variant_size_v<Any>) {
    return Status(Code::kProtocol, "daemon and worker exchanged a message of the unknown type " +
                                       std::to_string(type));
  } else {
    if (type != kType) return decode_as<Any, kType + 1>(type, body);
    wire::MessageReader in(body);
    std::variant_alternative_t<kType, Any> message;
    fields(in, message);
    if (in.complete()) return Any(std::move(message));
    return Status(Code::kProtocol, "daemon and worker exchanged a malformed message of type " +
                                       std::to_string(type));
  }
}

}  // namespace

template <typename Visitor>
void fields(Visitor&, LedgerMemory&) {}

template <typename Visitor>
void fields(Visitor&, WorkMemory&) {}

template <typename Visitor>
void fields(Visitor& visit, SessionGrant& grant) {
  visit.string("user", grant.user);
  visit.string("owner", grant.owner);
  visit.number("port", grant.port);
  visit.bytes("exporter", grant.exporter);
  visit.optional("uid", grant.uid);
  visit.number("gid", grant.gid);
  visit.list("groups", grant.groups, SessionGrant::kMostGroups);
  visit.optional("key", grant.key);
  visit.flag("own_user", grant.own_user);
  visit.number("most_data_bytes", grant.most_data_bytes);
  visit.number("most_processes", grant.most_processes);
  visit.list("allowances", grant.allowances, kMostAllowances);
  visit.object("limits", grant.limits);
}

template <typename Visitor>
void fields(Visitor& visit, SessionStart& m) {
  visit.object("grant", m.grant);
  visit.message("hello", m.hello);
  visit.bytes("token", m.token);
  visit.number("peeked", m.peeked);
}

template <typename Visitor, typename Introduction>
void fields(Visitor& visit, PassedSocket<Introduction>& m) {
  visit.message("introduction", m.introduction);
  visit.number("peeked", m.peeked);
}

template <typename Visitor>
void fields(Visitor& visit, RanksLost& m) {
  visit.list("tags", m.tags, WorkPage::kCommunicators);
}

template <typename Visitor>
void fields(Visitor& visit, ParkStep& m) {
  static constexpr const char* kSteps[] = {"rest", "parked",  "stay",  "wake",       "awake",
                                           "move", "suspend", "place", "place back", "room"};
  visit.choice("what", m.what, kSteps);
  visit.number("keep", m.keep);
  visit.list("tags", m.tags, ParkStep::kMostTags);
  visit.list("devices", m.devices, wire::kMaxDevices);
}

template <typename Visitor>
void fields(Visitor& visit, ParkAnswer& m) {
  static constexpr const char* kAnswers[] = {"at rest",     "busy",      "cannot",    "wake wanted",
                                             "moved",       "not moved", "suspended", "placed",
                                             "room wanted", "room used", "room asked"};
  visit.choice("what", m.what, kAnswers);
  visit.string("why", m.why);
  visit.list("bytes", m.bytes, wire::kMaxDevices);
  if constexpr (Visitor::kReads) m.why.resize(std::min(m.why.size(), kMostOutcomeBytes));
}

template <typename Visitor>
void fields(Visitor& visit, StopRequest& m) {
  visit.string("why", m.why);
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
  visit.string("nccl", m.nccl);
  visit.number("driver_version", m.driver_version);
  visit.list("devices", m.devices, wire::kMaxDevices);
  visit.list("identities", m.identities, wire::kMaxDevices);
  visit.check(m.devices.size() == m.identities.size());
}

template <typename Visitor>
void fields(Visitor& visit, StartFailure& m) {
  visit.string("reason", m.reason);
  visit.flag("lasts", m.lasts);
  visit.string("setting", m.setting);
  visit.number("full_device", m.full_device);
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

template <typename Any, size_t kType = 0>
void add_layouts(wire::MessageLayout& layout) {
  if constexpr (kType < std::variant_size_v<Any>) {
    std::variant_alternative_t<kType, Any> message;
    layout.object("", message);
    add_layouts<Any, kType + 1>(layout);
  }
}

template <typename Any>
std::vector<std::byte> encode_message(const Any& message) {
  wire::MessageWriter out;
  out.number("type", static_cast<uint32_t>(message.index()));
  // A MessageWriter does not change the message.
  std::visit([&](auto& m) { fields(out, m); }, const_cast<Any&>(message));
  return out.take();
}

template <typename Any>
Result<Any> decode_message(std::span<const std::byte> bytes) {
  uint32_t type = ~0u;
  if (bytes.size() >= sizeof type) {
    std::memcpy(&type, bytes.data(), sizeof type);
    bytes = bytes.subspan(sizeof type);
  }
  return decode_as<Any>(type, {bytes.begin(), bytes.end()});
}

template std::vector<std::byte> encode_message(const ToWorker&);
template std::vector<std::byte> encode_message(const ToDaemon&);
template Result<ToDaemon> decode_message(std::span<const std::byte>);
template Result<ToWorker> decode_message(std::span<const std::byte>);

std::string worker_messages_layout() {
  wire::MessageLayout layout;
  add_layouts<ToWorker>(layout);
  add_layouts<ToDaemon>(layout);
  return layout.take();
}

Status send_to_worker(int socket, const ToWorker& message, int descriptor, Deadline deadline) {
  const std::vector<std::byte> bytes = encode_message(message);
  if (bytes.size() > kMostWorkerMessageBytes) {
    return Status(Code::kInvalidArgument, "the message to the worker has " +
                                              std::to_string(bytes.size()) + " bytes, more than " +
                                              std::to_string(kMostWorkerMessageBytes));
  }
  return send_with_fds(socket, bytes, {&descriptor, descriptor >= 0 ? 1u : 0u}, deadline)
      .with_context("sending a message to the worker");
}

Result<ToWorker> receive_from_daemon(int socket) {
  // One byte more than the longest packet: a packet that fills the buffer was too long.
  std::vector<std::byte> buffer(kMostWorkerMessageBytes + 1);
  std::vector<UniqueFd> descriptors;
  Result<size_t> got = recv_packet_with_fds(socket, buffer, descriptors, Deadline::max());
  if (!got.ok()) return Status(got.status()).with_context("reading a message from the daemon");
  if (*got == buffer.size()) {
    return Status(Code::kProtocol, "a message of the daemon has more than " +
                                       std::to_string(kMostWorkerMessageBytes) + " bytes");
  }
  Result<ToWorker> message = decode_message<ToWorker>(std::span(buffer).first(*got));
  if (!message.ok()) return message;
  const bool complete = std::visit(
      [&](auto& m) {
        if constexpr (requires { m.descriptor; }) {
          if (descriptors.size() != 1) return false;
          m.descriptor = std::move(descriptors.front());
        }
        if constexpr (requires { m.peeked; }) take_peeked(m.descriptor.get(), m.peeked);
        return descriptors.empty() || requires { m.descriptor; };
      },
      *message);
  if (!complete)
    return Status(Code::kProtocol,
                  "a message of the daemon has a wrong number of file descriptors");
  return message;
}

}  // namespace rcuda::server

#include "server/worker/worker_messages.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/socket.h>

namespace rcuda::server {
namespace {

struct Packet {
  WorkerMessageType type;
  uint32_t index;
  uint8_t token[16];
};
static_assert(sizeof(Packet) == 24);

}  // namespace

Status send_worker_message(int socket, const WorkerMessage& message) {
  Packet packet{message.type, message.index, {}};
  std::memcpy(packet.token, message.token, sizeof packet.token);
  iovec pieces[2] = {{&packet, sizeof packet},
                     {const_cast<std::byte*>(message.body.data()), message.body.size()}};
  msghdr header{};
  header.msg_iov = pieces;
  header.msg_iovlen = message.body.empty() ? 1 : 2;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (message.socket) {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr* item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int));
    const int descriptor = message.socket.get();
    std::memcpy(CMSG_DATA(item), &descriptor, sizeof descriptor);
  }
  while (::sendmsg(socket, &header, MSG_NOSIGNAL) < 0) {
    if (errno != EINTR) return Status::from_errno(errno, "writing to the other process");
  }
  return {};
}

Result<WorkerMessage> receive_worker_message(int socket) {
  std::vector<std::byte> buffer(kMaxWorkerMessageBytes);
  iovec piece{buffer.data(), buffer.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr header{};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  ssize_t got;
  do {
    got = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return Status::from_errno(errno, "reading from the other process");
  if (got == 0) return Status(Code::kUnavailable, "the other process is gone");
  WorkerMessage message;
  for (cmsghdr* item = CMSG_FIRSTHDR(&header); item; item = CMSG_NXTHDR(&header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(item), sizeof descriptor);
    message.socket.reset(descriptor);
  }
  Packet packet;
  if (static_cast<size_t>(got) < sizeof packet || (header.msg_flags & MSG_TRUNC) != 0) {
    return Status(Code::kProtocol, "a packet between daemon and worker was cut short");
  }
  std::memcpy(&packet, buffer.data(), sizeof packet);
  message.type = packet.type;
  message.index = packet.index;
  std::memcpy(message.token, packet.token, sizeof packet.token);
  message.body.assign(buffer.begin() + sizeof packet, buffer.begin() + got);
  return message;
}

std::vector<uint32_t> WorkerReady::ordinals() const {
  std::vector<uint32_t> all;
  for (const wire::ServerStatus::Device& device : devices) all.push_back(device.ordinal);
  return all;
}

// A status without sessions says just this.
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

// Connections between the ranks of a communicator, and the messages on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include <netinet/in.h>

namespace testnccl {

using Bytes = std::vector<std::byte>;

enum class Kind : uint32_t {
  kHello,         // key, ranks, rank, lane: the first message of a connection
  kExchange,      // bytes, equally many from each rank; the reply has the bytes of all ranks
  kConnect,       // a list of peers; the reply comes when each of them names this rank too
  kCollective,    // Call, orders, payload; the reply has this rank's result
  kPointToPoint,  // Transfers, payload of the sends; the reply has the payload of the receives
  kBye,           // the rank has ended the communicator
  kReply,
  kFailure,  // result, text
};

struct Message {
  Kind kind = Kind::kFailure;
  Bytes body;
};

// The place where ranks meet. Like NCCL's unique id, it begins with a random key and an address.
struct Id {
  uint64_t key = 0;
  sockaddr_in address{};
};

// A TCP connection. Every function may be called by every thread, but one thread at a time
// receives.
class Channel {
 public:
  explicit Channel(int descriptor);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Returns nullptr if nothing listens there.
  static std::shared_ptr<Channel> connect(const sockaddr_in& address);

  // Both block, and return false once the connection has ended.
  bool send(Kind kind, const Bytes& body);
  bool receive(Message* message);
  // Ends the connection: calls that block return.
  void shut();

 private:
  const int descriptor_;
  std::mutex sending_;
};

// Listens on the interface of NCCL_SOCKET_IFNAME, by default the loopback's. Returns the
// descriptor, or -1.
int listen_anywhere(sockaddr_in* address);

uint64_t random_key();

template <typename T>
void put(Bytes& bytes, const T& value) {
  const size_t at = bytes.size();
  bytes.resize(at + sizeof value);
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

// Reads values from the front of a body. A body that is too short reads as zeros.
class Reader {
 public:
  explicit Reader(const Bytes& bytes) : bytes_(bytes) {}

  template <typename T>
  T get() {
    T value{};
    if (rest() >= sizeof value) std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += rest() >= sizeof value ? sizeof value : rest();
    return value;
  }
  size_t rest() const { return bytes_.size() - at_; }
  Bytes get_rest() { return Bytes(bytes_.begin() + static_cast<ptrdiff_t>(at_), bytes_.end()); }

 private:
  const Bytes& bytes_;
  size_t at_ = 0;
};

}  // namespace testnccl

// Hub: the server that the ranks of a communicator connect to, in the process of rank 0. It has a
// thread for each connection. It checks that all ranks make the same call, and answers when all
// have called. A unique id also names a hub: from that hub the ranks get the address of the
// communicator's hub.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/nccl/collective.h"
#include "tests/support/nccl/wire.h"

namespace testnccl {

// Each rank has a connection for calls, one for operations of streams, and one on which it receives
// failures. A rank whose connection for failures ends without kBye is lost.
enum class Lane : uint32_t { kCalls, kStreams, kNotices };
constexpr size_t kLanes = 3;

struct Hello {
  uint64_t key;
  int32_t ranks;
  int32_t rank;
  Lane lane;
};

// The body of kFailure.
struct Failure {
  ncclResult_t result = ncclSuccess;
  std::string text;
};
Bytes pack(const Failure& failure);
Failure unpack_failure(const Bytes& body);

// A communicator and the number of collectives that it has begun. With a collective, each rank
// sends this for the other communicators of its device. So the hub finds ranks that call the
// collectives of two communicators in different orders.
struct Order {
  uint64_t communicator;
  uint64_t begun;
};

// A send or a receive of a group.
struct Transfer {
  int32_t peer;
  int32_t sends;
  ncclDataType_t type;
  uint64_t count;
};

class Hub : public std::enable_shared_from_this<Hub> {
 public:
  // kOnce: closes after the first kExchange of all ranks. kAgain: forgets its ranks after each
  // kExchange, so that any number of other ranks may join. kStays: closes when all ranks have left.
  enum class Life { kOnce, kAgain, kStays };

  // Returns nullptr if it cannot listen.
  static std::shared_ptr<Hub> start(Life life);

  const Id& id() const { return id_; }
  void close();
  // Sends kBye to the ranks, because this process may end before they have ended the communicator.
  void farewell();

  Hub(int listener, const Id& id, Life life) : listener_(listener), id_(id), life_(life) {}
  ~Hub();

 private:
  struct Member {
    std::array<std::shared_ptr<Channel>, kLanes> lanes;
    std::optional<Message> call;       // kExchange or kConnect
    std::optional<Message> operation;  // kCollective or kPointToPoint
    std::vector<int32_t> wants;        // the peers that its kConnect calls have named so far
    std::vector<Transfer> transfers;   // of a pending kPointToPoint
    std::vector<Bytes> received;       // for each transfer, until it is complete
    std::vector<bool> complete;
    bool ended = false;  // kBye
  };
  struct Mail {
    Transfer transfer;
    Bytes payload;
    int from;
    size_t index;  // in its sender's transfers
  };

  void accept_all();
  void serve(std::shared_ptr<Channel> channel);
  bool admit(const Hello& hello, const std::shared_ptr<Channel>& channel);
  void handle(int rank, Message message);
  void fail(ncclResult_t result, const std::string& text);
  void reply(Lane lane, int rank, const Bytes& body);
  void finish_exchange();
  void finish_connects();
  void begin_transfers(int rank);
  bool match(int rank);
  void finish_transfers();
  void finish_collective();
  void check_mixture();
  std::string difference_in_order() const;

  const int listener_;
  const Id id_;
  const Life life_;
  std::mutex mutex_;
  std::vector<Member> members_;
  std::map<std::pair<int, int>, std::deque<Mail>> mail_;  // (from, to)
  uint64_t generation_ = 0;
  std::optional<Failure> failure_;
};

}  // namespace testnccl

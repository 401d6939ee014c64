#include "tests/support/nccl/hub.h"

#include <algorithm>
#include <cstdlib>
#include <thread>

#include <sys/socket.h>
#include <unistd.h>

namespace testnccl {
namespace {

std::vector<Order> orders_of(const Message& message, Call* call) {
  Reader reader(message.body);
  *call = reader.get<Call>();
  std::vector<Order> orders(reader.get<uint64_t>());
  for (Order& order : orders) order = reader.get<Order>();
  return orders;
}

Bytes payload_of(const Message& message) {
  Reader reader(message.body);
  (void)reader.get<Call>();
  for (uint64_t left = reader.get<uint64_t>(); left > 0; --left) (void)reader.get<Order>();
  return reader.get_rest();
}

Call call_of(const Message& message) { return Reader(message.body).get<Call>(); }

// With TESTNCCL_SILENT, the other ranks do not notice that a rank is lost, as over NVLink.
bool is_silent() { return std::getenv("TESTNCCL_SILENT") != nullptr; }

std::string rank_text(size_t rank) { return "rank " + std::to_string(rank); }

}  // namespace

Bytes pack(const Failure& failure) {
  Bytes body;
  put(body, failure.result);
  for (const char letter : failure.text) put(body, letter);
  return body;
}

Failure unpack_failure(const Bytes& body) {
  Reader reader(body);
  Failure failure{reader.get<ncclResult_t>(), ""};
  while (reader.rest() > 0) failure.text += reader.get<char>();
  return failure;
}

std::shared_ptr<Hub> Hub::start(Life life) {
  Id id{random_key(), {}};
  const int listener = listen_anywhere(&id.address);
  if (listener < 0) return nullptr;
  auto hub = std::make_shared<Hub>(listener, id, life);
  std::thread([hub] { hub->accept_all(); }).detach();
  return hub;
}

Hub::~Hub() { ::close(listener_); }

void Hub::close() { ::shutdown(listener_, SHUT_RDWR); }

void Hub::accept_all() {
  for (;;) {
    const int descriptor = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (descriptor < 0) return;
    auto channel = std::make_shared<Channel>(descriptor);
    std::thread([self = shared_from_this(), channel] { self->serve(channel); }).detach();
  }
}

void Hub::serve(std::shared_ptr<Channel> channel) {
  Message message;
  if (!channel->receive(&message) || message.kind != Kind::kHello) return;
  const auto hello = Reader(message.body).get<Hello>();
  uint64_t generation = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!admit(hello, channel)) return;
    generation = generation_;
  }
  const auto rank = static_cast<size_t>(hello.rank);
  while (channel->receive(&message)) {
    const std::lock_guard lock(mutex_);
    if (generation != generation_) return;
    handle(hello.rank, std::move(message));
  }
  const std::lock_guard lock(mutex_);
  if (generation != generation_) return;
  members_[rank].lanes[static_cast<size_t>(hello.lane)] = nullptr;
  const bool last_sign = hello.lane == Lane::kNotices || life_ != Life::kStays;
  if (last_sign && !members_[rank].ended && !is_silent()) {
    fail(ncclRemoteError, rank_text(rank) + " was lost");
  }
  const bool empty = std::all_of(members_.begin(), members_.end(), [](const Member& member) {
    return std::all_of(member.lanes.begin(), member.lanes.end(),
                       [](const auto& lane) { return !lane; });
  });
  if (empty && life_ != Life::kAgain) close();
}

bool Hub::admit(const Hello& hello, const std::shared_ptr<Channel>& channel) {
  if (hello.key != id_.key) {
    (void)channel->send(
        Kind::kFailure,
        pack({ncclInvalidArgument,
              "the key in the unique id is not the key of the listener at its address"}));
    return false;
  }
  if (members_.empty()) members_.resize(static_cast<size_t>(hello.ranks));
  std::string wrong;
  if (members_.size() != static_cast<size_t>(hello.ranks)) {
    wrong = rank_text(static_cast<size_t>(hello.rank)) + " expects " + std::to_string(hello.ranks) +
            " ranks, others " + std::to_string(members_.size());
  } else if (members_[static_cast<size_t>(hello.rank)].lanes[static_cast<size_t>(hello.lane)]) {
    wrong = rank_text(static_cast<size_t>(hello.rank)) + " joins twice";
  } else {
    members_[static_cast<size_t>(hello.rank)].lanes[static_cast<size_t>(hello.lane)] = channel;
  }
  if (!wrong.empty()) fail(ncclInvalidUsage, wrong);
  (void)channel->send(failure_ ? Kind::kFailure : Kind::kReply,
                      failure_ ? pack(*failure_) : Bytes());
  return wrong.empty();
}

void Hub::fail(ncclResult_t result, const std::string& text) {
  if (failure_) return;
  failure_ = Failure{result, text};
  // Rank 0 last: the hub is in its process, which may end after that.
  for (size_t rank = members_.size(); rank-- > 0;) {
    for (const auto& lane : members_[rank].lanes) {
      if (lane) (void)lane->send(Kind::kFailure, pack(*failure_));
    }
  }
}

void Hub::reply(Lane lane, int rank, const Bytes& body) {
  const auto& channel = members_[static_cast<size_t>(rank)].lanes[static_cast<size_t>(lane)];
  if (channel) (void)channel->send(Kind::kReply, body);
}

void Hub::handle(int rank, Message message) {
  Member& member = members_[static_cast<size_t>(rank)];
  if (message.kind == Kind::kBye) member.ended = true;
  if (failure_ || message.kind == Kind::kBye) return;
  switch (message.kind) {
    case Kind::kExchange:
      member.call = std::move(message);
      finish_exchange();
      break;
    case Kind::kConnect: {
      for (Reader reader(message.body); reader.rest() > 0;)
        member.wants.push_back(reader.get<int32_t>());
      member.call = std::move(message);
      finish_connects();
      break;
    }
    case Kind::kCollective:
      member.operation = std::move(message);
      check_mixture();
      finish_collective();
      break;
    case Kind::kPointToPoint:
      member.operation = std::move(message);
      begin_transfers(rank);
      finish_transfers();
      check_mixture();
      break;
    default:
      fail(ncclInternalError, "a rank sent a message of an unknown kind");
  }
}

void Hub::farewell() {
  const std::lock_guard lock(mutex_);
  for (const Member& member : members_) {
    const auto& lane = member.lanes[static_cast<size_t>(Lane::kNotices)];
    if (lane) (void)lane->send(Kind::kBye, {});
  }
}

void Hub::finish_exchange() {
  Bytes all;
  for (const Member& member : members_) {
    if (!member.call || member.call->kind != Kind::kExchange) return;
    all.insert(all.end(), member.call->body.begin(), member.call->body.end());
  }
  for (size_t rank = members_.size(); rank-- > 0;) {  // rank 0 last, as in fail()
    members_[rank].call.reset();
    reply(Lane::kCalls, static_cast<int>(rank), all);
  }
  if (life_ == Life::kStays) return;
  ++generation_;
  members_.clear();
  if (life_ == Life::kOnce) close();
}

void Hub::finish_connects() {
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    Member& member = members_[rank];
    if (!member.call || member.call->kind != Kind::kConnect) continue;
    const bool all_there = std::all_of(member.wants.begin(), member.wants.end(), [&](int32_t peer) {
      const auto& theirs = members_[static_cast<size_t>(peer)].wants;
      return std::find(theirs.begin(), theirs.end(), static_cast<int32_t>(rank)) != theirs.end();
    });
    if (!all_there) continue;
    member.call.reset();
    reply(Lane::kCalls, static_cast<int>(rank), {});
  }
}

// Puts the data that the rank sends into mail_.
void Hub::begin_transfers(int rank) {
  Member& member = members_[static_cast<size_t>(rank)];
  Reader reader(member.operation->body);
  member.transfers.resize(reader.get<uint64_t>());
  for (Transfer& transfer : member.transfers) transfer = reader.get<Transfer>();
  member.received.assign(member.transfers.size(), {});
  member.complete.assign(member.transfers.size(), false);
  const Bytes payload = reader.get_rest();
  size_t at = 0;
  for (size_t i = 0; i < member.transfers.size(); ++i) {
    const Transfer& transfer = member.transfers[i];
    if (!transfer.sends) continue;
    const auto begin = payload.begin() + static_cast<ptrdiff_t>(at);
    const size_t bytes = transfer.count * size_of(transfer.type);
    mail_[{rank, transfer.peer}].push_back(
        {transfer, Bytes(begin, begin + static_cast<ptrdiff_t>(bytes)), rank, i});
    at += bytes;
  }
}

// Takes the data for the rank's pending receives from mail_. Returns false if the sizes or types
// differ.
bool Hub::match(int rank) {
  Member& member = members_[static_cast<size_t>(rank)];
  for (size_t i = 0; i < member.transfers.size(); ++i) {
    const Transfer& transfer = member.transfers[i];
    if (transfer.sends || member.complete[i]) continue;
    auto& mail = mail_[{transfer.peer, rank}];
    if (mail.empty()) continue;
    const Transfer& sent = mail.front().transfer;
    if (sent.count != transfer.count || sent.type != transfer.type) {
      fail(ncclInvalidUsage, rank_text(static_cast<size_t>(transfer.peer)) + " sends " +
                                 std::to_string(sent.count) + " elements of type " +
                                 std::to_string(sent.type) + ", but rank " + std::to_string(rank) +
                                 " receives " + std::to_string(transfer.count) + " of type " +
                                 std::to_string(transfer.type));
      return false;
    }
    member.received[i] = std::move(mail.front().payload);
    member.complete[i] = true;
    members_[static_cast<size_t>(mail.front().from)].complete[mail.front().index] = true;
    mail.pop_front();
  }
  return true;
}

void Hub::finish_transfers() {
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    if (!match(static_cast<int>(rank))) return;
  }
  for (size_t rank = members_.size(); rank-- > 0;) {  // rank 0 last, as in fail()
    Member& member = members_[rank];
    const bool pending = member.operation && member.operation->kind == Kind::kPointToPoint;
    if (!pending ||
        std::find(member.complete.begin(), member.complete.end(), false) != member.complete.end())
      continue;
    Bytes body;
    for (const Bytes& each : member.received) body.insert(body.end(), each.begin(), each.end());
    member.operation.reset();
    member.transfers.clear();
    reply(Lane::kStreams, static_cast<int>(rank), body);
  }
}

// Fails if ranks are in operations that do not match.
void Hub::check_mixture() {
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    const Member& member = members_[rank];
    if (!member.operation) continue;
    for (size_t other = 0; other < members_.size(); ++other) {
      const auto& theirs = members_[other].operation;
      if (member.operation->kind == Kind::kCollective) {
        if (members_[other].ended) {
          return fail(ncclInvalidUsage, rank_text(rank) + " calls " +
                                            describe(call_of(*member.operation)) + ", but " +
                                            rank_text(other) + " has ended the communicator");
        }
        if (!theirs || theirs->kind != Kind::kCollective) continue;
        const Call mine = call_of(*member.operation), other_call = call_of(*theirs);
        if (mine == other_call) continue;
        return fail(ncclInvalidUsage, rank_text(rank) + " calls " + describe(mine) + ", but " +
                                          rank_text(other) + " calls " + describe(other_call));
      }
      for (size_t i = 0; i < member.transfers.size(); ++i) {
        if (member.complete[i] || static_cast<size_t>(member.transfers[i].peer) != other) continue;
        if (!theirs || theirs->kind != Kind::kCollective) continue;
        return fail(ncclInvalidUsage,
                    rank_text(rank) +
                        (member.transfers[i].sends ? " sends to " : " receives from ") +
                        rank_text(other) + ", which calls " + describe(call_of(*theirs)));
      }
    }
  }
}

// Compares how many collectives each rank had begun, before this call, in the other communicators
// that the ranks share. Returns a text about the first difference; empty: no difference.
std::string Hub::difference_in_order() const {
  Call call;
  const std::vector<Order> first = orders_of(*members_[0].operation, &call);
  for (size_t rank = 1; rank < members_.size(); ++rank) {
    for (const Order& theirs : orders_of(*members_[rank].operation, &call)) {
      for (const Order& mine : first) {
        if (mine.communicator != theirs.communicator || mine.begun == theirs.begun) continue;
        return describe(call) + ": rank 0 calls it after " + std::to_string(mine.begun) +
               " collectives of another communicator, " + rank_text(rank) + " after " +
               std::to_string(theirs.begun);
      }
    }
  }
  return "";
}

void Hub::finish_collective() {
  if (failure_) return;
  std::vector<Bytes> inputs;
  for (const Member& member : members_) {
    if (!member.operation || member.operation->kind != Kind::kCollective) return;
    inputs.push_back(payload_of(*member.operation));
  }
  if (const std::string difference = difference_in_order(); !difference.empty()) {
    return fail(ncclInvalidUsage, difference);
  }
  const std::vector<Bytes> results = compute(call_of(*members_[0].operation), inputs);
  for (size_t rank = members_.size(); rank-- > 0;) {  // rank 0 last, as in fail()
    members_[rank].operation.reset();
    reply(Lane::kStreams, static_cast<int>(rank), results[rank]);
  }
}

}  // namespace testnccl

#include "tests/support/nccl/communicator.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include <unistd.h>

namespace testnccl {
namespace {

// Communicators whose ranks have met. With each collective, a rank reports the other communicators
// of its device to the hub (see Order in hub.h).
std::mutex order_mutex;
std::vector<Communicator*>& live() {
  static auto* all = new std::vector<Communicator*>;
  return *all;
}

// Identifies the machine as NCCL does: by NCCL_HOSTID if it is set, otherwise by host name and
// boot.
uint64_t host() {
  std::string text;
  if (const char* id = std::getenv("NCCL_HOSTID")) {
    text = id;
  } else {
    char name[256] = {};
    (void)::gethostname(name, sizeof name - 1);
    std::string boot;
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
    text = name + boot;
  }
  return std::hash<std::string>()(text);
}

uint64_t this_thread() {
  static std::atomic<uint64_t> next = 1;
  thread_local const uint64_t mine = next++;
  return mine;
}

}  // namespace

uint64_t process_key() {
  static const uint64_t key = random_key();
  return key;
}

std::atomic<uint64_t>& encryption() {
  static std::atomic<uint64_t> value{0};
  return value;
}

int library_version() {
  const char* value = std::getenv("TESTNCCL_VERSION");
  return value ? std::atoi(value) : 23203;
}

Current::Current(CUcontext context) {
  (void)cuThreadExchangeStreamCaptureMode(&mode_);
  (void)cuCtxPushCurrent(context);
}

Current::~Current() {
  CUcontext popped = nullptr;
  (void)cuCtxPopCurrent(&popped);
  (void)cuThreadExchangeStreamCaptureMode(&mode_);
}

Communicator::Communicator(int ranks, int rank, bool blocking, CUcontext context)
    : ranks_(ranks), rank_(rank), blocking_(blocking), context_(context) {
  const Current current(context_);
  (void)cuCtxGetDevice(&device_);
  (void)cuEventCreate(&last_event_, CU_EVENT_DISABLE_TIMING);
}

bool Communicator::join(const Id& id, Lane which) {
  auto channel = Channel::connect(id.address);
  if (!channel) return false;
  {
    const std::lock_guard lock(lanes_mutex_);
    if (ended_) return false;
    lanes_[static_cast<size_t>(which)] = channel;
  }
  Bytes hello;
  put(hello, Hello{id.key, ranks_, rank_, which});
  Message welcome;  // once the hub has sent it, the hub also sends failures to this rank
  return channel->send(Kind::kHello, hello) && receive(which, &welcome);
}

bool Communicator::receive(Lane which, Message* message) {
  if (!lane(which) || !lane(which)->receive(message)) {
    if (!ended_)
      fail(ncclRemoteError, "the connection to rank 0 or to the address of the unique id has ended",
           true);
    return false;
  }
  if (message->kind != Kind::kFailure) return true;
  const Failure failure = unpack_failure(message->body);
  fail(failure.result, failure.text, true);
  return false;
}

Bytes Communicator::exchange(const Bytes& mine) {
  Message answer;
  if (lane(Lane::kCalls)) (void)lane(Lane::kCalls)->send(Kind::kExchange, mine);
  return receive(Lane::kCalls, &answer) ? std::move(answer.body) : Bytes();
}

ncclResult_t Communicator::meet_as(int rank, int ranks, const Id& id) {
  rank_ = rank;
  ranks_ = ranks;
  return meet(id);
}

ncclResult_t Communicator::meet(const Id& id) {
  if (rank_ == 0) hub_ = Hub::start(Hub::Life::kStays);
  spare_ = Hub::start(Hub::Life::kAgain);
  if ((rank_ == 0 && !hub_) || !spare_)
    return fail(ncclSystemError, "cannot listen for other ranks", true);
  Member mine{hub_ ? hub_->id() : Id{}, spare_->id(), host(), process_key(), {},
              library_version(),        encryption()};
  (void)cuDeviceGetUuid(&mine.device, device_);
  if (!join(id, Lane::kCalls)) {
    (void)fail(ncclRemoteError, "nothing listens at the address of the unique id", true);
    return state();
  }
  Bytes record;
  put(record, mine);
  const Bytes all = exchange(record);
  if (all.empty()) return failure();
  Reader reader(all);
  members_.resize(static_cast<size_t>(ranks_));
  for (Member& member : members_) member = reader.get<Member>();
  if (const ncclResult_t result = check_members(); result != ncclSuccess) return result;
  for (const Lane each : {Lane::kCalls, Lane::kStreams, Lane::kNotices}) {
    if (!join(members_[0].hub, each)) return fail(ncclRemoteError, "rank 0 was lost", true);
  }
  std::thread([self = shared_from_this()] { self->progress(); }).detach();
  std::thread([self = shared_from_this()] { self->watch(); }).detach();
  const std::lock_guard lock(order_mutex);
  live().push_back(this);
  has_met_ = true;
  return ncclSuccess;
}

ncclResult_t Communicator::check_members() {
  for (int a = 0; a < ranks_; ++a) {
    for (int b = 0; b < a; ++b) {
      const Member &first = members_[static_cast<size_t>(b)],
                   &second = members_[static_cast<size_t>(a)];
      const std::string pair = "ranks " + std::to_string(b) + " and " + std::to_string(a);
      if (first.version != second.version) {
        return fail(ncclInvalidUsage,
                    pair + " have different versions of NCCL: " + std::to_string(first.version) +
                        " and " + std::to_string(second.version),
                    true);
      }
      if (first.encryption != second.encryption) {
        return fail(ncclSystemError, pair + " have different arguments of ncclSetEncryption", true);
      }
      if (first.host == second.host &&
          std::equal(first.device.bytes, first.device.bytes + 16, second.device.bytes)) {
        return fail(ncclInvalidUsage, pair + " of one host use the same device", true);
      }
    }
  }
  return ncclSuccess;
}

// Receives the failures of other ranks.
void Communicator::watch() {
  Message message;
  if (!receive(Lane::kNotices, &message) && !ended_) shut_lanes();
}

void Communicator::shut_lanes() {
  const std::lock_guard lock(lanes_mutex_);
  for (const auto& each : lanes_) {
    if (each) each->shut();
  }
}

ncclResult_t Communicator::revoke() {
  if (is_revoked_.exchange(true)) {
    return fail(ncclInvalidArgument, "the communicator is already revoked", false);
  }
  // The children end before the communicator's own calls: when those have ended, the program may
  // create further children (ncclCommShrink), which must not be ended.
  end_children();
  (void)fail(ncclInvalidUsage, "the communicator is revoked", true);
  shut_lanes();
  return ncclSuccess;
}

ncclResult_t Communicator::failure() const {
  const ncclResult_t now = state();
  return now == ncclSuccess || now == ncclInProgress ? ncclInternalError : now;
}

void Communicator::adopt(const std::shared_ptr<Communicator>& child) {
  const std::lock_guard lock(mutex_);
  children_.push_back(child);
}

void Communicator::end_children() {
  std::vector<std::weak_ptr<Communicator>> children;
  {
    const std::lock_guard lock(mutex_);
    children.swap(children_);
  }
  for (const auto& each : children) {
    const auto child = each.lock();
    if (child && !child->has_met_) child->abort();
  }
}

bool Communicator::knows(const std::set<int32_t>& peers) const {
  return std::includes(known_.begin(), known_.end(), peers.begin(), peers.end());
}

bool Communicator::begin_connect(const std::set<int32_t>& peers) {
  Bytes body;
  for (const int32_t peer : peers) put(body, peer);
  known_.insert(peers.begin(), peers.end());
  return lane(Lane::kCalls)->send(Kind::kConnect, body);
}

bool Communicator::end_connect() {
  Message answer;
  return receive(Lane::kCalls, &answer);
}

bool Communicator::enter() {
  uint64_t nobody = 0;
  return user_.compare_exchange_strong(nobody, this_thread()) || nobody == this_thread();
}

void Communicator::leave() {
  uint64_t me = this_thread();
  (void)user_.compare_exchange_strong(me, 0);
}

void Communicator::set_state(ncclResult_t state) {
  ncclResult_t before = state_.load();
  // Does not replace a failure.
  while ((before == ncclSuccess || before == ncclInProgress) &&
         !state_.compare_exchange_weak(before, state)) {
  }
}

ncclResult_t Communicator::fail(ncclResult_t result, const std::string& text, bool lasting) {
  const std::lock_guard lock(mutex_);
  const bool known = lasting && state_ != ncclSuccess && state_ != ncclInProgress;
  if (lasting) set_state(result);
  if (known || ended_) return result;
  last_error_ = text;
  std::fprintf(stderr, "testnccl: rank %d of %d: %s\n", rank_, ranks_, text.c_str());
  return result;
}

std::string Communicator::last_error() {
  const std::lock_guard lock(mutex_);
  return last_error_;
}

void Communicator::finalize() {
  std::unique_lock lock(mutex_);
  auto done = [&] { return in_streams_ == 0 || ended_; };
  while (!changed_.wait_for(lock, std::chrono::milliseconds(50), done)) {
    const CUresult result = cuEventQuery(last_event_);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) return;  // the context has failed
  }
}

void Communicator::end() {
  ended_ = true;
  if (lane(Lane::kNotices)) (void)lane(Lane::kNotices)->send(Kind::kBye, {});
  if (hub_) hub_->farewell();
  abort();
  const Current current(context_);
  const std::lock_guard lock(mutex_);
  for (Operation* operation : free_) {
    (void)cuMemFreeHost(operation->staging);
    operation->capacity = 0;
  }
  free_.clear();
  (void)cuEventDestroy(last_event_);
}

void Communicator::abort() {
  {
    const std::lock_guard lock(order_mutex);
    std::erase(live(), this);
  }
  ended_ = true;
  shut_lanes();
  end_children();
  if (spare_) spare_->close();
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

ncclRedOp_t Communicator::add_factor(const Factor& factor) {
  const int op = factors_.empty() ? ncclNumOps : factors_.rbegin()->first + 1;
  factors_[op] = factor;
  return static_cast<ncclRedOp_t>(op);
}

bool Communicator::remove_factor(int op) { return factors_.erase(op) == 1; }

std::optional<Factor> Communicator::factor(int op) const {
  const auto found = factors_.find(op);
  if (found == factors_.end()) return std::nullopt;
  return found->second;
}

Bytes Communicator::orders(bool counts) {
  const std::lock_guard lock(order_mutex);
  Bytes body, list;
  uint64_t others = 0;
  for (const Communicator* each : live()) {
    if (each == this || each->device_ != device_) continue;
    put(list, Order{each->members_[0].hub.key, each->begun_});
    ++others;
  }
  if (counts) ++begun_;
  put(body, others);
  body.insert(body.end(), list.begin(), list.end());
  return body;
}

}  // namespace testnccl

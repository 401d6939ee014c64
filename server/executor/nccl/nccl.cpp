#include "server/executor/nccl/nccl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <string_view>
#include <thread>
#include <utility>

#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include "common/base/host_name.h"
#include "common/base/log.h"
#include "common/nccl/nccl_variables.h"

namespace rcuda::server {
namespace {

// The most bytes of NcclPart commands whose batches are not complete. The NcclSteps made of them
// take about ten times as much memory. A group of sends and receives with 4096 ranks has 512 KiB.
constexpr size_t kMostPartBytes = 8u << 20;

constexpr int kSuspendMemory = 1;  // NCCL_SUSPEND_MEM
constexpr int kSuspendsFrom = 22907;

// The arrays that environ has pointed to, and the lines that were added. They stay until the
// process ends, because other threads may still read them.
struct Environments {
  Mutex mutex;
  std::deque<std::vector<char*>> arrays RCUDA_GUARDED_BY(mutex);
  std::deque<std::string> lines RCUDA_GUARDED_BY(mutex);
};

Environments& environments() {
  static auto* const all = new Environments;
  return *all;
}

// Adds variables to the environment. Called before the library is loaded, because NCCL reads the
// values at its first use. A variable that the server's environment has keeps its value. Exception:
// with `only_sockets`, the values of kOnlySockets replace others, because NCCL encrypts only its
// sockets between hosts. Other threads may read the environment meanwhile, so this function
// replaces the whole array: setenv() would move it while they read.
void set_environment(const std::vector<std::string>& variables, const std::string& host_id,
                     bool only_sockets) {
  // Without kOnlySockets, NCCL may also use RDMA, NVLink between hosts, and networks of plug-ins.
  static constexpr std::string_view kOnlySockets[] = {
      "NCCL_NET=Socket",      "NCCL_IB_DISABLE=1", "NCCL_MNNVL_ENABLE=0",
      "NCCL_NET_PLUGIN=none", "NCCL_GIN_ENABLE=0", "NCCL_GIN_PLUGIN=none"};
  const auto is_forced = [only_sockets](std::string_view line) {
    const std::string_view name = line.substr(0, line.find('=') + 1);
    return only_sockets && std::ranges::any_of(kOnlySockets, [name](std::string_view forced) {
             return forced.starts_with(name);
           });
  };
  std::vector<std::string> lines;
  if (only_sockets) lines.assign(std::begin(kOnlySockets), std::end(kOnlySockets));
  for (const std::string& line : variables) {
    const size_t equals = line.find('=');
    if (equals != std::string::npos && !is_forced(line) &&
        nccl::may_program_set(line.substr(0, equals))) {
      lines.push_back(line);
    }
  }
  if (!host_id.empty()) lines.push_back("NCCL_HOSTID=" + host_id);
  // Collectives connect when the communicator is made, so that they never wait for other ranks.
  lines.push_back("NCCL_RUNTIME_CONNECT=0");
  // Otherwise NCCL reads a file in the user's home, which may name plug-ins.
  lines.push_back("NCCL_CONF_FILE=/etc/nccl.conf");
  Environments& kept = environments();
  MutexLock lock(kept.mutex);
  std::vector<char*>& all = kept.arrays.emplace_back();
  for (char** entry = environ; entry && *entry; ++entry) {
    if (!is_forced(*entry)) all.push_back(*entry);
  }
  for (const std::string& line : lines) {
    const size_t equals = line.find('=');
    const bool is_set = std::ranges::any_of(all, [&](const char* entry) {
      return std::string_view(entry).starts_with(std::string_view(line).substr(0, equals + 1));
    });
    if (!is_set) all.push_back(kept.lines.emplace_back(line).data());
  }
  all.push_back(nullptr);
  std::atomic_ref<char**>(environ).store(all.data(), std::memory_order_release);
}

uint64_t hash(const void* data, size_t bytes) {
  return std::hash<std::string_view>()({static_cast<const char*>(data), bytes});
}

uint64_t grown_tag(const NcclCommunicator& parent, uint32_t growth) {
  if (parent.tag == 0) return 0;
  // The array is longer than those of the other verbs, so that their tags differ.
  const uint64_t parts[] = {parent.tag, growth, 0, 0};
  return hash(parts, sizeof parts);
}

// Returns a tag that is equal in all ranks, because the ranks call splits and growths in the same
// order. Returns 0 if the tag is unknown.
uint64_t tag_of(const NcclStep& step) {
  if (step.call.verb == nccl::Verb::kInit) {
    return hash(step.ids.data(), step.ids.size() * sizeof(nccl::UniqueId));
  }
  if (step.call.verb == nccl::Verb::kGrow) {
    return step.communicator ? grown_tag(*step.communicator, ++step.communicator->growths)
                             : step.call.source;
  }
  if (!step.communicator || step.communicator->tag == 0) return 0;
  const uint64_t parent = step.communicator->tag;
  if (step.call.verb == nccl::Verb::kShrink) {
    std::vector<int> excluded = step.excluded;  // each rank may have its own order
    std::ranges::sort(excluded);
    const uint64_t parts[] = {parent, hash(excluded.data(), excluded.size() * sizeof(int))};
    return hash(parts, sizeof parts);
  }
  const uint64_t parts[] = {parent, ++step.communicator->splits,
                            static_cast<uint32_t>(step.call.peer)};
  return hash(parts, sizeof parts);
}

int set_encryption(const nccl::Functions& functions, const std::string& psk) {
  if (!functions.ncclSetEncryption) return nccl::kInvalidUsage;
  nccl::EncryptionConfig config;
  if (!psk.empty()) {
    config.mode = nccl::EncryptionConfig::kPsk;
    config.psk = psk.c_str();  // NCCL copies the secret
  }
  return functions.ncclSetEncryption(&config);
}

// Whether the environment lets any operation wait for other ranks: NCCL then connects ranks at the
// first use of an algorithm, or makes them wait for each other in a launch.
bool environment_waits() {
  const char* const connect = std::getenv("NCCL_RUNTIME_CONNECT");
  const char* const mode = std::getenv("NCCL_LAUNCH_MODE");
  return !connect || std::string_view(connect) != "0" ||
         (mode && std::string_view(mode) == "GROUP");
}

}  // namespace

Nccl::Nccl(const api::DriverTable& driver, Jobs& jobs, const NcclSettings& settings)
    : driver_(driver),
      settings_(settings),
      door_(std::make_shared<Door>()),
      callers_(nccl::kMostJobs) {
  MutexLock lock(door_->mutex);
  door_->jobs = &jobs;
}

Nccl::~Nccl() {
  MutexLock lock(door_->mutex);
  door_->jobs = nullptr;
}

bool Nccl::run(CUcontext context, std::function<void()> work, std::function<void()> then,
               bool always) {
  auto ended = [this, then = std::move(then)] {
    --running_;
    then();
  };
  const bool started =
      callers_.start(always, [&driver = driver_, door = door_, context, work = std::move(work),
                              ended = std::move(ended)]() mutable {
        // NCCL may allocate memory, which must not fail or invalidate a capture of another thread.
        CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        if (context && driver.cuCtxSetCurrent(context) == CUDA_SUCCESS) {
          driver.cuThreadExchangeStreamCaptureMode(&mode);
        }
        work();
        MutexLock lock(door->mutex);
        if (door->jobs) door->jobs->post(std::move(ended));
      });
  if (started) ++running_;
  return started;
}

bool Nccl::open(const std::vector<std::string>& variables, std::optional<std::string> psk,
                bool client_demands, Opened then) {
  if (library_ && !psk) {
    then(library_, nccl::kSuccess);
    return true;
  }
  const bool must_encrypt = client_demands || !settings_.needs_encryption.empty();
  if (must_encrypt && psk.value_or("").empty()) {
    then(Status(Code::kUnsupported, !settings_.needs_encryption.empty()
                                        ? settings_.needs_encryption
                                        : "the client demands that NCCL encrypts its connections: "
                                          "call ncclSetEncryption before other functions of NCCL"),
         nccl::kInvalidUsage);
    return true;
  }
  if (!library_) {
    set_environment(variables, settings_.host_id, must_encrypt);
    operations_wait_ = environment_waits();
  }
  struct Loaded {
    Result<const NcclLibrary*> library{Status(Code::kInternal, "")};
    int encryption = nccl::kSuccess;
  };
  const auto loaded = std::make_shared<Loaded>();
  return run(
      nullptr,
      [loaded, library = settings_.library, psk = std::move(psk), must_encrypt] {
        loaded->library = load_nccl(library);
        if (!loaded->library.ok() || !psk) return;
        const nccl::Functions& functions = (**loaded->library).functions;
        loaded->encryption = set_encryption(functions, *psk);
        if (!must_encrypt || loaded->encryption == nccl::kSuccess) return;
        loaded->library = Status(Code::kUnsupported,
                                 functions.ncclSetEncryption
                                     ? "the session is encrypted, but ncclSetEncryption returned " +
                                           std::to_string(loaded->encryption)
                                     : lacking_text("ncclSetEncryption"));
      },
      [this, loaded, then = std::move(then)] {
        if (loaded->library.ok()) library_ = *loaded->library;
        then(loaded->library, loaded->encryption);
      });
}

std::shared_ptr<NcclCommunicator> Nccl::find(uint32_t id) const {
  const auto found = communicators_.find(id);
  return found == communicators_.end() ? nullptr : found->second;
}

std::shared_ptr<NcclCommunicator> Nccl::find_by_window(uint64_t window) const {
  for (const auto& [id, communicator] : communicators_) {
    MutexLock lock(communicator->mutex);
    if (communicator->registrations.contains(window)) return communicator;
  }
  return nullptr;
}

std::shared_ptr<NcclCommunicator> Nccl::create(const NcclStep& step, bool blocking) {
  const uint32_t id = step.call.created;
  const bool may = id != 0 && communicators_.size() < nccl::kMostCommunicators;
  if (!may || communicators_.contains(id)) return nullptr;
  auto made = std::make_shared<NcclCommunicator>();
  made->blocking = blocking;
  made->context = step.context;
  made->tag = tag_of(step);
  {
    MutexLock lock(made->mutex);
    made->is_being_made = true;
  }
  communicators_.emplace(id, made);
  if (made->tag != 0) settings_.note_rank(made->tag, true);
  // A rank of the parent that dies before it calls ncclCommGrow has only the parent's tag. So the
  // new rank also joins under the parent's tag. If the new rank dies, all ranks of the parent count
  // the parent as lost.
  if (step.call.verb == nccl::Verb::kGrow && !step.communicator) {
    made->parent_tag = step.call.target;
    if (made->parent_tag != 0) settings_.note_rank(made->parent_tag, true);
  }
  return made;
}

uint64_t Nccl::next_grown_tag(const NcclCommunicator& parent) {
  return grown_tag(parent, parent.growths + 1);
}

// A unique id of NCCL is a random number and the address of the rank that made it. Releases before
// 2.18 may have the address alone.
std::string Nccl::check_id(const nccl::UniqueId& id) const {
  constexpr int kNumberFirst = 21800;
  bool names_address = false;
  for (const size_t offset : {sizeof(uint64_t), size_t{0}}) {
    if (offset == 0 && library_->version >= kNumberFirst) continue;
    sockaddr_in6 address{};  // also for IPv4, whose members have the same offsets
    std::memcpy(&address, id.bytes + offset, sizeof address);
    const auto& generic = reinterpret_cast<const sockaddr&>(address);
    if (generic.sa_family != AF_INET && generic.sa_family != AF_INET6) continue;
    names_address = true;
    if (settings_.may_connect(generic)) continue;
    char host[NI_MAXHOST] = "an address";
    (void)::getnameinfo(&generic, sizeof address, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
    return std::string("an ncclUniqueId names ") + host + ", to which the server " + host_name() +
           " does not connect: add its network to nccl_networks in server.toml";
  }
  return names_address ? "" : "an ncclUniqueId has no address: use an id from ncclGetUniqueId";
}

void Nccl::forget(uint32_t id) {
  const auto found = communicators_.extract(id);
  if (!found) return;
  forget_parent(*found.mapped());
  if (found.mapped()->tag != 0) settings_.note_rank(found.mapped()->tag, false);
}

void Nccl::forget_parent(NcclCommunicator& created) {
  const uint64_t tag = std::exchange(created.parent_tag, 0);
  if (tag != 0) settings_.note_rank(tag, false);
}

void Nccl::lose(std::vector<uint64_t> tags) {
  MutexLock lock(door_->mutex);
  if (!door_->jobs) return;
  door_->jobs->post([this, tags = std::move(tags)] { lose_now(tags); });
}

// Ranks of the communicators with these tags are lost. Ends calls in progress that would wait
// forever for a lost rank: end_wait() revokes their communicators, or aborts them. A communicator
// without such a call is neither revoked nor aborted, because streams may still use it.
void Nccl::lose_now(const std::vector<uint64_t>& tags) {
  std::vector<const NcclCommunicator*> lost;
  for (const auto& [id, held] : communicators_) {
    NcclCommunicator& communicator = *held;
    const bool is_named = std::ranges::any_of(tags, [&](uint64_t tag) {
      return tag == communicator.tag || tag == communicator.parent_tag;
    });
    if (!is_named || communicator.is_lost.exchange(true)) continue;
    RCUDA_WARN("calls on an NCCL communicator fail: the worker of another rank has died");
    lost.push_back(&communicator);
  }
  const auto is_new = [&](const NcclStep& step) {
    return needs_lost(step) && std::ranges::any_of(lost, [&](const NcclCommunicator* one) {
             return one == step.communicator.get() || one == step.created.get();
           });
  };
  for (const std::shared_ptr<NcclBatch>& batch : in_progress_) {
    const auto step = std::ranges::find_if(batch->steps, is_new);
    if (step == batch->steps.end()) continue;
    batch->is_being_revoked = true;
    if (batch->is_made) {
      batch->is_being_revoked = false;
      continue;
    }
    const bool started = run(
        step->context,
        [&driver = driver_, library = library_, batch] {
          end_wait(library->functions, driver, *batch);
        },
        [] {}, true);
    if (started) continue;
    batch->is_being_revoked = false;
    RCUDA_ERROR(
        "cannot start a thread to end an NCCL call that waits for a lost rank: abort the "
        "communicator, or end the program");
  }
}

void Nccl::forget_created(const NcclBatch& batch) {
  for (const NcclStep& step : batch.steps) {
    if (!step.created) continue;
    const bool counts = step.communicator && step.created->tag != 0;
    if (counts && step.call.verb == nccl::Verb::kSplit) --step.communicator->splits;
    if (counts && step.call.verb == nccl::Verb::kGrow) --step.communicator->growths;
    forget(step.call.created);
  }
}

void Nccl::forget_ended(const NcclBatch& batch) {
  for (const NcclStep& step : batch.steps) {
    const nccl::Verb verb = step.call.verb;
    const bool ends = verb == nccl::Verb::kDestroy || verb == nccl::Verb::kAbort;
    if (ends) forget(step.call.communicator);
    if (!step.created) continue;
    forget_parent(*step.created);
    if (!step.created->handle.load()) forget(step.call.created);
  }
}

bool Nccl::start(std::shared_ptr<NcclBatch> batch, std::function<void(nccl::ResultCode)> then) {
  const CUcontext context = batch->steps.empty() ? nullptr : batch->steps.front().context;
  // An abort must be possible while other calls hang.
  const bool ends = std::ranges::all_of(
      batch->steps, [](const NcclStep& step) { return step.call.verb == nccl::Verb::kAbort; });
  const auto result = std::make_shared<nccl::ResultCode>(nccl::kInternalError);
  const bool started = run(
      context,
      [&driver = driver_, library = library_, batch, result] {
        *result = make(library->functions, driver, *batch);
        batch->is_made = true;
        while (batch->is_being_revoked) std::this_thread::sleep_for(std::chrono::microseconds(20));
      },
      [this, batch, result, then = std::move(then)] {
        in_progress_.erase(batch);
        forget_ended(*batch);
        then(*result);
      },
      ends);
  started ? (void)in_progress_.insert(batch) : forget_created(*batch);
  return started;
}

nccl::ResultCode Nccl::make_here(NcclBatch& batch) {
  return make(library_->functions, driver_, batch);
}

void Nccl::suspend(const std::vector<uint64_t>& tags, Moved then) {
  Communicators all;
  for (const auto& [id, communicator] : communicators_) {
    const NcclUse use(*communicator);
    if (!use.handle() || communicator->is_suspended) continue;
    int ranks = 0;
    (void)library_->functions.ncclCommCount(use.handle(), &ranks);
    const auto here = std::ranges::count(tags, communicator->tag);
    if (communicator->tag == 0 || here != ranks) {
      return then("one of its NCCL communicators has ranks of other servers or users");
    }
    all.push_back(communicator);
  }
  const bool can = library_ && library_->version >= kSuspendsFrom &&
                   library_->functions.ncclCommSuspend && library_->functions.ncclCommResume;
  if (!all.empty() && !can) {
    return then("it uses NCCL, and the server's NCCL " + nccl::version_text(library_->version) +
                " cannot release the memory of communicators: install 2.29.7 or later");
  }
  call_each(nccl::Verb::kSuspend, all, std::move(then));
}

void Nccl::resume(Moved then) {
  call_each(nccl::Verb::kResume, std::exchange(suspended_, {}), std::move(then));
}

// Makes the call on each communicator at the same time, because each waits for its other ranks.
void Nccl::call_each(nccl::Verb verb, const Communicators& communicators, Moved then) {
  if (communicators.empty()) return then("");
  const char* const name = verb == nccl::Verb::kSuspend ? "ncclCommSuspend" : "ncclCommResume";
  struct Calls {
    size_t left = 0;
    std::string why;
  };
  const auto calls = std::make_shared<Calls>(Calls{communicators.size(), ""});
  for (const std::shared_ptr<NcclCommunicator>& communicator : communicators) {
    const auto ended = [this, calls, verb, name, communicator, then](nccl::ResultCode result) {
      if (result != nccl::kSuccess) {
        calls->why =
            std::string(name) + " of an NCCL communicator returned " + std::to_string(result);
      } else if (verb == nccl::Verb::kSuspend) {
        suspended_.push_back(communicator);
      }
      if (--calls->left == 0) then(calls->why);
    };
    const auto batch = std::make_shared<NcclBatch>();
    NcclStep& step = batch->steps.emplace_back();
    step.call.verb = verb;
    step.call.value = kSuspendMemory;
    step.context = communicator->context;
    step.communicator = communicator;
    if (!start(batch, ended)) ended(nccl::kSystemError);
  }
}

bool Nccl::keep_part(uint64_t batch, std::vector<NcclStep> steps, size_t bytes) {
  if (part_bytes_ + bytes > kMostPartBytes) return false;
  part_bytes_ += bytes;
  Parts& parts = parts_[batch];
  parts.bytes += bytes;
  std::move(steps.begin(), steps.end(), std::back_inserter(parts.steps));
  return true;
}

std::vector<NcclStep> Nccl::take_parts(uint64_t batch) {
  auto parts = parts_.extract(batch);
  if (!parts) return {};
  part_bytes_ -= parts.mapped().bytes;
  return std::move(parts.mapped().steps);
}

}  // namespace rcuda::server

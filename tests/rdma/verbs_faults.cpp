#include "tests/rdma/verbs_faults.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include <dlfcn.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

// verbs.h defines it as a macro.
#undef ibv_reg_mr

namespace rcuda::test {
namespace {

constexpr size_t kLeastMapping = 64u << 10;
// Flags of mappings at chosen addresses. These are the program's memory, and are never refused.
constexpr int kPlaced = MAP_FIXED | MAP_FIXED_NOREPLACE;

std::atomic<bool> counting{false};
std::atomic<long> calls{0};
std::atomic<long> first_refused{0};

std::atomic<long> thread_calls{0};
std::atomic<long> first_thread_refused{0};

bool refused() {
  if (!counting.load(std::memory_order_acquire)) return false;
  const long number = ++calls;
  const long first = first_refused.load();
  if (first == 0 || number < first) return false;
  errno = ENOMEM;
  return true;
}

struct QueuePairs {
  std::mutex mutex;
  std::vector<ibv_qp*> alive;
};
QueuePairs& made() {
  static QueuePairs* instance = new QueuePairs;
  return *instance;
}

struct RemoteMemory {
  std::mutex mutex;
  std::vector<ibv_mr*> registered;
};
RemoteMemory& remote() {
  static RemoteMemory* instance = new RemoteMemory;
  return *instance;
}

ibv_mr* noted(ibv_mr* memory, unsigned access) {
  if (memory && access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)) {
    std::lock_guard lock(remote().mutex);
    remote().registered.push_back(memory);
  }
  return memory;
}

// The reported event: at most one at a time, kept until it is acknowledged.
struct Reported {
  std::mutex mutex;
  ibv_context* context = nullptr;  // nullptr: none, or already taken
  ibv_async_event event{};
  bool given = false;
};
Reported& reported() {
  static Reported* instance = new Reported;
  return *instance;
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

// Sleeps until `file` names a fault (verbs_faults.h), makes the fault, and returns.
void await_orders(std::string file) {
  const int watcher = ::inotify_init1(IN_CLOEXEC);
  const std::string folder = file.substr(0, file.rfind('/'));
  if (::inotify_add_watch(watcher, folder.c_str(), IN_CLOSE_WRITE) < 0) std::abort();
  while (true) {
    std::string order;
    if (std::getline(std::ifstream(file) >> std::ws, order)) {
      if (order == "memory") refuse_memory(1);
      if (order == "queue pairs") {
        for (ibv_qp* qp : queue_pairs()) break_queue_pair(qp);
      }
      return;
    }
    char events[4096];
    if (::read(watcher, events, sizeof events) < 0 && errno != EINTR) return;
  }
}

void start_if_told() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (const char* file = std::getenv("RCUDA_TEST_FAULT")) {
      std::thread(await_orders, std::string(file)).detach();
    }
  });
}

__attribute__((constructor)) void begin() {
  if (const char* first = std::getenv("RCUDA_TEST_REFUSE_MEMORY")) refuse_memory(std::atol(first));
}

}  // namespace

void refuse_memory(long first) {
  first_refused = first;
  calls = 0;
  counting.store(true, std::memory_order_release);
}

long memory_calls() { return calls; }

void refuse_threads(long first) {
  thread_calls = 0;
  first_thread_refused = first;
}

std::vector<ibv_qp*> queue_pairs() {
  std::lock_guard lock(made().mutex);
  return made().alive;
}

std::vector<ibv_mr*> remote_memory() {
  std::lock_guard lock(remote().mutex);
  return remote().registered;
}

void break_queue_pair(ibv_qp* qp) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  ibv_modify_qp(qp, &attributes, IBV_QP_STATE);
}

void report_event(ibv_context* context, const ibv_async_event& event) {
  std::lock_guard lock(reported().mutex);
  reported().context = context;
  reported().event = event;
}

}  // namespace rcuda::test

using rcuda::test::next;
using rcuda::test::noted;
using rcuda::test::refused;

extern "C" {

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                   void* argument) noexcept {
  const long first = rcuda::test::first_thread_refused.load();
  if (first != 0 && ++rcuda::test::thread_calls >= first) return EAGAIN;
  return next<int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create")(
      thread, attributes, body, argument);
}

void* mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  if (bytes >= rcuda::test::kLeastMapping && (flags & rcuda::test::kPlaced) == 0 && refused()) {
    return MAP_FAILED;
  }
  return reinterpret_cast<void*>(
      ::syscall(SYS_mmap, address, bytes, protection, flags, fd, offset));
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* base, size_t bytes, int access) {
  if (refused()) return nullptr;
  return noted(next<ibv_mr*(ibv_pd*, void*, size_t, int)>("ibv_reg_mr")(pd, base, bytes, access),
               static_cast<unsigned>(access));
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* base, size_t bytes, uint64_t iova, unsigned access) {
  if (refused()) return nullptr;
  return noted(next<ibv_mr*(ibv_pd*, void*, size_t, uint64_t, unsigned)>("ibv_reg_mr_iova2")(
                   pd, base, bytes, iova, access),
               access);
}

int ibv_dereg_mr(ibv_mr* memory) {
  {
    std::lock_guard lock(rcuda::test::remote().mutex);
    std::erase(rcuda::test::remote().registered, memory);
  }
  return next<int(ibv_mr*)>("ibv_dereg_mr")(memory);
}

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  if (refused()) return nullptr;
  return next<ibv_pd*(ibv_context*)>("ibv_alloc_pd")(context);
}

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  if (refused()) return nullptr;
  return next<ibv_comp_channel*(ibv_context*)>("ibv_create_comp_channel")(context);
}

ibv_cq* ibv_create_cq(ibv_context* context, int depth, void* owner, ibv_comp_channel* channel,
                      int vector) {
  if (refused()) return nullptr;
  return next<ibv_cq*(ibv_context*, int, void*, ibv_comp_channel*, int)>("ibv_create_cq")(
      context, depth, owner, channel, vector);
}

int rdma_create_qp(rdma_cm_id* id, ibv_pd* pd, ibv_qp_init_attr* attributes) {
  rcuda::test::start_if_told();
  if (refused()) return -1;
  const int result =
      next<int(rdma_cm_id*, ibv_pd*, ibv_qp_init_attr*)>("rdma_create_qp")(id, pd, attributes);
  if (result == 0) {
    std::lock_guard lock(rcuda::test::made().mutex);
    rcuda::test::made().alive.push_back(id->qp);
  }
  return result;
}

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  {
    auto& reported = rcuda::test::reported();
    std::lock_guard lock(reported.mutex);
    if (reported.context == context) {
      *event = reported.event;
      reported.context = nullptr;
      reported.given = true;
      return 0;
    }
  }
  return next<int(ibv_context*, ibv_async_event*)>("ibv_get_async_event")(context, event);
}

void ibv_ack_async_event(ibv_async_event* event) {
  {
    std::lock_guard lock(rcuda::test::reported().mutex);
    if (std::exchange(rcuda::test::reported().given, false)) return;
  }
  next<void(ibv_async_event*)>("ibv_ack_async_event")(event);
}

void rdma_destroy_qp(rdma_cm_id* id) {
  {
    std::lock_guard lock(rcuda::test::made().mutex);
    std::erase(rcuda::test::made().alive, id->qp);
  }
  next<void(rdma_cm_id*)>("rdma_destroy_qp")(id);
}

}  // extern "C"

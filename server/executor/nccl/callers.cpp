#include "server/executor/nccl/callers.h"

#include <deque>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/start_thread.h"

namespace rcuda::server {

struct NcclCallers::Shared {
  Mutex mutex;
  CondVar changed;
  std::deque<std::function<void()>> waiting RCUDA_GUARDED_BY(mutex);
  size_t threads RCUDA_GUARDED_BY(mutex) = 0;
  size_t busy RCUDA_GUARDED_BY(mutex) = 0;  // threads with work, plus work without a thread
  bool over RCUDA_GUARDED_BY(mutex) = false;
};

NcclCallers::NcclCallers(size_t most) : most_(most), shared_(std::make_shared<Shared>()) {}

NcclCallers::~NcclCallers() {
  MutexLock lock(shared_->mutex);
  shared_->over = true;
  shared_->changed.notify_all();
}

bool NcclCallers::start(bool always, std::function<void()> work) {
  MutexLock lock(shared_->mutex);
  if (shared_->busy >= most_ && !always) return false;
  if (shared_->busy == shared_->threads) {
    std::thread thread;
    if (!start_thread(&thread, [shared = shared_] { serve(shared); }).ok()) return false;
    thread.detach();
    ++shared_->threads;
  }
  ++shared_->busy;
  shared_->waiting.push_back(std::move(work));
  shared_->changed.notify_one();
  return true;
}

void NcclCallers::serve(const std::shared_ptr<Shared>& shared) {
  for (;;) {
    std::function<void()> work;
    {
      MutexLock lock(shared->mutex);
      shared->changed.wait(lock, [&]() RCUDA_REQUIRES(shared->mutex) {
        return !shared->waiting.empty() || shared->over;
      });
      if (shared->waiting.empty()) return;
      work = std::move(shared->waiting.front());
      shared->waiting.pop_front();
    }
    work();
    MutexLock lock(shared->mutex);
    --shared->busy;
  }
}

}  // namespace rcuda::server

// Threads that streams and graph branches borrow while they have work.
//
// Any thread may call post_to_worker(). The call does not wait for the job: an idle thread takes
// the job, or a new thread is started. A job may block as long as it needs (it may be a stream's
// kernel), so only the number of simultaneous jobs limits the number of threads. Idle threads end
// after a second. The threads block all signals, are detached and never joined: they end with the
// process, whatever they are doing.
#pragma once

#include <functional>

namespace softgpu::driver {

void post_to_worker(std::function<void()> job);

}  // namespace softgpu::driver

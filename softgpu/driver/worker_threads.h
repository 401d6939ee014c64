// Threads that streams and graph branches borrow while they have something to do.
//
// post() may be called from any thread and never blocks for the job: an idle thread takes it, or a
// new one is started. A job may block for as long as it likes (it is a stream's kernel), so the
// number of threads is bounded only by what is asked for at once; idle ones end after a second.
// The threads block all signals, are detached, and are never joined: at process exit they die where
// they are, like the device they stand for.
#pragma once

#include <functional>

namespace softgpu::driver {

void post_to_worker(std::function<void()> job);

}  // namespace softgpu::driver

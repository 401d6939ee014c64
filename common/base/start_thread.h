// Starts a thread, or says what is in the way: the exception of std::thread ends here, because
// what asks for threads runs inside of other people's programs. Any thread may call; nothing
// blocks. `thread` must not be running.
#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "common/base/status.h"

namespace rcuda {

template <typename Body>
Status start_thread(std::thread* thread, Body&& body) {
  try {
    *thread = std::thread(std::forward<Body>(body));
    return {};
  } catch (const std::system_error& error) {
    return {Code::kOutOfMemory,
            std::string("starting a thread: ") + error.code().message() +
                "; raise the limit on processes ('ulimit -u', TasksMax= of the service, pids.max "
                "of the container's cgroup), or free memory on this host"};
  }
}

}  // namespace rcuda

// Starts a thread, or says what is in the way: the exception of std::thread ends here, because
// Links are made inside of other people's programs. Any thread may call; nothing blocks.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "common/base/status.h"

namespace rcuda::transport {

template <typename Body>
Status start_thread(std::thread* thread, Body&& body) {
  try {
    *thread = std::thread(std::forward<Body>(body));
    return {};
  } catch (const std::system_error& error) {
    return {Code::kOutOfMemory,
            std::string("starting a thread: ") + error.code().message() +
                "; raise the limit on processes ('ulimit -u', TasksMax= of the service, the pids "
                "limit of the container), or free memory on this host"};
  }
}

}  // namespace rcuda::transport

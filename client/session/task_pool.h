// Threads that copy: a few, made when the first large pageable copy asks for them, shared by all
// sessions of the process.
#pragma once

#include <cstddef>
#include <functional>

namespace rcuda::client {

// Threads that one copy may use, the caller's included: RCUDA_COPY_THREADS, or by the cores up
// to 8.
size_t copy_threads();

// Runs task(0) ... task(count - 1), each once, on the caller and up to copy_threads() - 1 others,
// and returns when all are done. Tasks may block on one another's completion only if they do not
// depend on later ones having started. After the first exception no further task begins, and the
// caller gets it when those under way have ended.
void run_parallel(size_t count, const std::function<void(size_t)>& task);

}  // namespace rcuda::client

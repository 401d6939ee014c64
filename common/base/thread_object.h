// of_this_thread<T>(): one T per thread, made at its first use and deleted when the thread ends.
//
// Unlike a thread_local T, the object remains valid in the thread that calls exit(). exit()
// destroys that thread's thread_local objects first. The application's static destructors and exit
// handlers run later and may still call CUDA.
#pragma once

#include <cstdlib>

#include <pthread.h>

namespace rcuda {

template <typename T>
T& of_this_thread() {
  thread_local T* object = nullptr;
  if (object) [[likely]]
    return *object;
  static const pthread_key_t key = [] {
    pthread_key_t created{};
    const auto end = [](void* ended) {
      object = nullptr;  // reset first: the destructor may call of_this_thread() again
      delete static_cast<T*>(ended);
    };
    if (pthread_key_create(&created, end) != 0) std::abort();
    return created;
  }();
  object = new T;
  pthread_setspecific(key, object);
  return *object;
}

}  // namespace rcuda

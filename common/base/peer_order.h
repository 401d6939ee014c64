// Reports to ThreadSanitizer the order that a peer ensures. ThreadSanitizer sees one process only.
// It cannot know that the work before a send happens before the work after the peer's answer.
//
// Call before_peer(key) before sending and after_peer(key) after receiving. `key` is any address,
// the same in both calls, such as the connection's. It must not be the address of a mutex, or of an
// object that begins with a mutex: unlocking the mutex overwrites the order that before_peer() has
// recorded while the mutex was locked. Without ThreadSanitizer, both functions do nothing.
#pragma once

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace rcuda {

#if defined(__SANITIZE_THREAD__)
inline void before_peer(const void* key) { __tsan_release(const_cast<void*>(key)); }
inline void after_peer(const void* key) { __tsan_acquire(const_cast<void*>(key)); }
#else
inline void before_peer(const void*) {}
inline void after_peer(const void*) {}
#endif

}  // namespace rcuda

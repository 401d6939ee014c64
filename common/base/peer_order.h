// Tells ThreadSanitizer about the order that a peer keeps. It sees one process only, and this
// cannot know it: what this process does before it sends something happens before what the peer's
// answer allows.
//
// Call before_peer(key) before sending and after_peer(key) after receiving. `key` is any address
// that both use, such as the connection's. It must not be the address of a mutex, or of an object
// that begins with one: unlocking the mutex overwrites what before_peer() has noted since the lock.
// Empty without ThreadSanitizer.
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

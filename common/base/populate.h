// Makes the kernel populate pages of memory now, on several threads.
//
// Page-locking populates missing pages one after the other, and meanwhile keeps every other thread
// out of the driver. On an H200's host, page-locking 32 MB takes 13.5 ms, and 2.4 ms if the pages
// exist. On kernels before Linux 5.14 the function does nothing; the pages are then populated when
// they are page-locked or written.
//
// Any thread. Blocking: until the pages exist. Errors are not reported: the first write to a page
// that could not be populated fails instead.
#pragma once

#include <cstddef>

namespace rcuda {

// `base` must be the beginning of a page.
void populate_pages(std::byte* base, size_t bytes);

}  // namespace rcuda

// If a program gets no device, ensures that the reason appears only once on the same stderr.
// Several parts may find the reason: librcuda.so, our NVML, and children that a framework forks to
// look for a GPU.
#pragma once

#include <string>

namespace rcuda {

// Returns true if this text has not been reported yet on the process's current stderr, and records
// it as reported. Any thread; the first call may map a page that children of fork() share.
bool first_report(const std::string& text);

}  // namespace rcuda

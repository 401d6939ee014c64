// Ensures that a message appears only once on the same stderr, for example the reason why a program
// gets no device. Several libraries and processes may find this reason: librcuda.so, rcuda's NVML,
// and children that a framework forks to look for a GPU.
#pragma once

#include <string>

namespace rcuda {

// Returns true if this text has not been reported yet on the process's current stderr, and records
// it as reported. Any thread; the first call may map a page that children of fork() share.
bool first_report(const std::string& text);

}  // namespace rcuda

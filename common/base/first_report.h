// Ensures that a message appears only once on the same stderr, for example the reason why a program
// gets no device. Several parts may find the reason: librcuda.so, the NVML of rcuda, and children
// that a framework forks to look for a GPU.
#pragma once

#include <string>

namespace rcuda {

// Returns true if this text has not been reported yet on the process's current stderr, and records
// it as reported. Any thread; the first call may map a page that children of fork() share.
bool first_report(const std::string& text);

}  // namespace rcuda

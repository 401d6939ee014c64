// Why a program gets no device is reported once per program and stderr, although several parts of
// it may find out: librcuda.so, our NVML, and children that a framework forks to look for a GPU.
#pragma once

#include <string>

namespace rcuda {

// Whether none of these has yet reported this text on the stderr that this process has now. Records
// that it is reported. Any thread; the first call may map a page that children of fork() share.
bool first_report(const std::string& text);

}  // namespace rcuda

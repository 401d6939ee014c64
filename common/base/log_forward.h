// Passes the lines of a plug-in to the log of the program that has loaded it. A plug-in has its own
// copy of this library, including the log's state. The program passes its write_log_line() to the
// plug-in, which calls forward_log() with it before it logs. Lines may come from any thread. The
// plug-in keeps its own log level.
#pragma once

#include "common/base/log.h"

namespace rcuda {

using LogWriter = void (*)(LogLevel level, const char* text);

// Writes a line to this copy's log.
void write_log_line(LogLevel level, const char* text);
// From now on this copy's lines go to `writer`, regardless of the name or file that was set.
void forward_log(LogWriter writer);

}  // namespace rcuda

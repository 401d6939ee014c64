// How the lines of a plug-in reach the log of the program that loaded it. A plug-in has its own
// copy of this library, and with it of the log's state; the program hands write_log_line to the
// plug-in, which gives it to forward_log. Called once, before the plug-in logs; lines may come from
// any thread. The plug-in keeps a threshold of its own.
#pragma once

#include "common/base/log.h"

namespace rcuda {

using LogWriter = void (*)(LogLevel level, const char* text);

// Writes a line where this copy's lines go.
void write_log_line(LogLevel level, const char* text);
// From now on this copy's lines go to `writer`, whatever name or file was set.
void forward_log(LogWriter writer);

}  // namespace rcuda

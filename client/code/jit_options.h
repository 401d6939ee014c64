// The JIT options of calls that load or link code, on their way to the worker, and the compiler's
// logs on their way back. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <cuda.h>

#include "client/objects/code.h"
#include "common/wire/protocol.h"

namespace rcuda::client {

// Finds the log buffers among the options. `values`: the array of option values, into which
// fill_logs() writes the sizes; it must outlive the result.
LogBuffers log_buffers(std::span<const CUjit_option> options, void** values);
// Removes the options of the logs, so that later loads do not write to the application's buffers.
void forget_logs(JitOptions* options);
// Copies both logs, their sizes and the wall time. `bytes`: wire::JitLogs and the texts, as a
// worker sent them.
void fill_logs(const LogBuffers& buffers, std::span<const std::byte> bytes);

// Returns the options whose value is a number. The values of other options point to the
// application's memory.
std::vector<wire::JitOption> numbers_of(std::span<const CUjit_option> options, void* const* values);
std::vector<wire::JitOption> numbers_of(std::span<const CUlibraryOption> options,
                                        void* const* values);

}  // namespace rcuda::client

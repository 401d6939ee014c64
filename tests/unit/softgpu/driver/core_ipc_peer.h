// The other process of the IPC tests: this binary, started again as `--ipc-peer COMMAND`, with a
// socket on descriptor 3.
#pragma once

#include <cstddef>

#include <cuda.h>

namespace softgpu::driver {

inline constexpr int kPeerSocket = 3;
inline constexpr size_t kPeerBytes = 100'000;

// The message to the peer over the socket; `pointer` is for memory of the imported pool.
struct PeerMessage {
  CUipcMemHandle memory{}, other_memory{};
  CUipcEventHandle event{};
  CUmemPoolPtrExportData pointer{};
};

// Returns the process's exit status: 0 if all checks passed, otherwise the line that failed.
int run_ipc_peer(const char* command);

}  // namespace softgpu::driver

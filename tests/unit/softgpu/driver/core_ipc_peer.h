// The other process of the IPC tests: this binary started again as `--ipc-peer COMMAND`, with what
// it needs on descriptor 3.
#pragma once

#include <cstddef>

#include <cuda.h>

namespace softgpu::driver {

inline constexpr int kPeerSocket = 3;
inline constexpr size_t kPeerBytes = 100'000;

// What the peer is sent over the socket; `address` of "pool" lies in the imported pool.
struct PeerMessage {
  CUipcMemHandle memory{}, other_memory{};
  CUmemPoolPtrExportData pointer{};
};

// Returns the process's exit status: 0 when it saw what it should, else the line that failed.
int run_ipc_peer(const char* command);

}  // namespace softgpu::driver

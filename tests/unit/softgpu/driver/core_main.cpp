// Sets the tests' devices, unless the environment does, and runs the second process of the IPC
// tests.
#include <cstdlib>
#include <cstring>

#include <gtest/gtest.h>

#include "tests/unit/softgpu/driver/core_ipc_peer.h"

int main(int count, char** arguments) {
  ::setenv("SOFTGPU_DEVICES", "2", 0);
  ::setenv("SOFTGPU_MEMORY", "256M", 0);
  if (count == 3 && std::strcmp(arguments[1], "--ipc-peer") == 0) {
    return softgpu::driver::run_ipc_peer(arguments[2]);
  }
  testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}

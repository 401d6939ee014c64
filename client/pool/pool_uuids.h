// The GPUs of the pool and their UUIDs, which the servers report without a session.
//
// Threads: any. Blocking: queries the servers one after another, at most five seconds each. While a
// server does not run, tries again until the deadline (retries.h).
// Errors: the error of a server that does not answer; kNotFound if a server has no such GPU.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "client/pool/device_list.h"
#include "common/base/status.h"

namespace rcuda::client {

// Returns one UUID for each device, as nvidia-smi -L prints it.
Result<std::vector<std::string>> uuids_of(const std::vector<DeviceAddress>& pool,
                                          std::chrono::steady_clock::time_point deadline);

// Sets the numbers of the GPUs that are named by their UUIDs. Queries only the servers of these
// GPUs.
Status resolve_uuids(std::vector<DeviceAddress>* pool,
                     std::chrono::steady_clock::time_point deadline);

}  // namespace rcuda::client

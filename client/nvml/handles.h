// Handles of devices, and the count of nvmlInit's. Any thread. Blocking and errors: look() as
// Pool::look(); the rest does not block.
#pragma once

#include "client/nvml/pool.h"
#include "common/nvml/nvml_api.h"

namespace rcuda::client::nvml {

// The first step of every function but nvmlInit: NVML_ERROR_UNINITIALIZED before it.
nvmlReturn_t check_initialized();

nvmlReturn_t handle_of(uint32_t index, nvmlDevice_t* handle);
// NVML_ERROR_INVALID_ARGUMENT for whatever is no handle.
nvmlReturn_t index_of(nvmlDevice_t handle, uint32_t* index);
nvmlReturn_t look(nvmlDevice_t handle, View* view, bool now = false);

// Writes the text with its end: NVML_ERROR_INSUFFICIENT_SIZE if it does not fit,
// NVML_ERROR_NOT_SUPPORTED if it is empty.
nvmlReturn_t put(const std::string& text, char* to, unsigned length);

}  // namespace rcuda::client::nvml

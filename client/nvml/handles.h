// Device handles, and the count of nvmlInit calls. Any thread. look() blocks and fails like
// Pool::look(). handle_of() and index_of() read the pool's list, so they block like Pool::count();
// the other functions do not block.
#pragma once

#include "client/nvml/pool.h"
#include "common/nvml/nvml_api.h"

namespace rcuda::client::nvml {

// Returns NVML_ERROR_UNINITIALIZED before nvmlInit. Functions that need nvmlInit call this first.
nvmlReturn_t check_initialized();

nvmlReturn_t handle_of(uint32_t index, nvmlDevice_t* handle);
// Returns NVML_ERROR_INVALID_ARGUMENT if `handle` is not the handle of a device.
nvmlReturn_t index_of(nvmlDevice_t handle, uint32_t* index);
nvmlReturn_t look(nvmlDevice_t handle, View* view, bool now = false);

// Copies the text with its null terminator. Returns NVML_ERROR_INSUFFICIENT_SIZE if the text does
// not fit, NVML_ERROR_NOT_SUPPORTED if it is empty.
nvmlReturn_t put(const std::string& text, char* to, unsigned length);

}  // namespace rcuda::client::nvml

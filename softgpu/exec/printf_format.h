// Formats device printf: C's conversions, applied to an argument buffer as packed by nvcc.
//
// Format and arguments come from a kernel and cannot be trusted: unknown conversions, unreadable
// strings and any width are handled. The text is appended to a string; the caller prints it. Floats
// follow the locale of the process (snprintf()). Any thread; nothing blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace softgpu::exec {

struct PrintfArguments {
  // Copies `bytes` from `offset` of the argument buffer; false if they cannot be read.
  std::function<bool(size_t offset, void* to, size_t bytes)> read;
  // The string at a device address; false if it cannot be read.
  std::function<bool(uint64_t address, std::string* text)> read_string;
};

// Appends the text to *out. Sets *count to the number of conversions, the result of device printf.
// False if an argument or string could not be read; then *count is not set.
bool format_printf(std::string_view format, const PrintfArguments& arguments, std::string* out,
                   int* count);

}  // namespace softgpu::exec

// Device printf's formatting: C's conversions over a buffer of arguments as nvcc packs them.
//
// Format and arguments come from a kernel, so they are trusted with nothing: conversions that do
// not exist, strings that cannot be read and widths of any size are handled. No locale, no files:
// text is appended for the caller to print. Pure, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace softgpu::exec {

struct PrintfArguments {
  // Copies `bytes` at `offset` of the argument buffer; false if they cannot be read.
  std::function<bool(size_t offset, void* to, size_t bytes)> read;
  // The string at a device address; false if it cannot be read.
  std::function<bool(uint64_t address, std::string* text)> read_string;
};

// Appends to *out. False if an argument or string could not be read; *arguments is how many
// conversions consumed one (what device printf returns), -1 for a malformed format.
bool format_printf(std::string_view format, const PrintfArguments& arguments, std::string* out,
                   int* count);

}  // namespace softgpu::exec

#include "softgpu/nvml/processes.h"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include "softgpu/driver/config.h"

namespace softgpu::nvml {
namespace {

std::vector<uint32_t> own_processes() {
  std::vector<uint32_t> all{static_cast<uint32_t>(::getpid())};
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream children(task.path() / "children");
    for (uint32_t pid = 0; children >> pid;) all.push_back(pid);
  }
  return all;
}

// The size of the mapping in a line of /proc/PID/maps: "BEGIN-END ...", in hexadecimal.
uint64_t bytes_of(std::string_view line) {
  const size_t dash = line.find('-');
  if (dash == line.npos) return 0;
  uint64_t begin = 0, end = 0;
  std::from_chars(line.data(), line.data() + dash, begin, 16);
  std::from_chars(line.data() + dash + 1, line.data() + line.size(), end, 16);
  return end > begin ? end - begin : 0;
}

}  // namespace

std::map<uint32_t, uint64_t> memory_of_processes(unsigned ordinal) {
  const std::string file = "/memfd:" + driver::device_file_name(static_cast<int>(ordinal)) + " ";
  std::map<uint32_t, uint64_t> used;
  for (const uint32_t pid : own_processes()) {
    std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find(file) != line.npos) used[pid] += bytes_of(line);
    }
  }
  return used;
}

}  // namespace softgpu::nvml

// A fixture with an artificial /sys, for tests of code that locates PCI devices.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <stdlib.h>

namespace rcuda::test {

class SysTreeTest : public testing::Test {
 protected:
  SysTreeTest() {
    std::string pattern = testing::TempDir() + "sysXXXXXX";
    root_ = ::mkdtemp(pattern.data());
  }
  ~SysTreeTest() override { std::filesystem::remove_all(root_); }

  // Makes a device at `path` below sys/devices, with its NUMA node, and a link to it.
  void add(const std::string& path, const std::string& link, const std::string& node) {
    const std::filesystem::path device = root_ / "sys/devices" / path;
    std::filesystem::create_directories(device);
    std::ofstream(device / "numa_node") << node << '\n';
    std::filesystem::create_directories((root_ / link).parent_path());
    std::filesystem::create_symlink(device, root_ / link);
  }

  std::filesystem::path root_;
};

}  // namespace rcuda::test

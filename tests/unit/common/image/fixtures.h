// Images that nvcc makes during the build of the tests.
#pragma once

#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

#include "common/image/image.h"

namespace rcuda::image {

inline std::string read_fixture(const std::string& name) {
  std::ifstream file(std::string(RCUDA_IMAGE_FIXTURES) + "/" + name, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(file), {}};
  EXPECT_FALSE(content.empty()) << name;
  return content;
}

inline Bytes bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace rcuda::image

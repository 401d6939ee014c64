#include "softgpu/exec/printf_format.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

namespace softgpu::exec {
namespace {

// Packs arguments as nvcc does: each aligned to its size.
class Packed {
 public:
  template <class T>
  Packed& add(T value) {
    bytes_.resize((bytes_.size() + sizeof(T) - 1) / sizeof(T) * sizeof(T) + sizeof(T));
    std::memcpy(bytes_.data() + bytes_.size() - sizeof(T), &value, sizeof(T));
    return *this;
  }
  std::string format(const std::string& text, int* count = nullptr) const {
    PrintfArguments arguments;
    arguments.read = [this](size_t offset, void* to, size_t bytes) {
      if (offset + bytes > bytes_.size()) return false;
      std::memcpy(to, bytes_.data() + offset, bytes);
      return true;
    };
    arguments.read_string = [](uint64_t address, std::string* out) {
      *out = reinterpret_cast<const char*>(address);
      return true;
    };
    std::string out;
    int consumed = 0;
    if (!format_printf(text, arguments, &out, &consumed)) return "(failed)";
    if (count != nullptr) *count = consumed;
    return out;
  }

 private:
  std::vector<std::byte> bytes_;
};

TEST(PrintfFormatTest, Integers) {
  EXPECT_EQ(Packed().add(-5).format("%d|"), "-5|");
  EXPECT_EQ(Packed().add(-1).format("%u %%"), "4294967295 %");
  EXPECT_EQ(Packed().add(255).add(255).format("%x %#X"), "ff 0XFF");
  EXPECT_EQ(Packed().add(-42LL).add(7).format("%lld %d"), "-42 7");
  EXPECT_EQ(Packed().add(7).add(-42LL).format("%i %ld"), "7 -42");
  EXPECT_EQ(Packed().add(300).add(70000).format("%hhd %hd"), "44 4464");
  EXPECT_EQ(Packed().add(5).add(5).add(5).format("[%4d] [%-4d] [%04d]"), "[   5] [5   ] [0005]");
  EXPECT_EQ(Packed().add(6).add(42).format("[%*d]"), "[    42]");
  EXPECT_EQ(Packed().add(~size_t{0}).format("%zu"), "18446744073709551615");
}

TEST(PrintfFormatTest, Floats) {
  EXPECT_EQ(Packed().add(2.5).format("%f"), "2.500000");
  EXPECT_EQ(Packed().add(1).add(1e-10).format("%d %g"), "1 1e-10");
  EXPECT_EQ(Packed().add(3.14159).format("%.2f"), "3.14");
  EXPECT_EQ(Packed().add(3).add(3.14159).format("%.*e"), "3.142e+00");
  EXPECT_EQ(Packed().add(-0.5).format("%a"), "-0x1p-1");
}

TEST(PrintfFormatTest, StringsCharactersAndPointers) {
  EXPECT_EQ(Packed().add(reinterpret_cast<uint64_t>("hello")).format("<%s>"), "<hello>");
  EXPECT_EQ(Packed().add(reinterpret_cast<uint64_t>("hello")).format("<%-8.3s>"), "<hel     >");
  EXPECT_EQ(Packed().add(uint64_t{0}).format("%s"), "(null)");
  EXPECT_EQ(Packed().add(static_cast<int>('x')).format("%c%%"), "x%");
  EXPECT_EQ(Packed().add(uint64_t{0xabc}).format("%p"), "0xabc");
  const std::string large(3000, 'y');
  EXPECT_EQ(Packed().add(reinterpret_cast<uint64_t>(large.c_str())).format("%s"), large);
}

TEST(PrintfFormatTest, CountsConversionsAndSurvivesNonsense) {
  int count = 0;
  EXPECT_EQ(Packed().add(1).add(2).format("%d %d\n", &count), "1 2\n");
  EXPECT_EQ(count, 2);
  EXPECT_EQ(Packed().add(0x7fffffff).add(1).format("%*d").size(), 65536u);
  EXPECT_EQ(Packed().add(-0x7fffffff).add(1).format("%.*d"), "1");
  EXPECT_EQ(Packed().add(1).format("%99999999999999999999d").size(), 65536u);
  EXPECT_EQ(Packed().format("100%"), "100%");
  EXPECT_EQ(Packed().format("%y"), "%y");
  EXPECT_EQ(Packed().format("%d"), "(failed)") << "no argument to read";
}

}  // namespace
}  // namespace softgpu::exec

#include "softgpu/exec/printf_format.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace softgpu::exec {
namespace {

constexpr long kWidestField = 1 << 16;
constexpr size_t kLongestText = 16 << 20;

// One conversion specification, such as "%-08.3lld".
struct Specification {
  std::string flags;       // with '%', flags, width and precision; '*' already replaced
  bool is_64_bit = false;  // l, ll, j, z, t or q: integers of 8 bytes
  bool is_short = false;   // h
  bool is_char = false;    // hh
  char conversion = 0;
};

class Formatter {
 public:
  Formatter(std::string_view format, const PrintfArguments& arguments, std::string* out)
      : format_(format), arguments_(arguments), out_(out) {}

  bool run(int* count) {
    while (at_ < format_.size() && out_->size() < kLongestText) {
      const size_t percent = format_.find('%', at_);
      out_->append(format_.substr(at_, percent - at_));
      if (percent == std::string_view::npos) break;
      at_ = percent + 1;
      if (at_ < format_.size() && format_[at_] == '%') {
        out_->push_back('%');
        ++at_;
        continue;
      }
      Specification spec;
      if (!read_specification(&spec)) return false;
      if (spec.conversion == 0) {  // not a conversion: printed unchanged
        out_->append(format_.substr(percent, at_ - percent));
        continue;
      }
      if (!convert(spec)) return false;
      ++count_;
    }
    *count = count_;
    return true;
  }

 private:
  template <class T>
  bool next(T* value) {
    offset_ = (offset_ + sizeof(T) - 1) / sizeof(T) * sizeof(T);
    const bool good = arguments_.read(offset_, value, sizeof(T));
    offset_ += sizeof(T);
    return good;
  }

  // A width or precision: digits, or an argument for '*'. 0 if there is neither.
  bool read_number(long* value) {
    *value = 0;
    if (at_ < format_.size() && format_[at_] == '*') {
      int32_t argument = 0;
      ++at_;
      if (!next(&argument)) return false;
      *value = std::clamp<long>(argument, -kWidestField, kWidestField);
      return true;
    }
    while (at_ < format_.size() && format_[at_] >= '0' && format_[at_] <= '9')
      *value = std::min(*value * 10 + (format_[at_++] - '0'), kWidestField);
    return true;
  }

  bool read_specification(Specification* spec) {
    spec->flags = "%";
    while (at_ < format_.size() && std::strchr("-+ #0", format_[at_]) != nullptr)
      spec->flags += format_[at_++];
    long width = 0, precision = 0;
    if (!read_number(&width)) return false;
    if (width != 0) spec->flags += std::to_string(width);  // a negative width acts as '-', too
    if (at_ < format_.size() && format_[at_] == '.') {
      ++at_;
      if (!read_number(&precision)) return false;
      if (precision >= 0) spec->flags += '.' + std::to_string(precision);
    }
    while (at_ < format_.size() && std::strchr("hljztLq", format_[at_]) != nullptr) {
      const char c = format_[at_++];
      if (c == 'h') {
        spec->is_char = spec->is_short;
        spec->is_short = true;
      } else if (c != 'L') {
        spec->is_64_bit = true;
      }
    }
    if (at_ < format_.size() && std::strchr("diuoxXcsfFeEgGaAp", format_[at_]) != nullptr) {
      spec->conversion = format_[at_++];
    } else if (at_ < format_.size()) {
      ++at_;
    }
    return true;
  }

  template <class T>
  void print(const std::string& format, T value) {
    char buffer[512];
    const int length = std::snprintf(buffer, sizeof buffer, format.c_str(), value);
    if (length < 0) return;
    if (static_cast<size_t>(length) < sizeof buffer) {
      out_->append(buffer, static_cast<size_t>(length));
      return;
    }
    std::string large(static_cast<size_t>(length) + 1, '\0');
    std::snprintf(large.data(), large.size(), format.c_str(), value);
    out_->append(large, 0, static_cast<size_t>(length));
  }

  bool convert(const Specification& spec) {
    switch (spec.conversion) {
      case 'c': {
        int32_t value = 0;
        if (!next(&value)) return false;
        print(spec.flags + 'c', value);
        return true;
      }
      case 's': {
        uint64_t address = 0;
        if (!next(&address)) return false;
        std::string text = "(null)";
        if (address != 0 && !arguments_.read_string(address, &text)) return false;
        print(spec.flags + 's', text.c_str());
        return true;
      }
      case 'p': {
        uint64_t address = 0;
        if (!next(&address)) return false;
        print(spec.flags + 'p', reinterpret_cast<void*>(address));
        return true;
      }
      case 'd':
      case 'i':
      case 'u':
      case 'o':
      case 'x':
      case 'X':
        return integer(spec);
      default: {
        double value = 0;
        if (!next(&value)) return false;
        print(spec.flags + spec.conversion, value);
        return true;
      }
    }
  }

  bool integer(const Specification& spec) {
    const bool is_signed = spec.conversion == 'd' || spec.conversion == 'i';
    long long value = 0;
    if (spec.is_64_bit) {
      if (!next(&value)) return false;
    } else {
      int32_t narrow = 0;
      if (!next(&narrow)) return false;
      value = is_signed ? narrow : static_cast<long long>(static_cast<uint32_t>(narrow));
      if (spec.is_char) {
        value = is_signed ? static_cast<int8_t>(narrow)
                          : static_cast<long long>(static_cast<uint8_t>(narrow));
      } else if (spec.is_short) {
        value = is_signed ? static_cast<int16_t>(narrow)
                          : static_cast<long long>(static_cast<uint16_t>(narrow));
      }
    }
    print(spec.flags + "ll" + spec.conversion, value);
    return true;
  }

  std::string_view format_;
  const PrintfArguments& arguments_;
  std::string* out_;
  size_t at_ = 0;
  size_t offset_ = 0;
  int count_ = 0;
};

}  // namespace

bool format_printf(std::string_view format, const PrintfArguments& arguments, std::string* out,
                   int* count) {
  return Formatter(format, arguments, out).run(count);
}

}  // namespace softgpu::exec

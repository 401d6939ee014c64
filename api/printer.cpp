#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "api/layout.h"
#include "api/opcodes.h"
#include "api/print_command.h"
#include "api/shared.h"
#include "common/wire/codec.h"

namespace rcuda::api {
namespace {

__attribute__((format(printf, 2, 3))) void append(std::string& text, const char* format, ...) {
  char piece[128];
  va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(piece, sizeof(piece), format, arguments);
  va_end(arguments);
  text.append(piece, std::min<size_t>(length < 0 ? 0 : length, sizeof(piece) - 1));
}

uint64_t number(wire::Decoder& in, size_t bytes) {
  switch (bytes) {
    case 1:
      return in.value<uint8_t>();
    case 2:
      return in.value<uint16_t>();
    case 4:
      return in.value<uint32_t>();
    default:
      return in.value<uint64_t>();
  }
}

// Prints one item. The caller prints the separator before it.
void print(const Item& item, wire::Decoder& in, std::string& text) {
  switch (item.form) {
    case Form::kNumber:
      append(text, "%s=%" PRIu64, item.name, number(in, item.bytes));
      break;
    case Form::kAddress:
      append(text, "%s=0x%" PRIx64, item.name, number(in, item.bytes));
      break;
    case Form::kObject:
      append(text, "%s=#%u", item.name, in.value<uint32_t>());
      break;
    case Form::kCreated:
      append(text, "%s->#%u", item.name, in.value<uint32_t>());
      break;
    case Form::kFunction: {
      const auto function = in.value<FunctionId>();
      append(text, "%s=%s#%u", item.name, function.is_kernel != 0 ? "kernel " : "", function.id);
      break;
    }
    case Form::kString: {
      const char* string = in.string();
      append(text, "%s=%s%.100s%s", item.name, string != nullptr ? "\"" : "",
             string != nullptr ? string : "null", string != nullptr ? "\"" : "");
      break;
    }
    case Form::kBlob:
      in.skip(item.bytes, item.alignment);
      append(text, "%s={%u bytes}", item.name, item.bytes);
      break;
    case Form::kArray:
      append(text, "%s=[%zu]", item.name, in.skip_array(item.bytes));
      break;
    case Form::kObjects: {
      const auto ids = in.array<uint32_t>();
      append(text, "%s=[", item.name);
      for (size_t i = 0; i < ids.size() && i < 8; ++i)
        append(text, i == 0 ? "#%u" : " #%u", ids[i]);
      text += ids.size() > 8 ? " ...]" : "]";
      break;
    }
    case Form::kRoom:
      append(text, "%s->[%u]", item.name, in.value<uint32_t>());
      break;
    case Form::kFlag:
      (void)in.value<uint32_t>();
      break;
    case Form::kPresent:
    case Form::kEnd:
      break;
  }
}

}  // namespace

std::string print_command(uint16_t opcode, std::span<const std::byte> body) {
  std::string text = opcode_name(opcode);
  text += '(';
  const Item* item = layout_of(opcode);
  if (item == nullptr) {
    append(text, "%zu bytes)", body.size());
    return text;
  }
  wire::Decoder in(body);
  bool first = true;
  for (; item->form != Form::kEnd && in.ok(); ++item) {
    if (item->form == Form::kPresent) {
      if (in.value<uint32_t>() == 0) item += std::atoi(item->name);
      continue;
    }
    if (!first && item->form != Form::kFlag) text += ", ";
    first = first && item->form == Form::kFlag;
    print(*item, in, text);
  }
  text += in.complete() ? ")" : " ... malformed)";
  return text;
}

}  // namespace rcuda::api

// The layout of a command's body. Internal to the printer. The tables are generated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace rcuda::api {

enum class Form : uint8_t {
  kEnd,
  kNumber,
  kAddress,
  kObject,    // an id
  kObjects,   // an array of ids
  kFunction,  // FunctionId
  kString,
  kBlob,  // a struct
  kArray,
  kPresent,  // 0: the next items are absent; Item::name says how many, as text
  kFlag,
  kRoom,     // the most elements in the reply
  kCreated,  // the id of the created object
};

// The form of a parameter that is passed by value.
template <typename T>
inline constexpr Form form_of = std::is_class_v<T> ? Form::kBlob : Form::kNumber;

struct Item {
  Form form;
  const char* name;
  uint16_t bytes;          // of a number, a struct, or an array's element
  uint16_t alignment = 1;  // of a struct
};

// Returns null for opcodes without generated code.
const Item* layout_of(uint16_t opcode);

}  // namespace rcuda::api

// Templates of loopback.h that need the generated fill() and normalise() of structs. Included by
// the generated test only.
#pragma once

#include <cstring>
#include <type_traits>

#include "tests/unit/api/loopback.h"

namespace rcuda::loopback {

// A sample value: a small number if an array length is computed from it, otherwise a pattern that
// is unique to the parameter.
template <typename T>
T sample(uint32_t seed, bool small) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<T>(0x1000ull * seed);
  } else if constexpr (std::is_class_v<T>) {
    T item;
    std::memset(static_cast<void*>(&item), static_cast<int>(seed), sizeof(item));
    return item;
  } else if constexpr (std::is_enum_v<T>) {
    return static_cast<T>(1);
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(seed);
  } else {
    return small ? T(3) : static_cast<T>(0x0101'0101'0101'0101ull * seed);
  }
}

inline constexpr size_t kSamples = 16;
template <typename T>
std::vector<T> samples(uint32_t seed) {
  std::vector<T> items(kSamples);
  for (size_t i = 0; i < kSamples; ++i) {
    std::memset(static_cast<void*>(&items[i]), static_cast<int>(seed + i), sizeof(T));
  }
  return items;
}
template <typename Handle>
std::vector<Handle> client_handles(wire::Kind kind, uint32_t seed) {
  std::vector<Handle> items;
  for (uint32_t i = 0; i < kSamples; ++i) items.push_back(client_handle<Handle>(kind, seed + i));
  return items;
}
template <typename T>
T sample_structure(uint32_t seed) {
  T it;
  fill(it, seed);
  return it;
}
template <typename T>
std::vector<T> sample_structures(uint32_t seed) {
  std::vector<T> items(kSamples);
  for (uint32_t i = 0; i < kSamples; ++i) fill(items[i], seed + i);
  return items;
}

template <typename T>
void Record::structure(T it) {
  normalise(it, *this);
  bytes(&it, sizeof(it));
}

template <typename T>
void answer_values(T* items, size_t count) {
  if (count != 0) std::memset(static_cast<void*>(items), kAnswer, count * sizeof(T));
}
template <typename T>
void expect_values(const T* items, size_t count) {
  T answer;
  std::memset(static_cast<void*>(&answer), kAnswer, sizeof(T));
  answer = without_padding(answer);
  for (size_t i = 0; i < count; ++i) {
    const T item = without_padding(items[i]);
    EXPECT_EQ(std::memcmp(&item, &answer, sizeof(T)), 0) << "element " << i;
  }
}
// The application gets structs with translated objects and devices. Padding bytes have no meaning.
template <typename T>
void answer_structures(T* items, size_t count) {
  for (size_t i = 0; i < count; ++i) std::memset(static_cast<void*>(&items[i]), 0, sizeof(T));
}
template <typename T>
void expect_structures(const T* items, size_t count) {
  const T zero{};
  for (size_t i = 0; i < count; ++i) EXPECT_EQ(std::memcmp(&items[i], &zero, sizeof(T)), 0);
}

}  // namespace rcuda::loopback

// The two ends of a command in one process, for tests of generated code: a client without sessions
// (client/route/find_route.h) and a worker without a driver (server/executor/core/dispatch.h),
// joined by a function call.
//
// Handles are numbers that encode their kind, side and id, so that tests can check the translation:
// see handle_number(). The client's device 3 is the worker's ordinal 1, which is the driver's
// device 11.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <cuda.h>
#include <gtest/gtest.h>

#include "api/driver_table.h"
#include "api/shared.h"
#include "common/wire/protocol.h"
#include "server/executor/core/dispatch.h"

namespace rcuda::loopback {

enum class Side : uint64_t { kClient = 0x100'0000, kWorker = 0x200'0000 };

inline constexpr CUdevice kClientDevice = 3;
inline constexpr uint32_t kOrdinal = 1;
inline constexpr CUdevice kDriverDevice = 11;
inline constexpr uint32_t kNamedId = 0x77;

inline uint64_t handle_number(Side side, wire::Kind kind, uint32_t id) {
  return (static_cast<uint64_t>(kind) << 40) | static_cast<uint64_t>(side) | id;
}
template <typename Handle>
Handle client_handle(wire::Kind kind, uint32_t id) {
  return api::from_pointer<Handle>(reinterpret_cast<void*>(handle_number(Side::kClient, kind, id)));
}

// The recorded actions of the two ends since the test began.
struct Recorded {
  static Recorded& get();
  api::DriverTable driver;
  std::string seen;     // inputs that the driver got
  std::string printed;  // the last command, by print_command()
  uint16_t opcode = 0;
  std::vector<std::byte> body;
  std::map<std::pair<wire::Kind, uint32_t>, void*> bound;
  std::set<std::pair<wire::Kind, uint32_t>> unbound, retired;
  uint32_t next_id = 0x40;
  uint32_t posted = 0, called = 0;
  bool malformed = false;
  // Set for samples_of_answers(): the worker's replies, one after the other, instead of the
  // handler's; after the last, replies are empty. Each reply is in an exact heap block.
  std::vector<std::vector<std::byte>>* replies = nullptr;
  // The bytes of the handler's last reply.
  std::vector<std::byte> reply;
};

// Clears padding, which a copy member by member may lose. With a compiler that cannot clear
// padding, structs with padding are not compared.
template <typename T>
T without_padding(T item) {
  if constexpr (std::is_class_v<T> && !std::has_unique_object_representations_v<T>) {
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&item);
#else
    std::memset(static_cast<void*>(&item), 0, sizeof(item));
#endif
  }
  return item;
}

// The inputs of a call as text; the text is the same on both sides if everything was translated.
class Record {
 public:
  explicit Record(Side side) : side_(side) {}
  const std::string& text() const { return text_; }

  void handle(const void* handle, wire::Kind kind);
  void device(CUdevice device);
  void string(const char* text) { text_ += std::string("'") + text + "' "; }
  void null(const void* pointer) { text_ += pointer == nullptr ? "null " : "set "; }
  template <typename T>
  void value(T value) {
    bytes(&value, sizeof(value));
  }
  template <typename T>
  void values(const T* items, size_t count) {
    if (items == nullptr) return null(items);
    text_ += std::to_string(count) + "*";
    for (size_t i = 0; i < count; ++i) {
      const T item = without_padding(items[i]);
      bytes(&item, sizeof(item));
    }
  }
  template <typename Handle>
  void handles(const Handle* items, size_t count, wire::Kind kind) {
    if (items == nullptr) return null(items);
    for (size_t i = 0; i < count; ++i) handle(api::to_pointer(items[i]), kind);
  }
  template <typename T>
  void structure(T it);
  template <typename T>
  void structures(const T* items, size_t count) {
    for (size_t i = 0; i < count; ++i) structure(items[i]);
  }

  // For members of structs: records the object or device, and returns a value that is equal on both
  // sides.
  template <typename Handle>
  Handle plain(Handle handle, wire::Kind kind) {
    this->handle(api::to_pointer(handle), kind);
    return {};
  }
  void plain_location(CUmemLocation& location);
  void plain_devices(unsigned& mask);

 private:
  void bytes(const void* data, size_t size);

  Side side_;
  std::string text_;
};

// Decodes and runs a command's body as the worker would. The body is an exact heap block, so a read
// beyond it is out of bounds. `reply` receives the outputs.
server::HandlerResult run_handler(uint16_t opcode, std::span<const std::byte> body,
                                  std::vector<uint64_t>* reply, size_t* reply_bytes);

// Generated: makes a call with sample arguments, and checks the inputs that arrived and the outputs
// that came back. The recording driver function stays in Recorded::driver.
struct Sample {
  uint16_t opcode;
  void (*run)();
};
std::span<const Sample> samples_of_commands();
// Generated: makes a call with sample arguments, and takes the answer in Recorded::replies.
std::span<const Sample> samples_of_answers();

class LoopbackTest : public testing::Test {
 protected:
  void SetUp() override { Recorded::get() = {}; }
  void TearDown() override { EXPECT_FALSE(Recorded::get().malformed); }
  static api::DriverTable& table() { return Recorded::get().driver; }
};

// Fill outputs with the driver's answer, and check that the application gets this answer.
inline constexpr unsigned char kAnswer = 0x5a;
template <typename Handle>
void answer_handles(Handle* items, size_t count, wire::Kind kind) {
  for (size_t i = 0; i < count; ++i) {
    items[i] = api::from_pointer<Handle>(reinterpret_cast<void*>(
        handle_number(Side::kWorker, kind, kNamedId + static_cast<uint32_t>(i))));
  }
}
template <typename Handle>
void expect_named(const Handle* items, size_t count, wire::Kind kind) {
  for (size_t i = 0; i < count; ++i) {
    EXPECT_EQ(items[i], client_handle<Handle>(kind, kNamedId + static_cast<uint32_t>(i)));
  }
}
template <typename Handle>
void expect_created(Handle handle, wire::Kind kind) {
  const auto number = reinterpret_cast<uintptr_t>(api::to_pointer(handle));
  const auto id = static_cast<uint32_t>(number & 0xffffff);
  EXPECT_EQ(handle, client_handle<Handle>(kind, id));
  const auto& bound = Recorded::get().bound;
  ASSERT_TRUE(bound.contains({kind, id}));
  EXPECT_EQ(bound.at({kind, id}),
            reinterpret_cast<void*>(handle_number(Side::kWorker, kind, kNamedId)));
}
void expect_destroyed(const void* handle, wire::Kind kind);
CUmemLocation client_location();
unsigned client_devices();  // a mask

}  // namespace rcuda::loopback

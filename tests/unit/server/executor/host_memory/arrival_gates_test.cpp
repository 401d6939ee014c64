// Copies out of the client's page-locked memory over a medium that shares no pages.
#include "server/executor/host_memory/arrival_gates.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/server/executor/host_memory/shadow_session.h"

namespace rcuda::server {
namespace {

constexpr size_t kBytes = 5u << 20;  // several parts

class CopiesToDevice : public ShadowSession {
 protected:
  CopiesToDevice() : ShadowSession(kBytes) {
    for (size_t i = 0; i < kBytes; ++i) here_[i] = static_cast<std::byte>(i * 7 + i / 4099);
  }

  void copy(size_t bytes, uint32_t flags, uint32_t immediate = 0) {
    wire::CopyBody body{};
    body.destination = device_;
    body.source = reinterpret_cast<uint64_t>(shadow_);
    body.bytes = bytes;
    body.flags = flags;
    body.immediate = immediate;
    EXPECT_TRUE(client().post(wire::Custom::kCopy, body).ok());
  }
  // Whether the device has the client's first `bytes` bytes. Then overwrites them on the device.
  bool device_has(size_t bytes) {
    EXPECT_EQ(synchronize(), CUDA_SUCCESS);
    std::vector<std::byte> there(bytes);
    EXPECT_EQ(driver().cuMemcpyDtoH_v2(there.data(), device_, bytes), CUDA_SUCCESS);
    EXPECT_EQ(driver().cuMemsetD8_v2(device_, 0, kBytes), CUDA_SUCCESS);
    return std::equal(there.begin(), there.end(), here_.begin());
  }
};

class ArrivalGatesTest : public CopiesToDevice {};

// Copies whose bytes the client sends without a request (Copy with an immediate).
class UnaskedTest : public CopiesToDevice {
 protected:
  // Sends part number `part` of a copy of `bytes` bytes.
  void write(size_t bytes, uint64_t part, uint32_t first) {
    const uint64_t at = part * wire::part_bytes_of(bytes);
    client().link().write_with_immediate(
        shadow_region_, at, here_.data() + at, std::min(wire::part_bytes_of(bytes), bytes - at),
        wire::immediate_of(first, part), transport::Company::kAlone, [](const Status&) {});
  }
  void write_all(size_t bytes, uint32_t first) {
    for (uint64_t part = 0; part < wire::parts_of(bytes); ++part) write(bytes, part, first);
  }
};

TEST_F(UnaskedTest, BytesMayComeBeforeAndAfterTheCommand) {
  ASSERT_NE(shadow_region_, transport::RegionId::kNone);
  uint32_t immediate = 1;
  for (const size_t bytes : {size_t{1}, size_t{1} << 20, kBytes}) {
    write_all(bytes, immediate);
    copy(bytes, wire::kSourceReady, immediate);
    EXPECT_TRUE(device_has(bytes)) << bytes;
    immediate += wire::parts_of(bytes);
    copy(bytes, wire::kSourceReady, immediate);
    write_all(bytes, immediate);
    EXPECT_TRUE(device_has(bytes)) << bytes;
    immediate += wire::parts_of(bytes);
  }
  EXPECT_EQ(host_functions_.count(), 0);
}

TEST_F(UnaskedTest, TheNumbersGoRound) {
  copy(kBytes, wire::kSourceReady, UINT32_MAX - 1);
  write_all(kBytes, UINT32_MAX - 1);
  EXPECT_TRUE(device_has(kBytes));
}

TEST_F(UnaskedTest, AStreamWaitsForEachPart) {
  ASSERT_GT(wire::parts_of(kBytes), 2u);
  copy(kBytes, wire::kSourceReady, 1);
  for (uint64_t part = wire::parts_of(kBytes); part-- > 1;) write(kBytes, part, 1);
  ASSERT_TRUE(client().post(wire::Custom::kSignal, wire::SignalBody{0, kWord, ++sequence_}).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(client().word_reached(kWord, sequence_));
  write(kBytes, 0, 1);
  EXPECT_EQ(client().wait_word(kWord, sequence_), CUDA_SUCCESS);
  EXPECT_TRUE(device_has(kBytes));
}

// The bytes of a refused copy still arrive. They must not count for a later copy.
TEST_F(UnaskedTest, ARefusedCopyLeavesNothingBehind) {
  const CUdeviceptr device = std::exchange(device_, 0x10);
  copy(kBytes, wire::kSourceReady, 1);
  device_ = device;
  ASSERT_TRUE(client().post(wire::Custom::kSignal, wire::SignalBody{0, kWord, ++sequence_}).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(client().word_reached(kWord, sequence_));  // bytes may still come
  write_all(kBytes, 1);
  EXPECT_EQ(client().wait_word(kWord, sequence_), CUDA_SUCCESS);
  EXPECT_NE(client().error_word(), 0u);
  copy(kBytes, wire::kSourceReady, 100);
  write_all(kBytes, 100);
  EXPECT_TRUE(device_has(kBytes));
}

TEST_F(UnaskedTest, WhatComesForWithdrawnMemoryIsDropped) {
  for (int i = 0; i < 3; ++i) {
    copy(kBytes, wire::kSourceReady, 1 + 10 * i);
    write_all(kBytes, 1 + 10 * i);
#if defined(__SANITIZE_THREAD__)
    // Waits for the copy: the next one writes equal bytes to the same memory, and ThreadSanitizer
    // would report this race.
    EXPECT_TRUE(device_has(kBytes));
#endif
  }
  const wire::HostUnexposeBody body{reinterpret_cast<uint64_t>(shadow_),
                                    static_cast<uint64_t>(region_)};
  EXPECT_EQ(client().call(wire::Custom::kHostUnexpose, body)->result, CUDA_SUCCESS);
  const std::vector<std::byte> before(shadow_, shadow_ + kBytes);
  std::fill(here_.begin(), here_.end(), std::byte{0xff});
  write_all(kBytes, 31);
  // Reads on the same sockets end after these writes.
  std::vector<std::byte> slot(1 << 20);
  std::atomic<bool> read{false};
  client().link().read(static_cast<transport::RegionId>(session_.ready().staging_region), 0,
                       slot.data(), slot.size(), [&](const Status& status) {
                         EXPECT_TRUE(status.ok());
                         read = true;
                       });
  while (!read) std::this_thread::yield();
  EXPECT_TRUE(std::equal(before.begin(), before.end(), shadow_));
  EXPECT_EQ(synchronize(), CUDA_SUCCESS);
}

// HostUnexpose waits only for the work of its own context. The driver waits for all work that uses
// the memory, here in another context.
TEST_F(UnaskedTest, MemoryIsWithdrawnBehindItsCopies) {
  copy(kBytes, wire::kSourceReady, 1);
  std::thread late([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    write_all(kBytes, 1);
  });
  const wire::HostUnexposeBody body{reinterpret_cast<uint64_t>(shadow_),
                                    static_cast<uint64_t>(region_)};
  const auto withdrawn =
      client().call(wire::Custom::kHostUnexpose, body, {}, wire::primary_context_id(1));
  late.join();
  EXPECT_EQ(withdrawn->result, CUDA_SUCCESS);
  EXPECT_TRUE(device_has(kBytes));
}

TEST_F(UnaskedTest, ASlotIsFilledBehindTheCommandAndItsBytesComeBack) {
  constexpr size_t kSent = 300'001;
  wire::CopyStagedBody staged{};
  staged.device_address = device_;
  staged.staging_offset = 4096;
  staged.bytes = kSent;
  staged.to_device = 1;
  staged.word = 3;
  staged.sequence = 1;
  staged.immediate = 7;
  ASSERT_TRUE(client().post(wire::Custom::kCopyStaged, staged).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(client().word_reached(3, 1));
  client().link().write_with_immediate(
      static_cast<transport::RegionId>(session_.ready().staging_region), staged.staging_offset,
      here_.data(), kSent, staged.immediate, transport::Company::kAwaited, [](const Status&) {});
  EXPECT_EQ(client().wait_word(3, 1), CUDA_SUCCESS);
  EXPECT_EQ(host_functions_.count(), 0);

  std::vector<std::byte> back(kSent + 100);
  const auto region = client().link().expose(back.data(), back.size());
  ASSERT_TRUE(region.ok());
  std::atomic<uint64_t> arrived{0};
  client().link().on_immediate([&](uint32_t immediate, uint64_t bytes) {
    if (immediate == 8) arrived += bytes;
    client().link().interrupt();
  });
  staged.to_device = 0;
  staged.staging_offset = 1 << 20;
  staged.sequence = 2;
  staged.immediate = 8;
  staged.region = static_cast<uint64_t>(region->id);
  staged.region_offset = 100;
  ASSERT_TRUE(client().post(wire::Custom::kCopyStaged, staged).ok());
  EXPECT_EQ(client().wait_word(3, 2), CUDA_SUCCESS);
  EXPECT_TRUE(client()
                  .link()
                  .wait([&] { return arrived == kSent; },
                        std::chrono::steady_clock::now() + std::chrono::seconds(60))
                  .ok());
  client().link().on_immediate(nullptr);
  EXPECT_TRUE(std::equal(back.begin() + 100, back.end(), here_.begin()));
}

// The completion word gets the error, as without an immediate, but only after the bytes have
// arrived.
TEST_F(UnaskedTest, ARefusedCopyOfASlotIsReported) {
  wire::CopyStagedBody staged{};
  staged.device_address = 0x1234;
  staged.bytes = 16;
  staged.word = 3;
  for (const uint32_t to_device : {1u, 0u}) {
    staged.to_device = to_device;
    ++staged.sequence;
    ++staged.immediate;
    ASSERT_TRUE(client().post(wire::Custom::kCopyStaged, staged).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (to_device) {
      EXPECT_FALSE(client().word_reached(3, staged.sequence));
    }
    client().link().write_with_immediate(
        static_cast<transport::RegionId>(session_.ready().staging_region), 0, here_.data(), 16,
        staged.immediate, transport::Company::kAwaited, [](const Status&) {});
    EXPECT_EQ(client().wait_word(3, staged.sequence), CUDA_ERROR_INVALID_VALUE);
  }
}

// The client dies after it has sent a command and before it has sent the bytes.
TEST_F(UnaskedTest, NoStreamWaitsAfterTheSession) {
  copy(kBytes, wire::kSourceReady, 1);
  write(kBytes, 1, 1);
  session_.cut();
  (void)session_.wait_end();
  is_over_ = true;
  EXPECT_EQ(driver().cuCtxSynchronize(), CUDA_SUCCESS);
}

TEST_F(ArrivalGatesTest, AStreamWaitsForBytesWithoutAHostFunction) {
  for (const size_t bytes : {size_t{1}, size_t{1} << 20, kBytes}) {
    copy(bytes, wire::kSourceReady);
    EXPECT_TRUE(device_has(bytes)) << bytes;
  }
  EXPECT_EQ(host_functions_.count(), 0);
}

// The source may be read only when the stream has reached the copy. A host function reports that.
TEST_F(ArrivalGatesTest, ASourceThatMayStillChangeNeedsAHostFunctionForEachPart) {
  copy(kBytes, 0);
  EXPECT_TRUE(device_has(kBytes));
  EXPECT_EQ(host_functions_.count(), static_cast<int>(wire::parts_of(kBytes)));
}

// A driver without stream memory operations. Make it before the session.
class NoMemoryOperations {
 protected:
  NoMemoryOperations() {
    wait_ = [](CUstream, CUdeviceptr, cuuint32_t, unsigned) { return CUDA_ERROR_NOT_SUPPORTED; };
  }
  ~NoMemoryOperations() { wait_ = before_; }

 private:
  decltype(api::DriverTable::cuStreamWaitValue32_v2)& wait_ =
      test::TestDriver::get().table.cuStreamWaitValue32_v2;
  decltype(api::DriverTable::cuStreamWaitValue32_v2) before_ = wait_;
};
class WithoutGatesTest : private NoMemoryOperations, public CopiesToDevice {};

TEST_F(WithoutGatesTest, HostFunctionsWait) {
  copy(kBytes, wire::kSourceReady);
  EXPECT_TRUE(device_has(kBytes));
  EXPECT_EQ(host_functions_.count(), static_cast<int>(wire::parts_of(kBytes)));
}

// A driver that refuses copies. Make it before the session.
class RefusedCopies {
 protected:
  RefusedCopies() : table_(test::TestDriver::get().table), before_(table_) {
    awaited_.clear();
    await_ = before_.cuStreamWaitValue32_v2;
    table_.cuMemcpyAsync = [](CUdeviceptr, CUdeviceptr, size_t, CUstream) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    };
    table_.cuStreamWaitValue32_v2 = [](CUstream stream, CUdeviceptr word, cuuint32_t value,
                                       unsigned flags) {
      awaited_.push_back(value);
      return await_(stream, word, value, flags);
    };
  }
  ~RefusedCopies() {
    table_.cuMemcpyAsync = before_.cuMemcpyAsync;
    table_.cuStreamWaitValue32_v2 = before_.cuStreamWaitValue32_v2;
  }

  static inline std::vector<cuuint32_t> awaited_;

 private:
  static inline decltype(api::DriverTable::cuStreamWaitValue32_v2) await_ = nullptr;
  api::DriverTable& table_;
  const api::DriverTable before_;
};
class RefusedCopiesTest : protected RefusedCopies, public CopiesToDevice {};

// The worker reads the source although the driver refuses the copy. So the stream waits for the
// first part and then for all parts, and the memory is released only when no bytes are in flight.
TEST_F(RefusedCopiesTest, MemoryIsWithdrawnBehindItsReads) {
  ASSERT_GT(wire::parts_of(kBytes), 1u);
  bool is_complete = false;
  BeforeUnregister::first = [&](void* memory) {
    if (memory == shadow_) is_complete = std::equal(here_.begin(), here_.end(), shadow_);
  };
  copy(kBytes, wire::kSourceReady);
  const wire::HostUnexposeBody body{reinterpret_cast<uint64_t>(shadow_),
                                    static_cast<uint64_t>(region_)};
  EXPECT_EQ(client().call(wire::Custom::kHostUnexpose, body)->result, CUDA_SUCCESS);
  ASSERT_EQ(awaited_.size(), 2u);
  EXPECT_EQ(awaited_[1] - awaited_[0], wire::parts_of(kBytes) - 1);
  EXPECT_TRUE(is_complete);
  EXPECT_NE(client().error_word(), 0u);
}

// The client withdraws its memory while the stream waits for its bytes.
TEST_F(ArrivalGatesTest, AStreamDoesNotWaitForBytesThatDoNotCome) {
  for (int i = 0; i < 20; ++i) copy(kBytes, wire::kSourceReady);
  ASSERT_TRUE(client().link().unexpose(region_).ok());
  const CUresult result = synchronize();
  EXPECT_TRUE(result == CUDA_SUCCESS || result == CUDA_ERROR_UNKNOWN) << result;
}

TEST(ArrivalGateTest, AWordThatIsUsedAgainLetsNoStreamPassEarly) {
  alignas(uint32_t) std::array<std::byte, 4> words{};
  std::vector<uint32_t> awaited;
  api::DriverTable driver{};
  static std::vector<uint32_t>* values;
  values = &awaited;
  driver.cuStreamWaitValue32_v2 = [](CUstream, CUdeviceptr, cuuint32_t value, unsigned) {
    values->push_back(value);
    return CUDA_SUCCESS;
  };
  const auto word = [&] {
    uint32_t value;
    std::memcpy(&value, words.data(), sizeof value);
    return value;
  };
  const auto gates = std::make_shared<ArrivalGates>(driver, words);
  ContextState primary{.id = wire::primary_context_id(0)}, other{.id = 77};
  SessionStream stream, elsewhere;
  stream.context = &primary;
  elsewhere.context = &other;
  EXPECT_EQ(gates->take(elsewhere, 1), nullptr);
  auto gate = gates->take(stream, 3);
  ASSERT_NE(gate, nullptr);
  EXPECT_EQ(gates->take(stream, 1), nullptr);  // there is one word
  for (uint32_t parts : {1u, 2u, 3u}) ASSERT_EQ(gates->hold(stream, *gate, parts), CUDA_SUCCESS);
  EXPECT_EQ(word(), 0u);
  gate->open(2);
  EXPECT_EQ(word(), 2u);
  gate.reset();  // releases the stream's remaining waits
  EXPECT_EQ(word(), 3u);
  gate = gates->take(stream, 2);
  ASSERT_NE(gate, nullptr);
  ASSERT_EQ(gates->hold(stream, *gate, 1), CUDA_SUCCESS);
  EXPECT_EQ(awaited, (std::vector<uint32_t>{1, 2, 3, 4}));
  EXPECT_EQ(word(), 3u);
}

}  // namespace
}  // namespace rcuda::server

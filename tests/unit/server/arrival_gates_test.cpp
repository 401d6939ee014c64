// Copies out of the client's page-locked memory over a medium that shares no pages.
#include "server/executor/memory/arrival_gates.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "tests/unit/server/shadow_session.h"

namespace rcuda::server {
namespace {

constexpr size_t kBytes = 5u << 20;  // more than one part

class CopiesToDevice : public ShadowSession {
 protected:
  CopiesToDevice() : ShadowSession(kBytes) {
    for (size_t i = 0; i < kBytes; ++i) here_[i] = static_cast<std::byte>(i * 7 + i / 4099);
  }

  void copy(size_t bytes, uint32_t flags) {
    wire::CopyBody body{};
    body.destination = device_;
    body.source = reinterpret_cast<uint64_t>(shadow_);
    body.bytes = bytes;
    body.flags = flags;
    EXPECT_TRUE(client().post(wire::Custom::kCopy, body).ok());
  }
  // Whether the device has the client's first bytes. Forgets them.
  bool device_has(size_t bytes) {
    EXPECT_EQ(synchronize(), CUDA_SUCCESS);
    std::vector<std::byte> there(bytes);
    EXPECT_EQ(driver().cuMemcpyDtoH_v2(there.data(), device_, bytes), CUDA_SUCCESS);
    EXPECT_EQ(driver().cuMemsetD8_v2(device_, 0, kBytes), CUDA_SUCCESS);
    return std::equal(there.begin(), there.end(), here_.begin());
  }
};

class ArrivalGatesTest : public CopiesToDevice {};

TEST_F(ArrivalGatesTest, AStreamWaitsForBytesWithoutAHostFunction) {
  for (const size_t bytes : {size_t{1}, size_t{1} << 20, kBytes}) {
    copy(bytes, wire::kSourceReady);
    EXPECT_TRUE(device_has(bytes)) << bytes;
  }
  EXPECT_EQ(host_functions_.count(), 0);
}

// It must be read when the stream has got there, which a host function tells.
TEST_F(ArrivalGatesTest, ASourceThatMayStillChangeNeedsAHostFunctionForEachPart) {
  copy(kBytes, 0);
  EXPECT_TRUE(device_has(kBytes));
  EXPECT_EQ(host_functions_.count(), static_cast<int>(wire::parts_of(kBytes)));
}

// Made before the session.
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

// The client withdraws its memory while the stream waits.
TEST_F(ArrivalGatesTest, AStreamDoesNotWaitForBytesThatDoNotCome) {
  for (int i = 0; i < 20; ++i) copy(kBytes, wire::kSourceReady);
  ASSERT_TRUE(client().link().unexpose(region_).ok());
  const CUresult result = synchronize();
  EXPECT_TRUE(result == CUDA_SUCCESS || result == CUDA_ERROR_UNKNOWN) << result;
}

TEST(ArrivalGateTest, AWordThatIsUsedAgainLetsNoStreamPassEarly) {
  alignas(uint32_t) std::array<std::byte, 4> words;
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
  gate.reset();  // whoever still waits is let go
  EXPECT_EQ(word(), 3u);
  gate = gates->take(stream, 2);
  ASSERT_NE(gate, nullptr);
  ASSERT_EQ(gates->hold(stream, *gate, 1), CUDA_SUCCESS);
  EXPECT_EQ(awaited, (std::vector<uint32_t>{1, 2, 3, 4}));
  EXPECT_EQ(word(), 3u);
}

}  // namespace
}  // namespace rcuda::server

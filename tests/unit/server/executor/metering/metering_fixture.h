// The fixture of tests of a quota of device memory: a metered table over softgpu's driver.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>

#include "server/executor/metering/meters.h"
#include "server/quota/ledger.h"
#include "server/quota/quota.h"
#include "tests/support/session_harness.h"

namespace rcuda::server {

inline constexpr uint64_t kMiB = 1u << 20;
inline constexpr uint64_t kLimit = 64 * kMiB;
inline constexpr uint32_t kOrdinal = 5;  // the server's number of the first device

class MeteringTest : public ::testing::Test {
 protected:
  MeteringTest() {
    ledger_.clear(0);
    ledger_.clear(1);
    quota_ = quota_of(0);
    table().cuDevicePrimaryCtxRetain(&context_, 0);
    std::vector<SessionDevice> devices{{0, context_, kOrdinal}};
    metered_.emplace(plain(), devices, quota_, SessionLimits{.priorities = 1}, &done_);
    plain().cuCtxSetCurrent(context_);
  }
  ~MeteringTest() override { plain().cuDevicePrimaryCtxRelease_v2(0); }

  static const api::DriverTable& plain() { return test::TestDriver::get().table; }
  const api::DriverTable& table() { return metered_ ? metered_->table() : plain(); }
  uint64_t booked() { return ledger_.sum(kOrdinal); }
  // The quota of another session of the same user, in this slot of the ledger.
  std::shared_ptr<Quota> quota_of(uint32_t slot) {
    std::vector<UniqueFd> ledgers;
    ledgers.emplace_back(::fcntl(ledger_.descriptor(), F_DUPFD_CLOEXEC, 0));
    return std::make_shared<Quota>(
        std::move(
            Quota::make(
                {{.of = "user ada", .device_memory = kLimit, .host_memory = kLimit, .slot = slot}},
                std::move(ledgers)))
            .value());
  }

  CUdeviceptr allocate(uint64_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(table().cuMemAlloc_v2(&address, bytes), CUDA_SUCCESS);
    return address;
  }

  Ledger ledger_ = std::move(Ledger::make()).value();
  std::shared_ptr<Quota> quota_;
  CUcontext context_ = nullptr;
  wire::Work done_;
  std::optional<Meters> metered_;
};

}  // namespace rcuda::server

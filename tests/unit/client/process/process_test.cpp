#include "client/process/process.h"

#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "client/route/find_route.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

using ProcessTest = TwoPuppetsTest;

TEST_F(ProcessTest, DevicesAreInTheOrderOfTheList) {
  ASSERT_EQ(process().device_count(), 3u);
  EXPECT_EQ(process().device(0)->session, &first_session());
  EXPECT_EQ(process().device(1)->session, &second_session());
  EXPECT_EQ(process().device(2)->session, &first_session());
  EXPECT_EQ(process().device(3), nullptr);
  EXPECT_EQ(process().device(-1), nullptr);
  EXPECT_EQ(process().ordinal_of(first_session(), 1), 2u);
  // Ordinals that the worker does not have.
  EXPECT_EQ(client_ordinal({&first_session(), 1, 0}, 2), CU_DEVICE_INVALID);
  EXPECT_EQ(client_ordinal({&first_session(), 1, 0}, 0x8000'0000), CU_DEVICE_INVALID);
  EXPECT_EQ(first().hello().devices, (std::vector<uint32_t>{1, 0}));
}

TEST_F(ProcessTest, EachServerHearsWhichWindowsAreTaken) {
  const auto& taken = second().hello().taken;
  const auto& windows = first_session().welcome().windows;
  ASSERT_EQ(taken.size(), first().hello().taken.size() + windows.size());
  EXPECT_EQ(taken.back().base, windows.back().base);
  EXPECT_EQ(taken.back().bytes, windows.back().bytes);
  EXPECT_EQ(first().hello().devices_left, 3u);
  EXPECT_EQ(second().hello().devices_left, 1u);
  EXPECT_EQ(first().hello().servers, 2u);
  EXPECT_EQ(first().hello().worker, 0u);
  EXPECT_EQ(second().hello().worker, 1u);
  EXPECT_TRUE(
      std::equal(first().hello().session, first().hello().session + 16, second().hello().session));
}

// Applications identify GPUs by their PCI address; both servers report 0000:01:00.0.
TEST_F(ProcessTest, NoTwoDevicesHaveOnePciAddress) {
  std::set<std::string> addresses;
  for (int i = 0; i < 3; ++i) addresses.insert(process().device(i)->info.pci_bus_id);
  EXPECT_EQ(addresses.size(), 3u);
  const Device& moved = *process().device(1);
  EXPECT_EQ(moved.info.pci_bus_id, "0001:01:00.0");
  EXPECT_EQ(moved.attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID), 1);
}

TEST_F(ProcessTest, DevicesShareNothingWithThisMachine) {
  EXPECT_EQ(process().device(0)->attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS), 0);
  EXPECT_EQ(process().device(1)->attribute(CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED), 0);
}

TEST_F(ProcessTest, TheOldestDriverIsTheVersion) { EXPECT_EQ(process().driver_version(), 12080); }

TEST_F(ProcessTest, WindowsTellWhoseAnAddressIs) {
  for (const wire::AddressWindow& window : second_session().welcome().windows) {
    EXPECT_EQ(process().session_of_address(window.base), &second_session());
    EXPECT_EQ(process().session_of_address(window.base + window.bytes - 1), &second_session());
    EXPECT_EQ(process().session_of_address(window.base + window.bytes), nullptr);
    EXPECT_EQ(process().session_of_address(window.base - 1), nullptr);
  }
}

TEST_F(ProcessTest, AWrongAttributeIsZeroAndNoCrash) {
  EXPECT_EQ(process().device(0)->attribute(static_cast<CUdevice_attribute>(100'000)), 0);
  EXPECT_EQ(process().device(0)->attribute(static_cast<CUdevice_attribute>(-1)), 0);
}

TEST_F(ProcessTest, EachThreadHasItsContexts) {
  std::thread([&] {
    EXPECT_EQ(current_context().get(), nullptr);
    EXPECT_EQ(find_current_route().result(), CUDA_ERROR_INVALID_CONTEXT);
    push_context(process().device(1)->primary);
    push_context(process().device(2)->primary);
    const auto route = find_current_route();
    ASSERT_EQ(route.result(), CUDA_SUCCESS);
    EXPECT_EQ(route->session, &first_session());
    EXPECT_EQ(route->device, 2u);
    process().device(2)->primary->given_back = true;
    EXPECT_EQ(find_current_route().result(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(any_route().session, process().sessions().front().get());
    process().device(2)->primary->given_back = false;
    EXPECT_EQ(pop_context().get(), process().device(2)->primary);
    EXPECT_EQ(current_context().get(), process().device(1)->primary);
    set_current_context(nullptr);
    EXPECT_EQ(current_context().get(), nullptr);
    EXPECT_EQ(pop_context().get(), nullptr);
  }).join();
  EXPECT_EQ(current_context().get(), process().device(0)->primary);
}

TEST_F(ProcessTest, AnUnknownAddressGoesToItsWindowsServer) {
  const auto route_to = [](uint64_t address) {
    const auto found = find_address_route(address);
    EXPECT_EQ(found.result(), CUDA_SUCCESS);
    return *found;
  };
  const CUdeviceptr there = allocate(second_session(), 0x1000, 64);
  EXPECT_EQ(route_to(there + 8).session, &second_session());
  // In the window but in no known allocation, such as memory of a pool.
  const Route route = route_to(second_session().welcome().windows.front().base + 0x100000);
  EXPECT_EQ(route.session, &second_session());
  EXPECT_EQ(route.device, 1u);
  int host = 0;
  EXPECT_EQ(route_to(reinterpret_cast<uintptr_t>(&host)).session, &first_session());
}

}  // namespace
}  // namespace rcuda::client

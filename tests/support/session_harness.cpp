#include "tests/support/session_harness.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include <gtest/gtest.h>

#include "tests/support/channel_calls.h"

namespace rcuda::test {
namespace {

using Window = wire::ClientWindow;

constexpr auto kPatience = std::chrono::seconds(60);

}  // namespace

TestDriver& TestDriver::get() {
  static TestDriver* driver = [] {
    ::setenv("SOFTGPU_DEVICES", "2", 0);
    auto* made = new TestDriver;
    const Status loaded = api::load(&made->table, RCUDA_TEST_DRIVER);
    if (!loaded.ok() || made->table.cuInit(0) != CUDA_SUCCESS) {
      ADD_FAILURE() << "cannot load the driver: " << loaded.message();
      std::abort();
    }
    auto staging = server::StagingMemory::make(8u << 20);
    if (!staging.ok()) {
      ADD_FAILURE() << "cannot make staging memory: " << staging.status().message();
      std::abort();
    }
    auto devices = server::DeviceSet::prepare(made->table, {}, std::move(staging).value());
    if (!devices.ok()) {
      ADD_FAILURE() << "cannot prepare the devices: " << devices.status().message();
      std::abort();
    }
    made->devices = std::move(devices).value();
    return made;
  }();
  return *driver;
}

// ---- client ------------------------------------------------------------------------------------

ProtocolClient::ProtocolClient(transport::Link& link)
    : channel_(link, std::chrono::nanoseconds(0), kPatience),
      events_(link, wire::kEventRingLayout) {}

Status ProtocolClient::post(uint16_t opcode, std::span<const std::byte> body, uint32_t context) {
  return channel_.send({.context = context, .thread = 1}, {opcode, body});
}

std::optional<ProtocolClient::Answer> ProtocolClient::call(uint16_t opcode,
                                                           std::span<const std::byte> body,
                                                           uint32_t context) {
  uint32_t result = 0;
  wire::Reply reply;
  const Status called = test::call(channel_, {.context = context, .thread = 1}, {opcode, body},
                                   wire::Channel::kMostReplyBytes, &result, &reply);
  if (!called.ok()) return std::nullopt;
  return Answer{static_cast<CUresult>(result), {reply.body().begin(), reply.body().end()}};
}

bool ProtocolClient::word_reached(uint32_t word, uint64_t sequence) {
  uint32_t result = 0;
  return channel_.word_reached({word, sequence}, &result);
}

std::optional<CUresult> ProtocolClient::wait_word(uint32_t word, uint64_t sequence) {
  uint32_t result = 0;
  if (!test::wait_word(channel_, {word, sequence}, &result).ok()) return std::nullopt;
  return static_cast<CUresult>(result);
}

uint64_t ProtocolClient::error_word() { return channel_.error_word(); }

std::vector<std::byte> ProtocolClient::next_event() {
  (void)link().wait([&] { return events_.pending(); },
                    std::chrono::steady_clock::now() + kPatience);
  auto frame = events_.try_next();
  if (!frame.ok()) return {};
  return {frame->begin(), frame->end()};
}

void ProtocolClient::acknowledge(uint32_t slot, uint64_t sequence) {
  (void)link().put(wire::WorkerWindow::kCallbackAcks + 8ull * slot,
                   std::as_bytes(std::span(&sequence, 1)), {}, transport::Wake::kYes);
}

// ---- session -----------------------------------------------------------------------------------

SessionHarness::SessionHarness(const Options& options) {
  TestDriver& driver = TestDriver::get();
  transport::LinkOptions client_options, worker_options;
  client_options.window_bytes = Window::kBytes;
  worker_options.window_bytes = wire::WorkerWindow::kBytes;
  auto links = make_link_pair(*options.medium, client_options, worker_options);
  if (!links.ok()) {
    ADD_FAILURE() << "cannot make the Links: " << links.status().message();
    std::abort();
  }
  links_ = std::move(links).value();
  UniqueFd folder = options.image_folder.empty()
                        ? UniqueFd()
                        : open_cache_directory(options.image_folder).value();
  images_ = std::make_unique<server::ImageCache>(std::move(folder), 64u << 20);
  wire::Welcome welcome;
  const Status selected = driver.devices->select(options.devices, &welcome, &resources_);
  EXPECT_TRUE(selected.ok()) << selected.message();
  resources_.link = links_.server.get();
  resources_.images = images_.get();
  resources_.host_memory.shared_address_space = true;
  resources_.limits = options.limits;
  resources_.movable_memory = options.movable_memory;
  if (options.quota) resources_.quota = options.quota;
  server::SessionLoopOptions loop_options{options.spin, options.now};
  loop_options.parker = options.parker;
  loop_options.oversubscribes = options.oversubscribes;
  loop_ = std::make_unique<server::SessionLoop>(resources_, loop_options);
  thread_ = std::thread([this] {
    outcome_ = loop_->run();
    links_.server->close();
  });
  client_ = std::make_unique<ProtocolClient>(*links_.client);
  const std::vector<std::byte> event = client_->next_event();
  EXPECT_EQ(event.size(), sizeof ready_);
  if (event.size() == sizeof ready_) std::memcpy(&ready_, event.data(), sizeof ready_);
  EXPECT_EQ(ready_.header.event, wire::Event::kReady);
  EXPECT_EQ(ready_.staging_bytes, welcome.staging_bytes);
}

SessionHarness::~SessionHarness() {
  if (thread_.joinable()) {
    loop_->stop();
    links_.client->close();
    thread_.join();
  }
  // The driver's threads may still be in host functions of this session. These return because the
  // Link is closed.
  for (const server::SessionDevice& device : resources_.devices) {
    driver().cuCtxSetCurrent(device.primary);
    driver().cuCtxSynchronize();
  }
}

std::byte* SessionHarness::staging() { return resources_.staging; }

Status SessionHarness::wait_end() {
  if (thread_.joinable()) thread_.join();
  return outcome_;
}

Status SessionHarness::end() {
  (void)client_->post(static_cast<uint16_t>(wire::Custom::kSessionEnd), {}, 0);
  return wait_end();
}

void SessionHarness::cut() { links_.cut(); }

}  // namespace rcuda::test

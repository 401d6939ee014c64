#include "tests/support/session_harness.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <gtest/gtest.h>

namespace rcuda::test {
namespace {

using Clock = std::chrono::steady_clock;
using Window = wire::ClientWindow;

Clock::time_point patience() { return Clock::now() + std::chrono::seconds(60); }

}  // namespace

TestDriver& TestDriver::get() {
  static TestDriver* driver = [] {
    ::setenv("SOFTGPU_DEVICES", "2", 0);
    auto* made = new TestDriver;
    const Status loaded = api::load(&made->table, RCUDA_TEST_DRIVER);
    if (!loaded.ok() || made->table.cuInit(0) != CUDA_SUCCESS) {
      ADD_FAILURE() << "no driver: " << loaded.message();
      std::abort();
    }
    auto staging = server::StagingMemory::make(8u << 20);
    if (!staging.ok()) {
      ADD_FAILURE() << staging.status().message();
      std::abort();
    }
    auto devices = server::DeviceSet::prepare(made->table, {}, std::move(staging).value());
    if (!devices.ok()) {
      ADD_FAILURE() << devices.status().message();
      std::abort();
    }
    made->devices = std::move(devices).value();
    return made;
  }();
  return *driver;
}

// ---- client ------------------------------------------------------------------------------------

ProtocolClient::ProtocolClient(transport::Link& link)
    : link_(link),
      commands_(link, wire::kCommandRingLayout),
      events_(link, wire::kEventRingLayout) {}

Status ProtocolClient::send_frame(std::span<const std::byte> frame) {
  return commands_.append(frame, {}, transport::Wake::kYes, patience());
}

Status ProtocolClient::post(uint16_t opcode, std::span<const std::byte> body, uint32_t context) {
  wire::CommandHeader header{};
  header.opcode = opcode;
  header.context = context;
  header.thread = 1;
  std::lock_guard lock(mutex_);
  return commands_.append(std::as_bytes(std::span(&header, 1)), body, transport::Wake::kYes,
                          patience());
}

std::optional<ProtocolClient::Answer> ProtocolClient::call(uint16_t opcode,
                                                           std::span<const std::byte> body,
                                                           uint32_t context) {
  wire::CommandHeader header{};
  header.opcode = opcode;
  header.context = context;
  header.call = next_call_++;
  header.reply_slot = static_cast<uint32_t>(Window::kLargeReplies);
  header.reply_bytes = Window::kLargeReplyBytes;
  header.thread = 1;
  return call_with(header, body);
}

std::optional<ProtocolClient::Answer> ProtocolClient::call_with(const wire::CommandHeader& header,
                                                                std::span<const std::byte> body) {
  {
    std::lock_guard lock(mutex_);
    if (!commands_
             .append(std::as_bytes(std::span(&header, 1)), body, transport::Wake::kYes, patience())
             .ok()) {
      return std::nullopt;
    }
  }
  const uint64_t stamp_at = header.reply_slot + header.reply_bytes - 8;
  const auto arrived = [&] { return wire::ReplyStamp::call(load(stamp_at)) == header.call; };
  if (!link_.wait(arrived, patience()).ok() && !arrived()) return std::nullopt;
  const uint32_t bytes = wire::ReplyStamp::body_bytes(load(stamp_at));
  const uint32_t padded = (bytes + 7) & ~7u;
  if (bytes < sizeof(wire::ReplyHeader) || bytes > header.reply_bytes - 8) return std::nullopt;
  const std::byte* at = link_.window().data() + stamp_at - padded;
  wire::ReplyHeader reply;
  std::memcpy(&reply, at, sizeof reply);
  return Answer{
      static_cast<CUresult>(reply.result), reply.events_before, {at + sizeof reply, at + bytes}};
}

uint64_t ProtocolClient::load(uint64_t offset) {
  auto* word = reinterpret_cast<uint64_t*>(link_.window().data() + offset);
  return std::atomic_ref(*word).load(std::memory_order_acquire);
}

bool ProtocolClient::word_reached(uint32_t word, uint64_t sequence) {
  return wire::CompletionWord::sequence(load(Window::kCompletionWords + 8ull * word)) >= sequence;
}

std::optional<CUresult> ProtocolClient::wait_word(uint32_t word, uint64_t sequence) {
  const auto reached = [&] { return word_reached(word, sequence); };
  if (!link_.wait(reached, patience()).ok() && !reached()) return std::nullopt;
  return static_cast<CUresult>(
      wire::CompletionWord::result(load(Window::kCompletionWords + 8ull * word)));
}

uint64_t ProtocolClient::error_word() { return load(Window::kErrorWord); }

std::vector<std::byte> ProtocolClient::next_event() {
  (void)link_.wait([&] { return events_.pending(); }, patience());
  auto frame = events_.try_next();
  if (!frame.ok()) return {};
  return {frame->begin(), frame->end()};
}

void ProtocolClient::acknowledge(uint32_t slot, uint64_t sequence) {
  (void)link_.put(wire::WorkerWindow::kCallbackAcks + 8ull * slot,
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
    ADD_FAILURE() << links.status().message();
    std::abort();
  }
  links_ = std::move(links).value();
  images_ = std::make_unique<server::ImageCache>(options.image_folder, 64u << 20);
  wire::Welcome welcome;
  const Status selected = driver.devices->select(options.devices, &welcome, &resources_);
  EXPECT_TRUE(selected.ok()) << selected.message();
  resources_.link = links_.server.get();
  resources_.images = images_.get();
  resources_.host_memory.shared_address_space = true;
  resources_.allow_faults = options.allow_faults;
  resources_.limits = options.limits;
  if (options.quota) resources_.quota = options.quota;
  loop_ = std::make_unique<server::SessionLoop>(
      resources_, server::SessionLoopOptions{options.spin, options.now});
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

#include "tests/support/puppet_server.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <utility>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/traits.h"
#include "common/base/peer_order.h"
#include "common/messages/message_io.h"
#include "common/reach/connect.h"
#include "common/wire/address_ranges.h"
#include "tests/support/tcp_sockets.h"

namespace rcuda::test {
namespace {

using Clock = std::chrono::steady_clock;
using Window = wire::ClientWindow;

Clock::time_point patience() { return Clock::now() + std::chrono::seconds(60); }

// Listens at the Unix socket of the server with the port `port`, to which clients of this machine
// connect. No TCP port is involved, so the system cannot choose a free number. The caller tries
// numbers upwards from a number that depends on its process id, so that concurrent tests rarely
// collide.
UniqueFd listen_for(uint16_t port) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const wire::LocalAddress address(port);
  if (::bind(socket.get(), address.get(), address.bytes()) != 0 || ::listen(socket.get(), 4) != 0) {
    return {};
  }
  return socket;
}

struct WordToWrite {
  uint32_t index;
  uint64_t sequence;
};

// The completion word that a command carries.
std::optional<WordToWrite> word_of(const PuppetServer::Command& command) {
  const api::CommandTraits& traits = api::traits_of(command.header.opcode);
  const auto index = api::member(std::span(command.body), traits.word);
  const auto sequence = api::member<uint64_t>(std::span(command.body), traits.sequence);
  if (!index || !sequence) return std::nullopt;
  return WordToWrite{*index, *sequence};
}

}  // namespace

wire::Welcome PuppetServer::welcome_with(uint32_t devices) {
  static std::atomic<uint32_t> made{0};
  const uint32_t base = kFirstBase + made++ % (wire::kBaseCount - kFirstBase);
  wire::Welcome welcome;
  welcome.windows = {{wire::kBases.begin + base * wire::kBaseBytes, wire::kBaseBytes}};
  welcome.driver_version = 13000;
  welcome.worker_pid = static_cast<uint32_t>(::getpid());
  welcome.server = "puppet";
  welcome.staging_bytes = kStagingBytes;
  for (uint32_t i = 0; i < devices; ++i) {
    wire::DeviceInfo device;
    device.name = "Puppet";
    device.pci_bus_id = "0000:0" + std::to_string(i + 1) + ":00.0";
    device.total_bytes = 1u << 30;
    device.ordinal = i;
    device.attributes.assign(CU_DEVICE_ATTRIBUTE_MAX, 1);
    device.peer_attributes.assign(4 * devices, 0);
    welcome.devices.push_back(device);
  }
  return welcome;
}

PuppetServer::PuppetServer(wire::Welcome welcome, transport::Reach reach)
    : welcome_(std::move(welcome)) {
  if (reach == transport::Reach::kNetwork) {
    if (Result<UniqueFd> made = listening_tcp("127.0.0.1", &port_); made.ok()) {
      listening_ = std::move(made).value();
    }
  }
  for (uint32_t port = 20000 + static_cast<uint32_t>(::getpid()) % 20000;
       port < 65536 && !listening_; ++port) {
    listening_ = listen_for(static_cast<uint16_t>(port));
    port_ = static_cast<uint16_t>(port);
  }
  thread_ = std::thread([this] { run(); });
}

PuppetServer::~PuppetServer() {
  stop_.store(true);
  ::shutdown(listening_.get(), SHUT_RDWR);  // wakes an accept()
  {
    std::lock_guard lock(mutex_);
    if (connected_) link_->interrupt();
  }
  thread_.join();
  link_.reset();
  if (staging_) ::munmap(staging_, kStagingBytes + kMarkBytes);
}

transport::Link& PuppetServer::link() {
  await_client();
  return *link_;
}

uint64_t* PuppetServer::marks() { return reinterpret_cast<uint64_t*>(staging() + kStagingBytes); }

std::byte* PuppetServer::staging() {
  await_client();
  return staging_;
}

const wire::Hello& PuppetServer::hello() {
  await_client();
  return hello_;
}

void PuppetServer::await_client() {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, std::chrono::seconds(60), [this] { return connected_; })) {
    ADD_FAILURE() << "no client connected to the puppet server within 60 s";
    std::abort();
  }
}

void PuppetServer::on(uint16_t opcode, Handler handler) {
  std::lock_guard lock(mutex_);
  handlers_[opcode] = std::move(handler);
}

std::vector<PuppetServer::Command> PuppetServer::taken(uint16_t opcode) {
  std::lock_guard lock(mutex_);
  const auto first = std::stable_partition(
      commands_.begin(), commands_.end(),
      [&](const Command& command) { return command.header.opcode != opcode; });
  std::vector<Command> found(std::make_move_iterator(first),
                             std::make_move_iterator(commands_.end()));
  commands_.erase(first, commands_.end());
  return found;
}

void PuppetServer::set_error(CUresult error) {
  await_client();
  const uint64_t word = wire::CompletionWord::make(++errors_, static_cast<uint32_t>(error));
  put(Window::kErrorWord, std::as_bytes(std::span(&word, 1)));
}

void PuppetServer::send_event(std::span<const std::byte> frame) {
  await_client();
  const Status sent = events_->append(frame, {}, transport::Wake::kYes, patience());
  EXPECT_TRUE(sent.ok()) << sent.message();
}

void PuppetServer::run() {
  const Status welcomed = welcome_client();
  if (!welcomed.ok()) {
    if (!stop_.load() && !client_may_leave_.load())
      ADD_FAILURE() << "the puppet server cannot welcome its client: " << welcomed.message();
    return;
  }
  wire::RingReader commands(*link_, wire::kCommandRingLayout);
  while (!stop_.load() && link_->status().ok()) {
    (void)link_->wait([&] { return stop_.load() || commands.pending(); }, patience());
    auto frame = commands.try_next();
    if (!frame.ok()) {
      ADD_FAILURE() << "the client's command ring is damaged: " << frame.status().message();
      return;
    }
    if (!frame->empty()) serve(*frame);
  }
}

Result<UniqueFd> PuppetServer::accept() {
  UniqueFd socket(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket) return Status::from_errno(errno, "accept");
  return socket;
}

Status PuppetServer::welcome_client() {
  transport::Bootstrap bootstrap;
  Result<UniqueFd> control = accept();
  if (!control) return control.status();
  bootstrap.control = std::move(control).value();
  bootstrap.accept_stream = [this](int) -> Result<Socket> {
    Result<UniqueFd> stream = accept();
    if (!stream) return stream.status();
    auto attach = wire::read_message(stream->get(), patience());
    if (!attach.ok()) return attach.status();
    return Socket(std::move(stream).value());
  };
  auto message = wire::read_message(bootstrap.control, patience());
  if (!message.ok()) return message.status();
  auto hello = wire::decode<wire::Hello>(message->second);
  if (!hello.ok()) return hello.status();
  hello_ = std::move(hello).value();
  RCUDA_RETURN_IF_ERROR(wire::write_message(bootstrap.control, wire::MessageType::kWelcome,
                                            wire::encode(welcome_), patience()));
  bootstrap.server = true;
  bootstrap.timeout = std::chrono::seconds(60);
  transport::LinkOptions options;
  options.window_bytes = wire::WorkerWindow::kBytes;
  const transport::Medium* const medium = transport::find_medium(hello_.medium);
  if (!medium)
    return Status(Code::kProtocol, "the puppet server does not know the client's medium");
  auto made = transport::make_link(*medium, std::move(bootstrap), options);
  if (!made.ok()) return made.status();
  link_ = std::move(made).value();
  const UniqueFd backing(::memfd_create("puppet-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!backing || ::ftruncate(backing.get(), kStagingBytes + kMarkBytes) != 0) {
    return Status::from_errno(errno, "memfd");
  }
  void* memory = ::mmap(nullptr, kStagingBytes + kMarkBytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                        backing.get(), 0);
  if (memory == MAP_FAILED) return Status::from_errno(errno, "mmap");
  staging_ = static_cast<std::byte*>(memory);
  auto region = link_->expose(staging_, kStagingBytes, backing.get(), 0);
  if (!region.ok()) return region.status();
  events_ = std::make_unique<wire::RingWriter>(*link_, wire::kEventRingLayout);
  wire::ReadyEvent ready{
      {wire::Event::kReady, 40}, static_cast<uint64_t>(region->id), kStagingBytes, 0, 0, 64};
  if (link_->traits().shares_pages) {
    auto marks = link_->expose(staging_ + kStagingBytes, kMarkBytes, backing.get(), kStagingBytes);
    if (!marks.ok()) return marks.status();
    ready.marks_region = static_cast<uint64_t>(marks->id);
    ready.marks_bytes = marks->bytes;
  }
  RCUDA_RETURN_IF_ERROR(
      events_->append(std::as_bytes(std::span(&ready, 1)), {}, transport::Wake::kYes, patience()));
  std::lock_guard lock(mutex_);
  connected_ = true;
  changed_.notify_all();
  return {};
}

void PuppetServer::serve(std::span<const std::byte> frame) {
  Command command;
  if (frame.size() < sizeof command.header) {
    ADD_FAILURE() << "the client sent a command of " << frame.size()
                  << " bytes, shorter than its header";
    return;
  }
  std::memcpy(&command.header, frame.data(), sizeof command.header);
  frame = frame.subspan(sizeof command.header);
  command.body.assign(frame.begin(), frame.end());
  Handler handler;
  {
    std::lock_guard lock(mutex_);
    if (auto found = handlers_.find(command.header.opcode); found != handlers_.end()) {
      handler = found->second;
    }
    commands_.push_back(command);
  }
  after_peer(this);
  const std::optional<Answer> answer = handler ? handler(command) : Answer{};
  before_peer(this);
  if (!answer) return;
  if (const auto word = word_of(command); word && word->sequence != 0) {
    const uint64_t value =
        wire::CompletionWord::make(word->sequence, static_cast<uint32_t>(answer->result));
    put(Window::kCompletionWords + 8ull * word->index, std::as_bytes(std::span(&value, 1)));
  }
  if (command.header.call != 0) reply(command.header, *answer);
}

void PuppetServer::put(uint64_t offset, std::span<const std::byte> bytes) {
  (void)link_->put(offset, bytes, {}, transport::Wake::kYes);  // the client may have ended
}

void PuppetServer::reply(const wire::CommandHeader& header, const Answer& answer) {
  const wire::ReplyHeader head{static_cast<uint32_t>(answer.result), 0};
  const size_t body_bytes = sizeof head + answer.body.size();
  std::vector<std::byte> bytes((body_bytes + 7) / 8 * 8 + sizeof(uint64_t));
  std::memcpy(bytes.data(), &head, sizeof head);
  std::copy(answer.body.begin(), answer.body.end(), bytes.begin() + sizeof head);
  const uint64_t stamp = wire::ReplyStamp::make(header.call, static_cast<uint32_t>(body_bytes));
  std::memcpy(bytes.data() + bytes.size() - sizeof stamp, &stamp, sizeof stamp);
  put(header.reply_slot + header.reply_bytes - bytes.size(), bytes);
}

}  // namespace rcuda::test

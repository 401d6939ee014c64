#include "client/session/session.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "client/memory/mirror.h"
#include "client/session/connect.h"
#include "client/session/staging.h"
#include "common/base/log.h"

namespace rcuda::client {
namespace {

using Clock = std::chrono::steady_clock;
using Window = wire::ClientWindow;
constexpr auto kForever = std::chrono::hours(24);

// A reply comes within microseconds: spinning that long beats sleeping and waking. With few cores
// the spinner may be what keeps the worker from running.
std::chrono::nanoseconds spin_time() {
  return std::thread::hardware_concurrency() >= 4 ? std::chrono::microseconds(50)
                                                  : std::chrono::microseconds(3);
}

// The client never touches device addresses; reserving them keeps its own mappings out of the
// range, so that a number is a device address or a host address and never both.
void reserve_window(const wire::AddressWindow& window, const std::string& server) {
  if (window.bytes == 0) return;
  void* wanted = reinterpret_cast<void*>(window.base);
  void* got = mmap(wanted, window.bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (got == wanted) return;
  if (got != MAP_FAILED) munmap(got, window.bytes);
  RCUDA_WARN("the device addresses of %s overlap memory of this process at %p: pointers of both may "
             "be confused", server.c_str(), wanted);
}

Result<wire::Welcome> shake_hands(const UniqueFd& socket, const wire::Hello& hello,
                                  Clock::time_point deadline) {
  RCUDA_RETURN_IF_ERROR(
      wire::write_message(socket.get(), wire::MessageType::kHello, wire::encode(hello), deadline));
  auto message = wire::read_message(socket.get(), deadline);
  if (!message) return message.status();
  if (message->first == wire::MessageType::kRefusal) {
    Result<wire::Refusal> refusal = wire::decode_refusal(message->second);
    if (!refusal) return refusal.status();
    return Status(Code::kUnavailable, "the session was refused: " + refusal->reason);
  }
  if (message->first != wire::MessageType::kWelcome) {
    return Status(Code::kProtocol, "the server answered with message type " +
                                       std::to_string(static_cast<uint32_t>(message->first)));
  }
  return wire::decode_welcome(message->second);
}

Result<std::unique_ptr<transport::Link>> make_link(Connection connection, const ServerDevices& server,
                                                   const wire::Welcome& welcome,
                                                   const SessionOptions& options) {
  transport::Bootstrap bootstrap;
  bootstrap.control = std::move(connection.socket);
  bootstrap.timeout = options.handshake_timeout;
  switch (connection.medium) {
    case wire::Medium::kShm: return transport::make_shm_link(std::move(bootstrap), options.link);
    case wire::Medium::kVerbs: return transport::make_verbs_link(std::move(bootstrap), options.link);
    default: break;
  }
  bootstrap.open_stream = [&](int index) -> Result<UniqueFd> {
    const auto deadline = Clock::now() + options.connect_timeout;
    Result<UniqueFd> socket = connect_tcp(server.host, server.port, deadline);
    if (!socket) return socket;
    wire::Attach attach;
    std::memcpy(attach.token, welcome.token, sizeof attach.token);
    attach.index = static_cast<uint32_t>(index);
    RCUDA_RETURN_IF_ERROR(wire::write_message(socket->get(), wire::MessageType::kAttach,
                                              wire::encode(attach), deadline));
    return socket;
  };
  return transport::make_tcp_link(std::move(bootstrap), options.link);
}

const char* medium_name(wire::Medium medium) {
  switch (medium) {
    case wire::Medium::kShm: return "shm";
    case wire::Medium::kVerbs: return "verbs";
    default: return "tcp";
  }
}

}  // namespace

uint32_t thread_number() {
  static std::atomic<uint32_t> threads{0};
  thread_local const uint32_t number = threads.fetch_add(1, std::memory_order_relaxed) + 1;
  return number;
}

bool is_sticky(CUresult result) {
  switch (result) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case kSessionLost: return true;
    default: return false;
  }
}

Result<std::unique_ptr<Session>> Session::open(const ServerDevices& server,
                                               const SessionOptions& options) {
  const std::string address = server.host + ":" + std::to_string(server.port);
  const wire::Medium wanted =
      server.medium != wire::Medium::kAuto ? server.medium : options.medium;
  Result<Connection> connection =
      connect_server(server.host, server.port, wanted, options.connect_timeout);
  if (!connection) return connection.status();
  const Clock::time_point deadline = Clock::now() + options.handshake_timeout;

  std::unique_ptr<Session> session(new Session);
  session->name_ = address + " over " + medium_name(connection->medium);
  session->ordinals_ = server.ordinals;
  session->synchronous_ = options.synchronous;
  session->spin_ = spin_time();

  wire::Hello hello = options.hello;
  hello.medium = connection->medium;
  hello.devices = server.gpus;
  Result<wire::Welcome> welcome = shake_hands(connection->socket, hello, deadline);
  if (!welcome) return Status(welcome.status()).with_context(address);
  session->welcome_ = std::move(welcome).value();
  if (session->welcome_.devices.size() != server.gpus.size()) {
    return Status(Code::kProtocol, address + " granted another number of devices than asked for");
  }
  reserve_window(session->welcome_.window, session->name_);

  transport::LinkOptions link_options = options.link;
  link_options.window_bytes = Window::kBytes;
  SessionOptions linked = options;
  linked.link = link_options;
  auto link = make_link(std::move(connection).value(), server, session->welcome_, linked);
  if (!link) return Status(link.status()).with_context(session->name_);
  session->link_ = std::move(link).value();
  if (session->link_->peer_window_bytes() < wire::WorkerWindow::kBytes ||
      session->link_->window().size() < Window::kBytes) {
    return Status(Code::kProtocol, session->name_ + ": the worker's window is too small");
  }
  session->commands_ring_ = std::make_unique<wire::RingWriter>(
      *session->link_, wire::kCommandRingLayout);
  session->events_ = std::make_unique<EventThread>(*session->link_);

  for (uint32_t i = Window::kSmallReplyCount; i-- > 0;) {
    session->small_slots_.push_back(
        static_cast<uint32_t>(Window::kSmallReplies + uint64_t{i} * Window::kSmallReplyBytes));
  }
  for (uint32_t i = Window::kLargeReplyCount; i-- > 0;) {
    session->large_slots_.push_back(
        static_cast<uint32_t>(Window::kLargeReplies + uint64_t{i} * Window::kLargeReplyBytes));
  }
  for (uint32_t i = Window::kCompletionCount; i-- > 0;) session->free_words_.push_back({i, 0});

  Result<wire::ReadyEvent> ready = session->events_->ready(deadline);
  if (!ready) return Status(ready.status()).with_context(session->name_);
  auto staging = Staging::open(*session, *ready);
  if (!staging) return Status(staging.status()).with_context(session->name_);
  session->staging_ = std::move(staging).value();
  RCUDA_INFO("connected to %s: %zu device(s), driver %u, worker %u", session->name_.c_str(),
             server.gpus.size(), session->welcome_.driver_version, session->welcome_.worker_pid);
  return session;
}

Session::~Session() {
  events_.reset();
  staging_.reset();
}

// ---- commands ----------------------------------------------------------------------------------

CUresult Session::send(const wire::CommandHeader& header, std::span<const std::byte> body,
                       std::span<const std::byte> tail) {
  // Header and body travel as one piece; bodies are small, and tails (bytes to copy, parameters)
  // are not copied here.
  std::byte head[sizeof header + 1024];
  std::span<const std::byte> first;
  std::vector<std::byte> large;
  if (body.size() <= 1024) {
    std::memcpy(head, &header, sizeof header);
    if (!body.empty()) std::memcpy(head + sizeof header, body.data(), body.size());
    first = {head, sizeof header + body.size()};
  } else {
    if (body.size() + tail.size() + sizeof header > wire::kMaxCommandBytes) {
      RCUDA_ERROR("a command of %zu bytes exceeds the limit of %u", body.size() + tail.size(),
                  wire::kMaxCommandBytes);
      return CUDA_ERROR_INVALID_VALUE;
    }
    large.resize(sizeof header + body.size());
    std::memcpy(large.data(), &header, sizeof header);
    std::memcpy(large.data() + sizeof header, body.data(), body.size());
    first = large;
  }
  commands_.fetch_add(1, std::memory_order_relaxed);
  std::lock_guard lock(order_mutex_);
  if (!commands_ring_->append(first, tail, transport::Wake::kYes).ok()) return session_lost();
  return CUDA_SUCCESS;
}

CUresult Session::post(wire::ObjectId context, uint16_t opcode, std::span<const std::byte> body,
                       std::span<const std::byte> tail) {
  if (synchronous_) {
    Reply reply;
    return call(context, opcode, body, tail, 0, &reply);
  }
  wire::CommandHeader header{};
  header.opcode = opcode;
  header.context = context;
  header.thread = thread_number();
  if (CUresult result = send(header, body, tail); result != CUDA_SUCCESS) return result;
  return take_error();
}

CUresult Session::call(wire::ObjectId context, uint16_t opcode, std::span<const std::byte> body,
                       std::span<const std::byte> tail, size_t reply_bytes, Reply* reply) {
  const Slot slot = acquire_slot(reply_bytes);
  uint32_t call = next_call_.fetch_add(1, std::memory_order_relaxed);
  if (call == 0) call = next_call_.fetch_add(1, std::memory_order_relaxed);
  wire::CommandHeader header{};
  header.opcode = opcode;
  header.context = context;
  header.call = call;
  header.reply_slot = slot.offset;
  header.reply_bytes = slot.bytes;
  header.thread = thread_number();
  CUresult result = send(header, body, tail);
  if (result == CUDA_SUCCESS) result = wait_for_reply(slot, call, reply);
  if (!reply->session_) release_slot(slot.offset);
  return result;
}

Session::Slot Session::acquire_slot(size_t reply_bytes) {
  const bool small =
      reply_bytes + sizeof(wire::ReplyHeader) + sizeof(uint64_t) <= Window::kSmallReplyBytes;
  std::vector<uint32_t>& slots = small ? small_slots_ : large_slots_;
  while (true) {
    {
      std::lock_guard lock(slots_mutex_);
      if (!slots.empty()) {
        const uint32_t offset = slots.back();
        slots.pop_back();
        return {offset, small ? Window::kSmallReplyBytes : Window::kLargeReplyBytes};
      }
    }
    // A thousand threads wait for replies: theirs will come.
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void Session::release_slot(uint32_t offset) {
  std::lock_guard lock(slots_mutex_);
  (offset < Window::kLargeReplies ? small_slots_ : large_slots_).push_back(offset);
}

const std::atomic<uint64_t>& Session::client_word(uint64_t offset) const {
  return *reinterpret_cast<const std::atomic<uint64_t>*>(const_cast<transport::Link&>(*link_).window().data() + offset);
}

template <typename Ready>
CUresult Session::wait_until(const Ready& ready) {
  const Clock::time_point spin_end = Clock::now() + spin_;
  do {
    for (int i = 0; i < 64; ++i) {
      if (ready()) return CUDA_SUCCESS;
      __builtin_ia32_pause();
    }
  } while (Clock::now() < spin_end);
  while (true) {
    const Status status = link_->wait(ready, Clock::now() + kForever);
    if (status.ok()) return CUDA_SUCCESS;
    if (status.code() != Code::kTimeout) return ready() ? CUDA_SUCCESS : session_lost();
  }
}

CUresult Session::wait_for_reply(const Slot& slot, uint32_t call, Reply* reply) {
  const std::atomic<uint64_t>& stamp = client_word(slot.offset + slot.bytes - sizeof(uint64_t));
  // Acquire pairs with the worker's put: the body is there when the stamp is.
  const auto arrived = [&] {
    return wire::ReplyStamp::call(stamp.load(std::memory_order_acquire)) == call;
  };
  if (CUresult result = wait_until(arrived); result != CUDA_SUCCESS) return result;
  const uint32_t body_bytes = wire::ReplyStamp::body_bytes(stamp.load(std::memory_order_acquire));
  if (body_bytes < sizeof(wire::ReplyHeader) || body_bytes > slot.bytes - sizeof(uint64_t)) {
    RCUDA_ERROR("%s sent a reply of %u bytes into a slot of %u: the session ends", name_.c_str(),
                body_bytes, slot.bytes);
    link_->close();
    return session_lost();
  }
  const uint32_t padded = (body_bytes + 7) & ~7u;
  const std::byte* body =
      link_->window().data() + slot.offset + slot.bytes - sizeof(uint64_t) - padded;
  wire::ReplyHeader header;
  std::memcpy(&header, body, sizeof header);
  reply->session_ = this;
  reply->slot_ = slot.offset;
  reply->body_ = {body + sizeof header, body_bytes - sizeof header};
  events_->drain_output();
  return static_cast<CUresult>(header.result);
}

Reply::~Reply() {
  if (session_) session_->release_slot(slot_);
}

// ---- completion words --------------------------------------------------------------------------

Session::Word Session::acquire_word() {
  while (true) {
    {
      std::lock_guard lock(words_mutex_);
      if (!free_words_.empty()) {
        const Word word = free_words_.back();
        free_words_.pop_back();
        return word;
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void Session::release_word(Word word) {
  std::lock_guard lock(words_mutex_);
  free_words_.push_back(word);
}

bool Session::word_reached(uint32_t index, uint64_t sequence, CUresult* result) const {
  const uint64_t value =
      client_word(Window::kCompletionWords + 8ull * index).load(std::memory_order_acquire);
  if (wire::CompletionWord::sequence(value) < sequence) return false;
  *result = static_cast<CUresult>(wire::CompletionWord::result(value));
  return true;
}

CUresult Session::wait_word(uint32_t index, uint64_t sequence) {
  CUresult result = CUDA_SUCCESS;
  const auto reached = [&] { return word_reached(index, sequence, &result); };
  if (CUresult waited = wait_until(reached); waited != CUDA_SUCCESS) return waited;
  events_->drain_output();
  return result;
}

CUresult Session::signal_and_wait(wire::ObjectId context, wire::Custom opcode,
                                  wire::ObjectId stream) {
  Word word = acquire_word();
  const wire::SignalBody body{stream, word.index, ++word.sequence};
  CUresult result =
      post(context, static_cast<uint16_t>(opcode), std::as_bytes(std::span(&body, 1)));
  // Posted, the signal comes even if an earlier error was reported just now: the word is waited for
  // before it may change hands.
  const CUresult waited = lost() ? session_lost() : wait_word(word.index, word.sequence);
  release_word(word);
  if (result == CUDA_SUCCESS) result = waited;
  if (result == CUDA_SUCCESS) result = pull_mirrors(*this);
  return result == CUDA_SUCCESS ? take_error() : result;
}

CUresult Session::synchronize(wire::ObjectId context, wire::ObjectId stream) {
  return signal_and_wait(context, wire::Custom::kSignal, stream);
}

CUresult Session::synchronize_context(wire::ObjectId context) {
  return signal_and_wait(context, wire::Custom::kSynchronizeContext, 0);
}

// ---- objects the worker named --------------------------------------------------------------------

namespace {
uint64_t object_key(wire::Kind kind, wire::ObjectId id) {
  return static_cast<uint64_t>(kind) << 32 | id;
}
}  // namespace

void Session::remember(Object* object, wire::Kind kind) {
  std::lock_guard lock(objects_mutex_);
  objects_[object_key(kind, object->id)] = object;
}

Object* Session::adopted(wire::Kind kind, wire::ObjectId id, wire::ObjectId context,
                         uint32_t device) {
  const uint64_t key = object_key(kind, id);
  std::lock_guard lock(objects_mutex_);
  if (auto found = objects_.find(key); found != objects_.end()) return found->second;
  Object* object = create_object(kind);
  if (!object) return nullptr;
  object->id = id;
  object->session = this;
  object->context = context;
  object->device = device;
  objects_.emplace(key, object);
  return object;
}

void Session::forget(wire::Kind kind, wire::ObjectId id) {
  std::lock_guard lock(objects_mutex_);
  objects_.erase(object_key(kind, id));
}

// ---- errors and the end ------------------------------------------------------------------------

CUresult Session::peek_error() const {
  if (lost()) return kSessionLost;
  return static_cast<CUresult>(client_word(Window::kErrorWord).load(std::memory_order_acquire));
}

CUresult Session::take_error() {
  const uint64_t error = client_word(Window::kErrorWord).load(std::memory_order_acquire);
  if (error == 0) [[likely]] return CUDA_SUCCESS;
  const auto result = static_cast<CUresult>(wire::CompletionWord::result(error));
  if (is_sticky(result)) return result;
  // Reported once, like any error that leaves the context usable.
  if (reported_error_.exchange(error) == error) return CUDA_SUCCESS;
  return result;
}

CUresult Session::session_lost() {
  if (!loss_logged_.exchange(true)) {
    RCUDA_ERROR("%s is lost: %s; every call on its devices returns an error from now on",
                name_.c_str(), link_->status().message().c_str());
  }
  return kSessionLost;
}

void Session::abandon() noexcept { link_->abandon(); }

void Session::end() {
  if (!lost()) {
    wire::CommandHeader header{};
    header.opcode = static_cast<uint16_t>(wire::Custom::kSessionEnd);
    if (send(header, {}, {}) == CUDA_SUCCESS) link_->close();
  }
}

}  // namespace rcuda::client

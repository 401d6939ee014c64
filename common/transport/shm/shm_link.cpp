// The Link between two processes of one host: each window is a memfd that both map.
//
//   page 0        WindowHeader: the doorbells on which the window's owner sleeps
//   page 1 ...    the window
//
// The memfd is sealed against resizing, so neither process can cause a fault in its peer. put() is
// a memcpy under a lock; it makes a system call only if the peer sleeps. Regions are announced over
// the control channel; the peer maps those that have a backing descriptor. The CPU of the
// requesting side copies transfers: small ones in the calling thread, large ones on a copy thread.
// The copy thread also waits for regions that the peer has not announced yet. The first transfer
// that needs the thread starts it. If it cannot be started, the calling thread copies.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <unordered_set>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/memory_file.h"
#include "common/base/mutex.h"
#include "common/base/socket_io.h"
#include "common/base/start_thread.h"
#include "common/base/units.h"
#include "common/transport/control_channel.h"
#include "common/transport/gather.h"
#include "common/transport/link_core.h"
#include "common/transport/mapping.h"
#include "common/transport/shm/medium.h"
#include "common/transport/shm/shm_messages.h"
#include "common/transport/shm/shm_regions.h"
#include "common/transport/violation.h"

namespace rcuda::transport {
namespace {

// If the region is known, a transfer of up to this size is copied before read() or write() returns;
// the copy takes about as long as waking a thread.
constexpr size_t kInlineCopyBytes = 64u << 10;
// A long copy checks after each piece of this size whether the Link still works.
constexpr size_t kCopyPieceBytes = 1u << 20;

struct Window {
  UniqueFd file;
  Mapping memory;

  WindowHeader* header() const { return reinterpret_cast<WindowHeader*>(memory.data()); }
  std::span<std::byte> bytes() const {
    return {memory.data() + kHeaderBytes, memory.size() - kHeaderBytes};
  }
};

Result<Mapping> map_window(int file, size_t bytes) {
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (base == MAP_FAILED) {
    return Status::from_errno(errno, "mapping a window of " + exact_bytes_text(bytes));
  }
  return Mapping(base, bytes);
}

Status seal_window(int file) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (::fcntl(file, F_ADD_SEALS, kSeals) == 0) return {};
  return Status::from_errno(errno, "sealing the shared memory file of a window (F_ADD_SEALS)");
}

// Makes the file of a window. The file is empty if this process may not set its size; the peer then
// sets it (memory_file.h).
Result<UniqueFd> make_window_file(size_t window_bytes) {
  RCUDA_RETURN_IF_ERROR(check_window_bytes(window_bytes, "this side's"));
  UniqueFd file = make_memory_file("rcuda-window", kHeaderBytes + window_bytes);
  if (!file) {
    return Status::from_errno(
        errno, "making a shared memory file for a window of " + exact_bytes_text(window_bytes));
  }
  if (!has_size(file.get(), 0)) RCUDA_RETURN_IF_ERROR(seal_window(file.get()));
  return file;
}

// Maps the file of a window. `whose`: for errors. The header needs no initialisation: a new file is
// all zeros, which is a valid header.
Result<Window> open_window(UniqueFd file, uint64_t window_bytes, const char* whose) {
  RCUDA_RETURN_IF_ERROR(check_window_bytes(window_bytes, whose));
  const uint64_t bytes = kHeaderBytes + window_bytes;
  const bool was_empty = has_size(file.get(), 0);
  RCUDA_RETURN_IF_ERROR(size_memory_file(file.get(), bytes));
  if (was_empty && has_size(file.get(), bytes)) RCUDA_RETURN_IF_ERROR(seal_window(file.get()));
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || !(seals & F_SEAL_SHRINK) || !has_size(file.get(), bytes)) {
    return Status{Code::kProtocol, std::string(whose) +
                                       " window: its shared memory file is not sealed against "
                                       "shrinking, or its size is not " +
                                       std::to_string(bytes) + " bytes"};
  }
  RCUDA_ASSIGN_OR_RETURN(Mapping memory, map_window(file.get(), bytes));
  return Window{std::move(file), std::move(memory)};
}

class ShmLink final : public LinkCore {
 public:
  ShmLink(Window own, Window peer, const ShmHello& own_hello, const ShmHello& peer_hello)
      : LinkCore(&own.header()->doorbell,
                 own_hello.answers.bytes != 0 ? &own.header()->elsewhere : nullptr, true),
        own_(std::move(own)),
        peer_(std::move(peer)),
        peer_bell_(&peer_.header()->doorbell, true),
        peer_elsewhere_(&peer_.header()->elsewhere, true),
        peer_answers_(peer_hello.answers),
        peer_timeout_(own_hello.greeting.peer_timeout_ms) {}
  ~ShmLink() override;

  Status start(Socket control, UniqueFd peer_process, ControlChannel::Timing timing);

  const MediumTraits& traits() const override { return shm::kTraits; }
  std::span<std::byte> window() override { return own_.bytes(); }
  size_t peer_window_bytes() const override { return peer_.bytes().size(); }
  Status put(uint64_t offset, std::span<const Bytes> pieces, Wake wake) override;
  Result<Region> expose(void* base, size_t bytes, int backing, uint64_t backing_offset) override;
  Status unexpose(RegionId region) override;
  Result<void*> map(RegionId region, size_t bytes, void* address) override;
  Status unmap(RegionId region) override;
  void write(RegionId region, uint64_t offset, const void* local, size_t bytes,
             TransferDone done) override;
  void read(RegionId region, uint64_t offset, void* local, size_t bytes,
            TransferDone done) override;
  void announce_silence(bool silent) override { control_->announce_silence(silent); }
  void close() override;
  void abandon() noexcept override { control_->abandon(); }

 private:
  struct Copy {
    RegionId region;
    uint64_t offset;
    void* local;
    size_t bytes;
    bool to_peer;
    TransferDone done;
  };

  void on_broken() override;
  Status on_message(const ControlMessage& message, UniqueFd fd);
  void transfer(Copy copy);
  Status run_copy(const Copy& copy);
  void run_copies();

  const Window own_;
  const Window peer_;
  Doorbell peer_bell_;
  Doorbell peer_elsewhere_;
  const WindowPart peer_answers_;  // from the peer's greeting
  const std::chrono::milliseconds peer_timeout_;
  Mutex put_mutex_;

  ShmRegions peer_regions_;
  Mutex exposed_mutex_;
  std::unordered_set<uint64_t> exposed_ RCUDA_GUARDED_BY(exposed_mutex_);
  uint64_t next_region_ RCUDA_GUARDED_BY(exposed_mutex_) = 1;

  Mutex copy_mutex_;
  CondVar copy_wanted_;
  std::deque<Copy> copies_ RCUDA_GUARDED_BY(copy_mutex_);
  bool stop_copies_ RCUDA_GUARDED_BY(copy_mutex_) = false;
  bool warned_of_copies_ RCUDA_GUARDED_BY(copy_mutex_) = false;
  std::thread copy_thread_;  // started under copy_mutex_

  std::unique_ptr<ControlChannel> control_;
};

Status ShmLink::start(Socket control, UniqueFd peer_process, ControlChannel::Timing timing) {
  ControlChannel::Callbacks callbacks;
  callbacks.on_message = [this](const ControlMessage& message, UniqueFd fd) {
    return on_message(message, std::move(fd));
  };
  callbacks.on_end = [this](bool intended, const std::string& why) {
    fail(intended ? End::kIntended : End::kLost, why);
  };
  control_ =
      std::make_unique<ControlChannel>(std::move(peer_process), timing, std::move(callbacks));
  RCUDA_RETURN_IF_ERROR(control_->prepare());
  control_->begin(std::move(control));
  return {};
}

ShmLink::~ShmLink() {
  close();
  {
    MutexLock lock(copy_mutex_);
    stop_copies_ = true;
  }
  copy_wanted_.notify_all();
  if (copy_thread_.joinable()) copy_thread_.join();
  control_.reset();
}

void ShmLink::close() {
  if (control_) control_->finish();
  fail(End::kIntended, "this side closed the connection");
}

void ShmLink::on_broken() { peer_regions_.end(status()); }

Status ShmLink::put(uint64_t offset, std::span<const Bytes> pieces, Wake wake) {
  const size_t total = total_bytes(pieces);
  RCUDA_RETURN_IF_ERROR(check_put(offset, pieces.size(), total, peer_window_bytes()));
  MutexLock lock(put_mutex_);
  begin_put();
  store_pieces(peer_.bytes().data() + offset, pieces, total);
  count_put(total);
  if (!wakes_peer(wake)) return {};
  if (peer_bell_.ring()) bump(counters_.wakes, 1);
  const bool has_answers = peer_answers_.bytes != 0;
  if (has_answers && !peer_answers_.holds(offset) && peer_elsewhere_.ring())
    bump(counters_.wakes, 1);
  return {};
}

Result<Region> ShmLink::expose(void* base, size_t bytes, int backing, uint64_t backing_offset) {
  if (broken()) return status();
  RCUDA_RETURN_IF_ERROR(check_region(base, bytes));
  if (backing >= 0 && ::fcntl(backing, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
    const int seals = ::fcntl(backing, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK)) {
      return Status{Code::kInvalidArgument,
                    "cannot expose a region of " + std::to_string(bytes) +
                        " bytes: its backing file must be a memfd made with MFD_ALLOW_SEALING"};
    }
  }
  // Held while sending: announcements go out in ascending order of ids.
  MutexLock lock(exposed_mutex_);
  const uint64_t id = next_region_;
  RCUDA_RETURN_IF_ERROR(control_->send(
      {.kind = ControlMessage::kAnnounce, .region = id, .bytes = bytes, .address = backing_offset},
      backing));
  ++next_region_;
  exposed_.insert(id);
  return Region{RegionId{id}, bytes};
}

Status ShmLink::unexpose(RegionId region) {
  const auto id = static_cast<uint64_t>(region);
  MutexLock lock(exposed_mutex_);
  if (exposed_.erase(id) == 0) return not_exposed(region);
  control_->send({.kind = ControlMessage::kRetire, .region = id});
  return status();
}

Status ShmLink::on_message(const ControlMessage& message, UniqueFd fd) {
  switch (message.kind) {
    case ControlMessage::kAnnounce:
      return peer_regions_.add(message.region, message.bytes, message.address, message.has_fd != 0,
                               std::move(fd));
    case ControlMessage::kRetire:
      return peer_regions_.retire(message.region);
    default:
      return {Code::kProtocol, violation("the peer sent a control message of unknown kind " +
                                         std::to_string(message.kind))};
  }
}

Result<void*> ShmLink::map(RegionId region, size_t bytes, void* address) {
  return peer_regions_.map(static_cast<uint64_t>(region), bytes, address, peer_timeout_);
}

Status ShmLink::unmap(RegionId region) {
  return peer_regions_.unmap(static_cast<uint64_t>(region));
}

void ShmLink::write(RegionId region, uint64_t offset, const void* local, size_t bytes,
                    TransferDone done) {
  transfer({region, offset, const_cast<void*>(local), bytes, true, std::move(done)});
}

void ShmLink::read(RegionId region, uint64_t offset, void* local, size_t bytes, TransferDone done) {
  transfer({region, offset, local, bytes, false, std::move(done)});
}

void ShmLink::transfer(Copy copy) {
  if (broken()) return copy.done(status());
  if (copy.bytes <= kInlineCopyBytes && peer_regions_.arrived(static_cast<uint64_t>(copy.region))) {
    return copy.done(run_copy(copy));
  }
  {
    MutexLock lock(copy_mutex_);
    Status started;
    if (!copy_thread_.joinable()) started = start_thread(&copy_thread_, [this] { run_copies(); });
    if (started.ok()) {
      copies_.push_back(std::move(copy));
      copy_wanted_.notify_one();
      return;
    }
    if (!std::exchange(warned_of_copies_, true)) {
      RCUDA_WARN("shm link: large copies run in the calling thread and block it: %s",
                 started.context().c_str());
    }
  }
  copy.done(run_copy(copy));
}

Status ShmLink::run_copy(const Copy& copy) {
  RCUDA_ASSIGN_OR_RETURN(ShmRegions::Piece piece,
                         peer_regions_.piece(static_cast<uint64_t>(copy.region), copy.offset,
                                             copy.bytes, peer_timeout_));
  auto* local = static_cast<std::byte*>(copy.local);
  for (size_t at = 0; at < copy.bytes; at += kCopyPieceBytes) {
    if (broken()) return status();
    const size_t count = std::min(kCopyPieceBytes, copy.bytes - at);
    if (copy.to_peer) {
      std::memcpy(piece.data + at, local + at, count);
    } else {
      std::memcpy(local + at, piece.data + at, count);
    }
  }
  count_copied(copy.bytes);
  return {};
}

void ShmLink::run_copies() {
  ::pthread_setname_np(::pthread_self(), "rcuda-shm-copy");
  MutexLock lock(copy_mutex_);
  while (true) {
    copy_wanted_.wait(
        lock, [this]() RCUDA_REQUIRES(copy_mutex_) { return stop_copies_ || !copies_.empty(); });
    if (copies_.empty()) return;
    const Copy copy = std::move(copies_.front());
    copies_.pop_front();
    lock.unlock();
    copy.done(run_copy(copy));
    lock.lock();
  }
}

// The peer's greeting, the file of its window, and a pidfd of its process (empty on old kernels).
struct Heard {
  ShmHello hello;
  UniqueFd window;
  UniqueFd process;
};

Status greet(int socket, const ShmHello& hello, int window, Deadline deadline) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  const int fds[] = {window, process.get()};
  return send_with_fds(socket, bytes_of(hello), std::span(fds, process ? 2 : 1), deadline);
}

Result<Heard> hear(int socket, Deadline deadline) {
  Heard heard;
  std::vector<UniqueFd> fds;
  RCUDA_RETURN_IF_ERROR(recv_with_fds(socket, writable_bytes_of(heard.hello), fds, deadline));
  RCUDA_RETURN_IF_ERROR(check_greeting(heard.hello.greeting, kShmMagic, "shared-memory"));
  if (fds.empty() || fds.size() > 2) {
    return Status{Code::kProtocol,
                  "the peer's greeting has " + std::to_string(fds.size()) +
                      " file descriptors, not 1 or 2 (its window and its process)"};
  }
  heard.window = std::move(fds[0]);
  if (fds.size() == 2) heard.process = std::move(fds[1]);
  return heard;
}

}  // namespace

Result<std::unique_ptr<Link>> shm::make_link(Bootstrap bootstrap, const LinkOptions& options) {
  const Deadline deadline = std::chrono::steady_clock::now() + bootstrap.timeout;
  RCUDA_ASSIGN_OR_RETURN(UniqueFd file, make_window_file(options.window_bytes));
  const ShmHello hello{make_greeting(kShmMagic, options, 1, 1), options.answers};
  const int socket = bootstrap.control.fd();
  // The server sends its greeting after it has set the size of the client's window.
  if (!bootstrap.server) RCUDA_RETURN_IF_ERROR(greet(socket, hello, file.get(), deadline));
  RCUDA_ASSIGN_OR_RETURN(Heard heard, hear(socket, deadline));
  const Greeting& peer_says = heard.hello.greeting;
  RCUDA_ASSIGN_OR_RETURN(
      Window peer, open_window(std::move(heard.window), peer_says.window_bytes, "the peer's"));
  if (bootstrap.server) RCUDA_RETURN_IF_ERROR(greet(socket, hello, file.get(), deadline));
  RCUDA_ASSIGN_OR_RETURN(Window own,
                         open_window(std::move(file), options.window_bytes, "this side's"));
  own.file.reset();
  peer.file.reset();

  auto link = std::make_unique<ShmLink>(std::move(own), std::move(peer), hello, heard.hello);
  const ControlChannel::Timing timing{.send_every = heartbeat_interval(peer_says.peer_timeout_ms),
                                      .expect_within = options.peer_timeout};
  RCUDA_RETURN_IF_ERROR(
      link->start(std::move(bootstrap.control), std::move(heard.process), timing));
  return std::unique_ptr<Link>(std::move(link));
}

}  // namespace rcuda::transport

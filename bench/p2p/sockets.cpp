// The speed of plain sockets between two processes of this host: the reference for copies over TCP.
//
//   sockets [--streams 4] [--address 127.0.0.1] [--min 64K] [--max 256M] [--seconds PER_SIZE]
//           [--walk BYTES] [--copy] [--label TEXT] [--no-header]
//
// Sizes are powers of two, and 200'000; with --min and --max alike, that size alone.
// A transfer is cut evenly over the streams (parts of 64 KB at least). Each stream has a thread at
// either end that blocks in send or recv, from memory to memory. With --walk 32M, each transfer
// uses the next part of 32 MB of memory at either end, so its bytes are in no cache, like bytes
// that a GPU has just written. Without --walk, transfers up to some MB are in the processor's
// caches when they are sent again. A transfer is over when the receiver has acknowledged every
// part. With --copy the receiver also copies the bytes to other memory, block by block, as softgpu
// does for a copy to a device: copies over TCP to softgpu cannot be faster. Single transfers and
// trains are timed as p2p.cu times copies, and printed in its columns, so that run.py can put both
// into one table.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/config/command_line.h"
#include "common/transport/link.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr uint64_t kLeastPart = 64u << 10;

struct Options {
  int streams = rcuda::transport::LinkOptions{}.bulk_streams;
  std::string address = "127.0.0.1";
  uint64_t min_bytes = 64u << 10;
  uint64_t max_bytes = 256u << 20;
  double seconds_per_size = 0.2;
  uint64_t walk_bytes = 0;
  bool copy = false;
  std::string label = "sockets";
  bool no_header = false;
};

struct Part {  // without bytes: the stream ends
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::_Exit(1);
}

void send_all(int socket, const void* data, size_t bytes) {
  for (const auto* at = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t sent = ::send(socket, at, bytes, MSG_NOSIGNAL);
    if (sent <= 0) die("sockets: send");
    at += sent;
    bytes -= static_cast<size_t>(sent);
  }
}
// Returns false at the end of the stream.
bool receive_all(int socket, void* data, size_t bytes) {
  for (auto* at = static_cast<char*>(data); bytes > 0;) {
    const ssize_t received = ::recv(socket, at, bytes, 0);
    if (received < 0) die("sockets: recv");
    if (received == 0) return false;
    at += received;
    bytes -= static_cast<size_t>(received);
  }
  return true;
}

// `copies`: where the bytes are copied to; null: nowhere.
void receive_parts(int socket, char* memory, char* copies) {
  constexpr uint64_t kBlock = 512u << 10;
  const char acknowledged = 1;
  for (Part part; receive_all(socket, &part, sizeof part);) {
    for (uint64_t end = part.offset + part.bytes, at = part.offset; at < end;) {
      const uint64_t bytes = std::min(end - at, kBlock);
      if (!receive_all(socket, memory + at, bytes)) return;
      if (copies) std::memcpy(copies + at, memory + at, bytes);
      at += bytes;
    }
    send_all(socket, &acknowledged, 1);
  }
  ::close(socket);
}

// The sending end of a stream. One thread sends and another receives the acknowledgements, so a
// train does not stop between its transfers.
class Stream {
 public:
  Stream(int socket, const char* memory)
      : socket_(socket),
        memory_(memory),
        sender_([this] { send_parts(); }),
        waiter_([this] { take_acknowledgements(); }) {}
  ~Stream() {
    submit({});
    sender_.join();
    ::shutdown(socket_, SHUT_WR);
    waiter_.join();
    ::close(socket_);
  }
  void submit(Part part) {
    const std::lock_guard lock(mutex_);
    parts_.push_back(part);
    changed_.notify_all();
  }
  void await() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return acknowledged_ > 0; });
    --acknowledged_;
  }

 private:
  void send_parts() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !parts_.empty(); });
      const Part part = parts_.front();
      parts_.pop_front();
      lock.unlock();
      if (part.bytes == 0) return;
      send_all(socket_, &part, sizeof part);
      send_all(socket_, memory_ + part.offset, part.bytes);
    }
  }
  void take_acknowledgements() {
    for (char byte = 0; receive_all(socket_, &byte, 1);) {
      const std::lock_guard lock(mutex_);
      ++acknowledged_;
      changed_.notify_all();
    }
  }

  const int socket_;
  const char* const memory_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Part> parts_;
  int acknowledged_ = 0;
  std::thread sender_;
  std::thread waiter_;
};

class Sender {
 public:
  Sender(const std::vector<int>& sockets, const char* memory, uint64_t walk_bytes)
      : walk_bytes_(walk_bytes) {
    for (int socket : sockets) streams_.push_back(std::make_unique<Stream>(socket, memory));
  }
  double single_us(uint64_t bytes) { return train_us(bytes, 1); }
  double train_us(uint64_t bytes, int transfers) {
    const uint64_t parts = std::clamp<uint64_t>(bytes / kLeastPart, 1, streams_.size());
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < transfers; ++i) {
      if (at_ + bytes > walk_bytes_) at_ = 0;
      for (uint64_t part = 0; part < parts; ++part) {
        const uint64_t first = bytes * part / parts;
        streams_[part]->submit({at_ + first, bytes * (part + 1) / parts - first});
      }
      at_ += bytes;
    }
    for (int i = 0; i < transfers; ++i) {
      for (uint64_t part = 0; part < parts; ++part) streams_[part]->await();
    }
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / transfers;
  }

 private:
  std::vector<std::unique_ptr<Stream>> streams_;
  const uint64_t walk_bytes_;
  uint64_t at_ = 0;  // offset of the next transfer's memory
};

void no_delay(int socket) {
  const int on = 1;
  if (::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) die("TCP_NODELAY");
}

int listen_on(const Options& options, sockaddr_in* address) {
  address->sin_family = AF_INET;
  if (::inet_pton(AF_INET, options.address.c_str(), &address->sin_addr) != 1) {
    std::fprintf(stderr, "sockets: --address %s is no IPv4 address\n", options.address.c_str());
    std::_Exit(2);
  }
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  socklen_t length = sizeof *address;
  if (listener < 0 || ::bind(listener, reinterpret_cast<sockaddr*>(address), length) != 0 ||
      ::listen(listener, options.streams) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(address), &length) != 0) {
    die("sockets: listen");
  }
  return listener;
}

[[noreturn]] void run_receiver(const Options& options, int listener) {
  std::vector<char> memory(std::max(options.max_bytes, options.walk_bytes), 0);
  std::vector<char> copies(options.copy ? memory.size() : 0, 0);
  std::vector<std::thread> threads;
  for (int i = 0; i < options.streams; ++i) {
    const int socket = ::accept(listener, nullptr, nullptr);
    if (socket < 0) die("sockets: accept");
    no_delay(socket);
    threads.emplace_back(receive_parts, socket, memory.data(),
                         options.copy ? copies.data() : nullptr);
  }
  for (std::thread& thread : threads) thread.join();
  std::_Exit(0);
}

void run_sender(const Options& options, const sockaddr_in& address) {
  std::vector<int> sockets;
  for (int i = 0; i < options.streams; ++i) {
    sockets.push_back(::socket(AF_INET, SOCK_STREAM, 0));
    const auto* where = reinterpret_cast<const sockaddr*>(&address);
    if (::connect(sockets.back(), where, sizeof address) != 0) die("sockets: connect");
    no_delay(sockets.back());
  }
  std::vector<char> memory(std::max(options.max_bytes, options.walk_bytes), 1);
  Sender sender(sockets, memory.data(), options.walk_bytes);
  if (!options.no_header)
    std::printf("label,bytes,first_us,second_us,median_us,train_us,median_gbps,train_gbps\n");
  std::vector<uint64_t> sizes;
  for (uint64_t bytes = 4; bytes <= options.max_bytes; bytes *= 2) {
    if (bytes >= options.min_bytes) sizes.push_back(bytes);
    if (bytes == (128u << 10) && options.min_bytes <= 200'000 && 200'000 <= options.max_bytes)
      sizes.push_back(200'000);
  }
  if (options.min_bytes == options.max_bytes) sizes = {options.max_bytes};
  for (const uint64_t bytes : sizes) {
    const double first_us = sender.single_us(bytes);
    const double second_us = sender.single_us(bytes);
    std::vector<double> times;
    const Clock::time_point start = Clock::now();
    const auto enough = std::chrono::duration<double>(options.seconds_per_size);
    while (times.size() < 5 || (times.size() < 1000 && Clock::now() - start < enough)) {
      times.push_back(sender.single_us(bytes));
    }
    std::nth_element(times.begin(), times.begin() + static_cast<long>(times.size() / 2),
                     times.end());
    const double median_us = times[times.size() / 2];
    const double train_us = sender.train_us(
        bytes, static_cast<int>(std::clamp(options.seconds_per_size * 1e6 / median_us, 4.0, 1e3)));
    const auto size = static_cast<double>(bytes);
    std::printf("%s,%llu,%.2f,%.2f,%.2f,%.2f,%.4f,%.4f\n", options.label.c_str(),
                static_cast<unsigned long long>(bytes), first_us, second_us, median_us, train_us,
                size / median_us * 1e-3, size / train_us * 1e-3);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  rcuda::config::CommandLine line("", "Bandwidth and latency of plain TCP sockets by size, as CSV");
  line.option("--streams", &options.streams).within(1, 64);
  line.option("--address", &options.address);
  line.option("--min", &options.min_bytes).as_bytes();
  line.option("--max", &options.max_bytes).as_bytes();
  line.option("--seconds", &options.seconds_per_size);
  line.option("--walk", &options.walk_bytes).as_bytes();
  line.flag("--copy", &options.copy);
  line.option("--label", &options.label);
  line.flag("--no-header", &options.no_header);
  if (const std::optional<int> status = line.parse(argc, argv)) return *status;

  sockaddr_in address{};
  const int listener = listen_on(options, &address);
  const pid_t receiver = ::fork();
  if (receiver < 0) die("sockets: fork");
  if (receiver == 0) run_receiver(options, listener);
  run_sender(options, address);
  int status = 0;
  ::waitpid(receiver, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

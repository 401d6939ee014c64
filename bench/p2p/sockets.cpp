// The speed of plain sockets between two processes of this host: the reference for copies over TCP,
// and with other options for copies over TLS and shared memory.
//
//   sockets [--streams 4] [--address 127.0.0.1] [--min 64K] [--max 256M] [--seconds PER_SIZE]
//           [--walk BYTES] [--copy] [--tls | --memory] [--receiver-cores LIST] [--label TEXT]
//           [--no-header]
//
// Sizes are powers of two, and 200'000; only one size if --min and --max are equal. A transfer is
// cut evenly over the streams (parts of 64 KB at least). Each stream has a thread at either end
// that blocks in send or recv, from memory to memory. With --walk 32M, each transfer uses the next
// part of 32 MB of memory at either end, so its bytes are in no cache, like bytes that a GPU has
// just written. Without --walk, transfers up to some MB are in the processor's caches when they are
// sent again. A transfer is over when the receiver has acknowledged every part. With --copy the
// receiver also copies the bytes to other memory, block by block, as softgpu does for a copy to a
// device: copies over TCP to softgpu cannot be faster. With --tls the bytes pass through OpenSSL
// (TLS 1.3, AES-128-GCM), which reads several records at once. With --memory the sender copies them
// into memory that the receiver shares; without --copy one thread does so, and the receiver has
// nothing to do. --receiver-cores binds the receiver to other processors ("0,2") than the sender.
// Single transfers and trains are timed as p2p.cu times copies, and printed in its columns, so that
// run.py can put both into one table.
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
#include <openssl/ssl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/measure.h"
#include "common/config/command_line.h"

namespace {

constexpr uint64_t kLeastPart = 64u << 10;

struct Options {
  int streams = 4;
  std::string address = "127.0.0.1";
  uint64_t min_bytes = 64u << 10;
  uint64_t max_bytes = 256u << 20;
  double seconds_per_size = 0.2;
  uint64_t walk_bytes = 0;
  bool copy = false;
  bool tls = false;
  bool memory = false;
  std::vector<int> receiver_cores;
  std::string label = "sockets";
  bool no_header = false;
  uint64_t memory_bytes() const { return std::max(max_bytes, walk_bytes); }
};

struct Part {  // `bytes` 0: the stream ends
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::_Exit(1);
}

// One end of a stream. Acknowledgements use the socket without `ssl`, so a thread may wait for them
// while another thread sends records. The receiver sends no records.
struct End {
  int socket = -1;
  SSL* ssl = nullptr;      // with --tls
  char* shared = nullptr;  // with --memory: the bytes go there
};

// TLS 1.3 with a key that both ends know.
constexpr unsigned char kKey[32] = {};
unsigned int give_key(SSL*, const char*, char* identity, unsigned int most, unsigned char* key,
                      unsigned int) {
  std::snprintf(identity, most, "sockets");
  std::memcpy(key, kKey, sizeof kKey);
  return sizeof kKey;
}
unsigned int find_key(SSL*, const char*, unsigned char* key, unsigned int) {
  std::memcpy(key, kKey, sizeof kKey);
  return sizeof kKey;
}

SSL* encrypt(int socket, bool receives) {
  static SSL_CTX* const context = SSL_CTX_new(TLS_method());
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256");
  SSL_CTX_set_psk_client_callback(context, give_key);
  SSL_CTX_set_psk_server_callback(context, find_key);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, 256u << 10);
  SSL* const ssl = SSL_new(context);
  SSL_set_fd(ssl, socket);
  if ((receives ? SSL_accept(ssl) : SSL_connect(ssl)) == 1) return ssl;
  std::fprintf(stderr, "sockets: the TLS handshake failed\n");
  std::_Exit(1);
}

void send_all(const End& end, const void* data, size_t bytes) {
  for (const auto* at = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t sent =
        end.ssl ? SSL_write(end.ssl, at, static_cast<int>(std::min<size_t>(bytes, 1u << 30)))
                : ::send(end.socket, at, bytes, MSG_NOSIGNAL);
    if (sent <= 0) die("sockets: send");
    at += sent;
    bytes -= static_cast<size_t>(sent);
  }
}
// Returns false at the end of the stream.
bool receive_all(const End& end, void* data, size_t bytes) {
  for (auto* at = static_cast<char*>(data); bytes > 0;) {
    const ssize_t received =
        end.ssl ? SSL_read(end.ssl, at, static_cast<int>(std::min<size_t>(bytes, 1u << 30)))
                : ::recv(end.socket, at, bytes, 0);
    if (received < 0 && !end.ssl) die("sockets: recv");
    if (received <= 0) return false;
    at += received;
    bytes -= static_cast<size_t>(received);
  }
  return true;
}

// `copies`: where the bytes are copied to; null: nowhere.
void receive_parts(End end, char* memory, char* copies) {
  constexpr uint64_t kBlock = 512u << 10;
  const char acknowledged = 1;
  for (Part part; receive_all(end, &part, sizeof part);) {
    for (uint64_t last = part.offset + part.bytes, at = part.offset; at < last;) {
      const uint64_t bytes = std::min(last - at, kBlock);
      if (!end.shared && !receive_all(end, memory + at, bytes)) return;
      if (copies) std::memcpy(copies + at, memory + at, bytes);
      at += bytes;
    }
    send_all({end.socket}, &acknowledged, 1);
  }
  ::close(end.socket);
}

// The sending end of a stream. One thread sends and another receives the acknowledgements, so a
// train does not stop between its transfers.
class Stream {
 public:
  Stream(End end, const char* memory)
      : end_(end),
        memory_(memory),
        sender_([this] { send_parts(); }),
        waiter_([this] { take_acknowledgements(); }) {}
  ~Stream() {
    submit({});
    sender_.join();
    ::shutdown(end_.socket, SHUT_WR);
    waiter_.join();
    SSL_free(end_.ssl);
    ::close(end_.socket);
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
      if (end_.shared) std::memcpy(end_.shared + part.offset, memory_ + part.offset, part.bytes);
      send_all(end_, &part, sizeof part);
      if (!end_.shared) send_all(end_, memory_ + part.offset, part.bytes);
    }
  }
  void take_acknowledgements() {
    for (char byte = 0; receive_all({end_.socket}, &byte, 1);) {
      const std::lock_guard lock(mutex_);
      ++acknowledged_;
      changed_.notify_all();
    }
  }

  const End end_;
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
  // Without streams this thread copies the bytes to `shared`.
  Sender(const std::vector<End>& ends, const char* memory, char* shared, uint64_t walk_bytes)
      : memory_(memory), shared_(shared), walk_bytes_(walk_bytes) {
    for (const End& end : ends) streams_.push_back(std::make_unique<Stream>(end, memory));
  }
  double single_us(uint64_t bytes) { return train_us(bytes, 1); }
  double train_us(uint64_t bytes, int transfers) {
    const uint64_t parts =
        std::min<uint64_t>(std::max<uint64_t>(bytes / kLeastPart, 1), streams_.size());
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < transfers; ++i) {
      if (at_ + bytes > walk_bytes_) at_ = 0;
      if (streams_.empty()) std::memcpy(shared_ + at_, memory_ + at_, bytes);
      for (uint64_t part = 0; part < parts; ++part) {
        const uint64_t first = bytes * part / parts;
        streams_[part]->submit({at_ + first, bytes * (part + 1) / parts - first});
      }
      at_ += bytes;
    }
    for (int i = 0; i < transfers; ++i) {
      for (uint64_t part = 0; part < parts; ++part) streams_[part]->await();
    }
    return us_since(begin) / transfers;
  }

 private:
  std::vector<std::unique_ptr<Stream>> streams_;
  const char* const memory_;
  char* const shared_;
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
    std::fprintf(stderr, "sockets: --address %s is not an IPv4 address\n", options.address.c_str());
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

// Returns memory that both processes share; null without --memory.
char* share_memory(const Options& options) {
  if (!options.memory) return nullptr;
  void* const shared = ::mmap(nullptr, options.memory_bytes(), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (shared == MAP_FAILED) die("sockets: mmap");
  return static_cast<char*>(shared);
}

void bind_to(const std::vector<int>& cores) {
  if (cores.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0) die("sockets: --receiver-cores");
}

[[noreturn]] void run_receiver(const Options& options, int listener, char* shared) {
  bind_to(options.receiver_cores);
  std::vector<char> memory(shared ? 0 : options.memory_bytes(), 0);
  std::vector<char> copies(options.copy ? options.memory_bytes() : 0, 0);
  std::vector<std::thread> threads;
  for (int i = 0; i < options.streams; ++i) {
    const int socket = ::accept(listener, nullptr, nullptr);
    if (socket < 0) die("sockets: accept");
    no_delay(socket);
    const End end{socket, options.tls ? encrypt(socket, true) : nullptr, shared};
    threads.emplace_back(receive_parts, end, shared ? shared : memory.data(),
                         options.copy ? copies.data() : nullptr);
  }
  for (std::thread& thread : threads) thread.join();
  std::_Exit(0);
}

void run_sender(const Options& options, const sockaddr_in& address, char* shared) {
  std::vector<End> ends;
  for (int i = 0; i < options.streams; ++i) {
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    const auto* where = reinterpret_cast<const sockaddr*>(&address);
    if (::connect(socket, where, sizeof address) != 0) die("sockets: connect");
    no_delay(socket);
    ends.push_back({socket, options.tls ? encrypt(socket, false) : nullptr, shared});
  }
  std::vector<char> memory(options.memory_bytes(), 1);
  Sender sender(ends, memory.data(), shared, options.walk_bytes);
  if (!options.no_header)
    std::printf("label,bytes,first_us,second_us,median_us,train_us,median_gbps,train_gbps\n");
  std::vector<uint64_t> sizes = sizes_between(options.min_bytes, options.max_bytes);
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
    const double median_us = median(times);
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
  const auto tls = line.flag("--tls", &options.tls);
  line.flag("--memory", &options.memory).excludes(tls);
  line.option("--receiver-cores", &options.receiver_cores).separated_by(',');
  line.option("--label", &options.label);
  line.flag("--no-header", &options.no_header);
  if (const std::optional<int> status = line.parse(argc, argv)) return *status;
  if (options.memory && !options.copy) options.streams = 0;

  char* const shared = share_memory(options);
  sockaddr_in address{};
  const int listener = listen_on(options, &address);
  const pid_t receiver = ::fork();
  if (receiver < 0) die("sockets: fork");
  if (receiver == 0) run_receiver(options, listener, shared);
  run_sender(options, address, shared);
  int status = 0;
  ::waitpid(receiver, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

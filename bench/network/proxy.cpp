// A network between a client and a server of this machine: passes TCP connections on to a port,
// with a delay and a rate of transmission in each direction.
//
//   proxy PORT [ROUND_TRIP_MICROSECONDS [GIGABITS_PER_SECOND]]
//
// Prints the port that it listens on, and runs until it is killed. All connections share the rate
// of a direction, as they share a cable. The delay comes on top of two passes through the loopback,
// about 50 us. Threads poll for the last 60 us of a wait, so the program needs a few idle cores.
// For each direction of a connection, one thread reads and determines when the bytes are due, and
// another thread writes them at that time. A reader stops while 64 MB wait, so the memory is
// bounded.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::duration;
using std::chrono::microseconds;

constexpr size_t kMostWaiting = 64 << 20;
constexpr size_t kPiece = 64 << 10;

// One direction of the simulated cable, which all connections share. Thread-safe.
class Cable {
 public:
  Cable(microseconds delay, double gigabits) : delay_(delay), bytes_per_s_(gigabits * 1e9 / 8) {}

  // The time at which bytes that are sent now arrive.
  Clock::time_point arrival(size_t bytes) {
    std::lock_guard lock(mutex_);
    free_ = std::max(free_, Clock::now());
    if (bytes_per_s_ > 0) {
      free_ += std::chrono::duration_cast<Clock::duration>(duration<double>(bytes / bytes_per_s_));
    }
    return free_ + delay_;
  }

 private:
  const microseconds delay_;
  const double bytes_per_s_;  // 0: not limited
  std::mutex mutex_;
  Clock::time_point free_;  // when the cable has sent all bytes so far
};

struct Piece {
  Clock::time_point due;
  std::vector<char> bytes;  // empty: the sender closed its side
};

// The bytes of one direction of a connection that are on their way.
class OnTheWay {
 public:
  void add(Piece piece) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ < kMostWaiting; });
    waiting_ += piece.bytes.size();
    pieces_.push_back(std::move(piece));
    changed_.notify_all();
  }

  Piece next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !pieces_.empty(); });
    Piece piece = std::move(pieces_.front());
    pieces_.pop_front();
    waiting_ -= piece.bytes.size();
    changed_.notify_all();
    return piece;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece> pieces_;
  size_t waiting_ = 0;  // bytes
};

struct Connection {
  int client = -1, server = -1;
  OnTheWay to_server, to_client;
  ~Connection() {
    close(client);
    close(server);
  }
};

void wait_until(Clock::time_point due) {
  std::this_thread::sleep_until(due - microseconds(60));
  while (Clock::now() < due) __builtin_ia32_pause();
}

void read_all(int from, Cable& cable, OnTheWay& way) {
  for (;;) {
    std::vector<char> bytes(kPiece);
    const ssize_t count = recv(from, bytes.data(), bytes.size(), 0);
    bytes.resize(std::max<ssize_t>(count, 0));
    way.add({cable.arrival(bytes.size()), std::move(bytes)});
    if (count <= 0) return;
  }
}

// If the receiver has closed the connection, discards the rest, so that the reader can end.
void write_all(int to, OnTheWay& way) {
  for (bool open = true;;) {
    const Piece piece = way.next();
    wait_until(piece.due);
    if (piece.bytes.empty()) break;
    for (size_t sent = 0; open && sent < piece.bytes.size();) {
      const ssize_t count = send(to, piece.bytes.data() + sent, piece.bytes.size() - sent, MSG_NOSIGNAL);
      if (count < 0) open = false;
      sent += std::max<ssize_t>(count, 0);
    }
  }
  shutdown(to, SHUT_WR);
}

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

void pass_on(int client, uint16_t port, Cable& up, Cable& down) {
  auto connection = std::make_shared<Connection>();
  connection->client = client;
  connection->server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  if (connect(connection->server, reinterpret_cast<const sockaddr*>(&address), sizeof address)) {
    return std::perror("connect");
  }
  for (const int end : {connection->client, connection->server}) {
    const int on = 1;
    setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  std::thread([connection, &up] { read_all(connection->client, up, connection->to_server); }).detach();
  std::thread([connection] { write_all(connection->server, connection->to_server); }).detach();
  std::thread([connection, &down] {
    read_all(connection->server, down, connection->to_client);
  }).detach();
  std::thread([connection] { write_all(connection->client, connection->to_client); }).detach();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "proxy PORT [ROUND_TRIP_MICROSECONDS [GIGABITS_PER_SECOND]]\n");
    return 2;
  }
  const auto port = static_cast<uint16_t>(std::atoi(argv[1]));
  const microseconds delay(argc > 2 ? std::atoi(argv[2]) / 2 : 0);
  const double gigabits = argc > 3 ? std::atof(argv[3]) : 0;
  Cable up(delay, gigabits), down(delay, gigabits);

  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) || listen(listener, 64) ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size)) {
    fail("listen");
  }
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  for (;;) {
    const int client = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) fail("accept");
    pass_on(client, port, up, down);
  }
}

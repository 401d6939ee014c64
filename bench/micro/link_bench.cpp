// The cost of each medium, measured between two threads of one process: one put, a round trip of
// two puts, a frame through the command ring, and transfers by size.
//
//   link_bench [shm|tcp|verbs]...        default: shm tcp
//
// Prints one table per medium. Verbs needs an RDMA device; tests/rdma provides one.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "common/wire/ring.h"
#include "tests/support/link_pair.h"

namespace {

using namespace rcuda;
using test::Medium;
using transport::Link;
using transport::Wake;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

uint64_t load(Link& link, uint64_t offset) {
  return std::atomic_ref(*reinterpret_cast<uint64_t*>(link.window().data() + offset))
      .load(std::memory_order_acquire);
}

void put_word(Link& link, uint64_t word, Wake wake) {
  (void)link.put(0, std::as_bytes(std::span(&word, 1)), {}, wake);
}

void print(const char* what, double value, const char* unit) {
  std::printf("  %-44s %12.1f %s\n", what, value, unit);
}

void report_counters(const char* what, const Link& link, const transport::LinkCounters& before,
                     double operations) {
  const transport::LinkCounters now = link.counters();
  if (now.work_requests == before.work_requests) return;
  std::printf("  %-44s per operation: %.2f work requests, %.2f doorbells, %.2f completions\n", what,
              static_cast<double>(now.work_requests - before.work_requests) / operations,
              static_cast<double>(now.doorbells - before.doorbells) / operations,
              static_cast<double>(now.completions - before.completions) / operations);
}

void bench_put(Link& link, int count) {
  const std::vector<std::byte> bytes(104);
  const auto before = link.counters();
  const auto start = Clock::now();
  for (int i = 0; i < count; ++i) {
    (void)link.put(4096 + i % 1024 * 104, bytes, {}, Wake::kYes);
  }
  print("put of 104 bytes, peer awake", seconds_since(start) / count * 1e9, "ns");
  report_counters("put", link, before, count);
}

void bench_round_trip(Link& client, Link& server, int count, bool sleeping) {
  const auto await = [sleeping](Link& link, uint64_t word) {
    const auto ready = [&] { return load(link, 0) == word; };
    if (sleeping) {
      (void)link.wait(ready, Clock::time_point::max());
    } else {
      while (!ready()) std::this_thread::yield();
    }
  };
  put_word(client, 0, Wake::kYes);
  put_word(server, 0, Wake::kYes);
  await(client, 0);
  await(server, 0);
  std::thread other([&] {
    for (int i = 1; i <= count; ++i) {
      await(server, i);
      put_word(server, i, Wake::kYes);
    }
  });
  const auto before = client.counters();
  const auto start = Clock::now();
  for (int i = 1; i <= count; ++i) {
    put_word(client, i, Wake::kYes);
    await(client, i);
  }
  const char* what =
      sleeping ? "round trip, both sides sleeping" : "round trip, both sides polling";
  print(what, seconds_since(start) / count * 1e6, "us");
  report_counters(what, client, before, count);
  other.join();
}

void bench_ring(Link& client, Link& server, int count) {
  const wire::RingLayout layout{
      .ring_offset = 4096, .ring_bytes = 4u << 20, .want_offset = 64, .consumed_offset = 64};
  std::memset(server.window().data() + layout.ring_offset, 0, layout.ring_bytes);
  std::thread reading([&] {
    wire::RingReader reader(server, layout);
    int idle = 0;  // spins a little before it sleeps, as a worker does
    for (int got = 0; got < count;) {
      auto frame = reader.try_next();
      if (!frame) return;
      if (!frame->empty()) {
        ++got;
        idle = 0;
      } else if (++idle < 100) {
        std::this_thread::yield();
      } else {
        (void)server.wait([&] { return reader.pending(); }, Clock::time_point::max());
      }
    }
  });
  wire::RingWriter writer(client, layout);
  const std::vector<std::byte> body(88);
  const auto before = client.counters();
  const auto start = Clock::now();
  for (int i = 0; i < count; ++i) (void)writer.append(body, {}, Wake::kYes);
  print("frame of 88 bytes: appended", seconds_since(start) / count * 1e9, "ns");
  reading.join();
  print("frame of 88 bytes: appended and taken out", seconds_since(start) / count * 1e9, "ns");
  report_counters("frame", client, before, count);
}

// Measures transfers that one thread starts: one at a time, and eight in flight, as in a pipeline.
void bench_transfers(Link& link, transport::RegionId region, std::byte* local, size_t most,
                     int scale) {
  constexpr int kUnderWay = 8;
  for (size_t bytes = 4096; bytes <= most; bytes *= 8) {
    for (const bool write : {true, false}) {
      for (const int under_way : {1, kUnderWay}) {
        const size_t room = most / bytes;  // transfers that do not overlap
        const int count =
            static_cast<int>(std::clamp<size_t>((256u << 20) / bytes, 4, 2000) / scale + 1);
        std::counting_semaphore<kUnderWay> free(under_way);
        const auto done = [&](const Status& status) {
          if (!status.ok()) {
            std::fprintf(stderr, "link_bench: a transfer failed: %s\n", status.message().c_str());
            std::_Exit(1);
          }
          free.release();
        };
        const auto before = link.counters();
        const auto start = Clock::now();
        for (int i = 0; i < count; ++i) {
          free.acquire();
          const size_t at = i % room * bytes;
          if (write) {
            link.write(region, at, local + at, bytes, done);
          } else {
            link.read(region, at, local + at, bytes, done);
          }
        }
        for (int i = 0; i < under_way; ++i) free.acquire();
        const double each = seconds_since(start) / count;
        char what[80];
        std::snprintf(what, sizeof what, "%s of %zu KiB, %d under way, %.1f us each",
                      write ? "write" : "read", bytes >> 10, under_way, each * 1e6);
        print(what, static_cast<double>(bytes) / each / 1e9, "GB/s");
        report_counters("", link, before, count);
        std::printf("  %-44s bytes copied by this CPU: %.0f %%\n", "",
                    100.0 *
                        static_cast<double>(link.counters().copied_bytes - before.copied_bytes) /
                        static_cast<double>(bytes) / count);
      }
    }
  }
}

int bench(const Medium& medium) {
  Result<test::LinkPair> pair = test::make_link_pair(medium);
  if (!pair) {
    std::fprintf(stderr, "%s: %s\n", medium.name(), pair.status().message().c_str());
    return 1;
  }
  // Fewer repetitions for verbs, because emulated adapters are slow.
  const int scale = medium.usable_over ? 500 : 1;
  std::printf("%s\n", medium.name());
  bench_put(*pair->client, 1'000'000 / scale);
  bench_round_trip(*pair->client, *pair->server, 100'000 / scale, false);
  bench_round_trip(*pair->client, *pair->server, 100'000 / scale, true);
  bench_ring(*pair->client, *pair->server, 1'000'000 / scale);

  const size_t most = medium.usable_over ? 16u << 20 : 128u << 20;
  const UniqueFd file(::memfd_create("bench", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (::ftruncate(file.get(), static_cast<off_t>(most)) != 0) return 1;
  void* base =
      ::mmap(nullptr, most, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.get(), 0);
  Result<transport::Region> region = pair->client->expose(base, most, file.get());
  if (!region) return 1;
  std::vector<std::byte> local(most);
  // Registered once, by exposing it, as a worker's staging memory is.
  if (!pair->server->expose(local.data(), most)) return 1;
  bench_transfers(*pair->server, region->id, local.data(), most, scale);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int failures = 0;
  for (const Medium& medium : rcuda::transport::media()) {
    const bool named = std::any_of(argv + 1, argv + argc, [&](const char* argument) {
      return std::strcmp(argument, medium.name()) == 0;
    });
    if (argc > 1 ? named : !medium.usable_over) failures += bench(medium);
  }
  return failures;
}

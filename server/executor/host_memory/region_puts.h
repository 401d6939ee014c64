// RegionPuts: pieces of shadows that go to the client in order with everything else that the client
// learns (Link::put_region(), Link::write_in_order()), without an acknowledgement.
//
// A copy to the client's memory could end with a host function that sends its bytes. The driver
// runs one 40 us after the copy (H100), the stream waits meanwhile, and `x.item()` of PyTorch is
// such a copy. So put_when_reached() queues a mark behind the copy instead, a word that the GPU
// writes, and the stream goes on. The bytes of a mark that is there are sent before anything else
// that is put: deliver() is called by each put of the Link (Link::before_puts()), on whatever
// thread, and by the executor. So whoever learns that a stream has passed the copy has the bytes.
//
// That holds for what the client learns from this worker. Another worker that waits for a stream of
// this one, or another process with memory or an event of it, could be faster. So both
// begin_acknowledging() and the first use of an exported name end the marks. Marks that are queued
// by then are waited for, a second at most, unless a stream can wait for them (Transfers).
//
// A mark sends what the memory holds from when the mark is there until it is sent. A copy to the
// same memory behind it must not begin before that: the caller asks overlaps() and queues a host
// function in front of it, which calls deliver_all().
//
// Threads: put_when_reached(), withdraw() and begin_acknowledging() on the executor thread,
// everything else on any. Blocking: as Link::put(); await_marks() as said; withdraw(),
// deliver_all() and end() until the Link has read what it sends. Errors: those of puts are latched,
// by the executor thread or by put(). A write in order fails only with the Link.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/base/mutex.h"
#include "common/transport/link.h"
#include "server/executor/answers/answers.h"
#include "server/executor/objects/objects.h"
#include "server/executor/streams/completions.h"
#include "server/names/exported_names.h"

namespace rcuda::server {

class RegionPuts : public std::enable_shared_from_this<RegionPuts> {
 public:
  // Of one copy. As many bytes of pageable memory travel in replies over sockets.
  static constexpr size_t kMostBytes = 4 * transport::kMaxRegionPut;
  // The same for media with orders_writes, and of all copies together: what the client learns later
  // waits for them, 0.4 ms at 10 GB/s and 34 ms at 1 Gb/s.
  static constexpr size_t kMostInOrder = 4u << 20;

  // `marks`: page-locked zeros that the GPUs can write; copies beyond one per word take the other
  // way. The references are not used after end().
  RegionPuts(const api::DriverTable& driver, transport::Link& link, Answers& answers,
             Completions& completions, const ExportedNames& names, std::span<std::byte> marks);

  // Sends the bytes now. Returns false if they must be written with an acknowledgement.
  bool put(transport::RegionId region, uint64_t offset, transport::Bytes bytes);
  // Whether a copy of so many bytes may take this way.
  bool takes(uint64_t bytes) const;
  // Puts them when the stream has got here. They must not move until they are sent. False: nothing
  // is queued, as for the first bytes of a region, whose put may have to wait until the client has
  // announced it. The stream must not be in capture.
  bool put_when_reached(const SessionStream& stream, transport::RegionId region, uint64_t offset,
                        transport::Bytes bytes);
  // Sends the bytes of all marks that are there, with the next put, transfer or flush().
  void deliver();
  void flush();
  // The same as deliver(), and waits until the Link has read all bytes that it sends by then.
  void deliver_all();
  // The client has got bytes of the region.
  void know(transport::RegionId region);
  // Whether some of these bytes are being sent, or will be by a mark that is not there yet.
  bool overlaps(uint64_t address, uint64_t bytes);
  // The region ends. Its bytes are not read any more; those whose mark is not there are not sent.
  void withdraw(transport::RegionId region);
  // Waits for the marks that are queued, a second at most.
  void await_marks();
  // From now on bytes must be acknowledged. Blocks for a round trip the first time, until earlier
  // puts have arrived. Returns whether there are marks that are not there yet.
  bool begin_acknowledging();
  // Blocks until the puts so far have arrived.
  void acknowledge();
  // Nothing is sent any more, nor read.
  void end();

 private:
  struct Marked {
    uint32_t ticket;  // the word's value when the stream has got here
    uint32_t place;   // of the word
    transport::RegionId region;
    uint64_t offset;
    transport::Bytes bytes;
    bool in_order() const { return bytes.size() > kMostBytes; }
  };

  bool is_there(const Marked& marked) const;
  bool puts_locked() const RCUDA_REQUIRES(mutex_);
  void reached(uint32_t ticket, CUresult result);
  void drop(uint32_t ticket);
  void send_locked(const Marked& marked) RCUDA_REQUIRES(mutex_);
  void write_locked(const Marked& marked) RCUDA_REQUIRES(mutex_);
  void await_sent();
  Status put_locked(transport::RegionId region, uint64_t offset, transport::Bytes bytes)
      RCUDA_REQUIRES(mutex_);

  const api::DriverTable& driver_;
  transport::Link& link_;
  Answers& answers_;
  Completions& completions_;
  const ExportedNames& names_;
  uint32_t* const marks_;
  std::atomic<size_t> waiting_{0};  // size of marked_
  std::atomic<bool> needs_flush_{false};
  Mutex mutex_;
  bool over_ RCUDA_GUARDED_BY(mutex_) = false;
  bool acknowledges_ RCUDA_GUARDED_BY(mutex_);
  uint32_t last_ticket_ RCUDA_GUARDED_BY(mutex_) = 0;
  std::vector<uint32_t> free_places_ RCUDA_GUARDED_BY(mutex_);
  std::vector<Marked> marked_ RCUDA_GUARDED_BY(mutex_);  // the oldest first
  // Regions into which something was put.
  std::set<transport::RegionId> known_ RCUDA_GUARDED_BY(mutex_);
  Status failed_ RCUDA_GUARDED_BY(mutex_);  // what reached() latches
  // Where one was put.
  std::optional<std::pair<transport::RegionId, uint64_t>> last_ RCUDA_GUARDED_BY(mutex_);

  // What the Link reads to send it in order. Its threads take no other lock of this object.
  Mutex sending_mutex_;
  CondVar sent_;
  // In order of issue.
  std::map<uint64_t, transport::Bytes> sending_ RCUDA_GUARDED_BY(sending_mutex_);
  uint64_t last_sending_ RCUDA_GUARDED_BY(sending_mutex_) = 0;
  std::atomic<size_t> in_order_{0};  // bytes of these, and of marks that will be
};

}  // namespace rcuda::server

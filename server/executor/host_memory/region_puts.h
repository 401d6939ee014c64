// RegionPuts: sends bytes of shadows to the client without an acknowledgement, in order with
// replies, words and events (Link::put_region(), Link::write_in_order()).
//
// A copy to the client's memory could end with a host function that sends its bytes. But the driver
// runs that function 40 us after the copy (H100), and the stream waits meanwhile. This would delay
// each `x.item()` of PyTorch, for instance. Instead, put_when_reached() queues a word write by the
// GPU after the copy, and the stream goes on. Once the GPU has written the word, the bytes of the
// copy are sent before any other put: each put of the Link calls deliver() (Link::before_puts()),
// on any thread. So when a thread of the client learns that a stream has passed the copy, the
// client has the bytes.
//
// All copies of a stream share one GPU-written word: after each copy, the GPU writes the copy's
// number (its ticket) to it. So a stream with hundreds of waiting copies leaves words to other
// streams. A copy that gets no word needs a host function, which can deadlock: if a host function
// of the program waits for this copy, the driver may run the copy's function only after the
// program's function.
//
// This order covers only messages of this worker. Two other observers could learn of a copy's end
// before the client has the bytes:
// - Another worker that waits for a stream of this worker. So this worker sends a signal to another
//   worker only after client_has() has returned true.
// - A process that imports memory or an event of this worker. So the first use of an exported name
//   ends the use of GPU-written words for copies. It waits until the GPU has written the words that
//   are queued, at most one second.
//
// The bytes are read when they are sent, not when the GPU writes the word. So a later copy to the
// same memory must not begin before they are sent. The caller of the later copy first calls
// overlaps(). If the result is true, the caller queues a host function before the copy; the
// function calls deliver_all().
//
// Threads: put_when_reached() and withdraw() on the executor thread, all other functions on any
// thread. Blocking: as Link::put(), and client_has() also as Link::read(); await_marks(), a second
// at most; withdraw(), deliver_all() and end(), until the Link has read the bytes that it sends.
// Errors: those of puts are latched, by the executor thread or by put(). A write in order fails
// only if the Link breaks.
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
  // Copies of up to this size are sent by Link::put_region(), larger copies by
  // Link::write_in_order(). Over TCP, copies of up to this size to pageable memory travel in
  // replies.
  static constexpr size_t kMostBytes = 4 * transport::kMaxRegionPut;
  // The most bytes that all larger copies in progress may have together, over media with
  // orders_writes. Later messages to the client wait for these bytes: 0.4 ms at 10 GB/s, 34 ms at
  // 1 Gb/s.
  static constexpr size_t kMostInOrder = 4u << 20;

  // `marks`: zeroed page-locked memory for the GPU-written words. Each stream with copies in
  // progress uses one u32 of it. After end(), the references are not used, with one exception: a
  // client_has() in progress may still call `link`.
  RegionPuts(const api::DriverTable& driver, transport::Link& link, Answers& answers,
             Completions& completions, const ExportedNames& names, std::span<std::byte> marks);

  // Sends the bytes now. Returns false if they must be written with an acknowledgement.
  bool put(transport::RegionId region, uint64_t offset, transport::Bytes bytes);
  // Whether put_when_reached() accepts a copy of this size at present.
  bool takes(uint64_t bytes) const;
  // Puts the bytes when the stream has reached this point. Their memory must stay until they are
  // sent. Returns false and queues nothing if the bytes must be sent in another way. Example: the
  // first bytes of a region, because their put may have to wait until the client has announced the
  // region. The stream must not be in capture.
  bool put_when_reached(const SessionStream& stream, transport::RegionId region, uint64_t offset,
                        transport::Bytes bytes);
  // Looks for copies whose words the GPU has written, and passes the bytes of these copies to the
  // Link. The Link sends the bytes with the next put, transfer or flush().
  void deliver();
  void flush();
  // Calls deliver(), then waits until the Link has read these bytes.
  void deliver_all();
  // To be called when bytes have arrived in the region, which shows that the client has announced
  // it.
  void know(transport::RegionId region);
  // Whether some of these bytes are being sent, or will be when the GPU has written their word.
  bool overlaps(uint64_t address, uint64_t bytes);
  // To be called before the region ends. Waits until the Link has read its bytes. Bytes whose word
  // is not written yet are never sent.
  void withdraw(transport::RegionId region);
  // Waits until the GPU has written the words that are queued, a second at most.
  void await_marks();
  // Whether the client has the bytes of all copies that were over at the first call. `*number` must
  // be 0 at the first call, which stores a number there. If the result is false, call it again with
  // that number until the result is true: one or two round trips later.
  bool client_has(uint64_t* number);
  // From now on nothing is sent. Waits until the Link has read all bytes.
  void end();

 private:
  // A copy whose bytes are sent when the GPU has written its word.
  struct Marked {
    uint32_t ticket;  // the GPU writes it to the word when the stream has reached this point
    uint32_t place;   // the word's index in marks_
    uint64_t stream;  // SessionStream::key
    transport::RegionId region;
    uint64_t offset;
    transport::Bytes bytes;
    bool in_order() const { return bytes.size() > kMostBytes; }
  };

  // The word of a stream.
  struct Place {
    uint32_t index = 0;   // in marks_
    uint32_t copies = 0;  // the stream's copies in marked_
  };

  bool is_there(const Marked& marked) const;
  bool take_place_locked(uint64_t stream, uint32_t* index) RCUDA_REQUIRES(mutex_);
  void release_place_locked(const Marked& marked) RCUDA_REQUIRES(mutex_);
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
  const bool can_put_;              // the medium has region puts
  std::atomic<size_t> waiting_{0};  // size of marked_
  std::atomic<bool> needs_flush_{false};
  Mutex mutex_;
  bool over_ RCUDA_GUARDED_BY(mutex_) = false;
  uint32_t last_ticket_ RCUDA_GUARDED_BY(mutex_) = 0;
  std::vector<uint32_t> free_places_ RCUDA_GUARDED_BY(mutex_);
  std::map<uint64_t, Place> places_ RCUDA_GUARDED_BY(mutex_);  // by SessionStream::key
  std::vector<Marked> marked_ RCUDA_GUARDED_BY(mutex_);        // the oldest first
  // Regions that the client has announced, as an earlier put() or know() has shown.
  std::set<transport::RegionId> known_ RCUDA_GUARDED_BY(mutex_);
  Status failed_ RCUDA_GUARDED_BY(mutex_);  // an error of deliver(), until reached() latches it
  // Region and offset of the latest put, and the number of puts so far.
  std::optional<std::pair<transport::RegionId, uint64_t>> last_ RCUDA_GUARDED_BY(mutex_);
  uint64_t puts_ RCUDA_GUARDED_BY(mutex_) = 0;
  // The first `arrived_` puts have arrived. `is_asking_`: a transfer is in progress that will raise
  // `arrived_`, and that writes `probe_`.
  std::atomic<uint64_t> arrived_{0};
  std::atomic<bool> is_asking_{false};
  std::byte probe_{};

  // Guards the bytes that the Link is sending in order. The Link's threads take no other lock of
  // this object.
  Mutex sending_mutex_;
  CondVar sent_;
  // The bytes of the writes in progress, by number in the order of the writes.
  std::map<uint64_t, transport::Bytes> sending_ RCUDA_GUARDED_BY(sending_mutex_);
  uint64_t last_sending_ RCUDA_GUARDED_BY(sending_mutex_) = 0;
  std::atomic<size_t> in_order_{0};  // bytes of sending_, and of large copies in marked_
};

}  // namespace rcuda::server

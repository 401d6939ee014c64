#include "client/session/timeline.h"

#include <algorithm>
#include <utility>

#include "client/session/capture_answers.h"
#include "client/session/news.h"
#include "client/session/reached_place.h"

namespace rcuda::client {
namespace {

// A driver's queue takes 1020 commands, marks included, and programs may rely on room for a
// thousand. The remaining places are for commands that the worker queues itself, and for threads
// that pass pace() at the same time.
constexpr uint64_t kMost = 1008;
constexpr uint64_t kBetweenMarks = kMost / 4;

// The most host writes in progress that a timeline records separately. The last record's range
// covers all further writes.
constexpr size_t kMostHostWrites = 16;

// No thread waits for the worker while it holds this mutex.
Mutex host_write_mutex;
// The timelines with a host write in progress. Never destroyed, because timelines may exist until
// the process ends.
auto& writers = *new std::vector<Timeline*>;
std::atomic<size_t> writer_count{0};

void add_writer(Timeline* timeline) RCUDA_REQUIRES(host_write_mutex) {
  if (std::ranges::find(writers, timeline) == writers.end()) writers.push_back(timeline);
  writer_count.store(writers.size(), std::memory_order_release);
}

void remove_writer(Timeline* timeline) RCUDA_REQUIRES(host_write_mutex) {
  std::erase(writers, timeline);
  writer_count.store(writers.size(), std::memory_order_release);
}

bool overlap(AddressRange one, AddressRange other) {
  return one.begin < other.end && other.begin < one.end;
}

bool are_equal(AddressRange one, AddressRange other) {
  return one.begin == other.begin && one.end == other.end;
}

void raise(std::atomic<uint64_t>& value, uint64_t to) {
  uint64_t known = value.load(std::memory_order_acquire);
  while (known < to && !value.compare_exchange_weak(known, to, std::memory_order_acq_rel)) {
  }
}

}  // namespace

Timeline::Timeline(TimelineHost& host, wire::ObjectId context, wire::ObjectId stream)
    : host_(host), context_(context), stream_(stream) {}

Timeline::~Timeline() {
  release_word();
  MutexLock lock(host_write_mutex);
  remove_writer(this);
}

uint64_t Timeline::count(uint64_t room) {
  const uint64_t position = sent_.load(std::memory_order_relaxed) + room;
  sent_.store(position, std::memory_order_release);
  return position;
}

void Timeline::advance(uint64_t position) {
  if (reached_.load(std::memory_order_acquire) >= position) return;
  // add() must precede raise(): a thread that sees the new position must also see the higher count.
  News::add();
  raise(reached_, position);
  if (writes_host_.load(std::memory_order_acquire)) settle_host_writes();
}

void Timeline::waited(uint64_t position) {
  // Fetches of mirrored memory do not count as work of the program.
  if (stream_ != wire::kFetchStream) host_.note_wait();
  advance(position);
  raise(awaited_, position);
}

bool Timeline::has_reached(uint64_t position) {
  if (reached_.load(std::memory_order_acquire) >= position) return true;
  MutexLock lock(mutex_);
  collect();
  return reached_.load(std::memory_order_acquire) >= position;
}

// ---- marks -------------------------------------------------------------------------------------

void Timeline::collect() {
  CUresult result = CUDA_SUCCESS;
  while (!marks_.empty() && host_.word_reached({word_->index, marks_.front().sequence}, &result)) {
    const uint64_t position = marks_.front().position;
    marks_.pop_front();
    if (result == CUDA_SUCCESS) {
      advance(position);
    } else {
      failed_at_ = position;
      failure_ = result;
    }
  }
  // A wait may already have covered these marks.
  const uint64_t reached = reached_.load(std::memory_order_acquire);
  while (!marks_.empty() && marks_.front().position <= reached) marks_.pop_front();
}

bool Timeline::place_mark() {
  if (!word_) word_ = host_.words().acquire_spare();
  if (!word_) return false;
  ++word_->sequence;
  marks_.push_back({host_.post_mark(*this, *word_), word_->sequence});
  return true;
}

void Timeline::release_word() {
  if (word_) host_.words().release(*std::exchange(word_, std::nullopt));
}

void Timeline::mark_end() {
  MutexLock lock(mutex_);
  collect();
  if (!is_level()) (void)place_mark();
}

void Timeline::close() {
  MutexLock lock(mutex_);
  closed_.store(true, std::memory_order_release);
  collect();
  if (marks_.empty()) release_word();
}

// ---- queries -----------------------------------------------------------------------------------

Progress Timeline::progress(uint64_t position, CUresult* result) {
  *result = CUDA_SUCCESS;
  if (reached_.load(std::memory_order_acquire) >= position) return Progress::kDone;
  if (busy_.holds(host_)) return Progress::kPending;
  MutexLock lock(mutex_);
  collect();
  if (reached_.load(std::memory_order_acquire) >= position) return Progress::kDone;
  if (failure_ != CUDA_SUCCESS && failed_at_ >= position) {
    *result = failure_;
    return Progress::kDone;
  }
  return Progress::kUnknown;
}

void Timeline::found_busy(uint64_t news) {
  MutexLock lock(mutex_);
  collect();
  // Place a mark only if none is in progress, however often the stream is polled.
  if (marks_.empty() && !place_mark()) return;  // no word is free: each query asks the worker
  busy_.set({word_->index, marks_.front().sequence}, news);
}

// ---- pacing ------------------------------------------------------------------------------------

void Timeline::pace() {
  if (any_capture()) {
    // pace() ignores commands that are sent now, because they may become graph nodes. After the
    // capture it counts from here.
    paced_from_.store(sent(), std::memory_order_relaxed);
    return;
  }
  if (sent() < pace_at_.load(std::memory_order_acquire)) [[likely]]
    return;
  while (true) {
    Word oldest;
    {
      MutexLock lock(mutex_);
      const uint64_t sequence = sequence_to_wait_for();
      if (sequence == 0) return;
      oldest = {word_->index, sequence};
    }
    (void)host_.wait_word(oldest, this);
    if (host_.lost()) return;
  }
}

uint64_t Timeline::sequence_to_wait_for() {
  collect();
  const uint64_t position = sent();
  const uint64_t done = std::max({reached_.load(std::memory_order_acquire), failed_at_,
                                  paced_from_.load(std::memory_order_relaxed)});
  uint64_t marked = marks_.empty() ? done : std::max(done, marks_.back().position);
  if (position >= marked + kBetweenMarks) {
    if (place_mark()) {
      marked = marks_.back().position;
    } else {  // no word is free: too many streams to pace all of them
      pace_at_.store(position + kBetweenMarks, std::memory_order_release);
      return 0;
    }
  }
  const uint64_t full = done + kMost;
  pace_at_.store(std::min(full, marked + kBetweenMarks), std::memory_order_release);
  return position < full ? 0 : marks_.front().sequence;
}

// ---- host writes -------------------------------------------------------------------------------

bool Timeline::host_writes_pending() { return writer_count.load(std::memory_order_acquire) != 0; }

bool Timeline::may_write(AddressRange memory) {
  if (!host_writes_pending()) return false;
  MutexLock lock(host_write_mutex);
  const auto touches = [&](AddressRange written) { return overlap(written, memory); };
  return std::ranges::any_of(writers, [&](const Timeline* timeline) {
    return std::ranges::any_of(timeline->host_writes_begun_, touches) ||
           std::ranges::any_of(timeline->host_writes_, touches, &SentWrite::memory);
  });
}

bool Timeline::may_write_until(uint64_t position) {
  if (!writes_host_.load(std::memory_order_acquire)) return false;
  MutexLock lock(host_write_mutex);
  return std::ranges::any_of(host_writes_,
                             [&](const SentWrite& write) { return write.position <= position; });
}

void Timeline::follows(std::shared_ptr<ReachedPlace> place) {
  MutexLock lock(host_write_mutex);
  std::erase_if(followed_, [&](const std::shared_ptr<ReachedPlace>& earlier) {
    return earlier->is_reached() || earlier->is_in_stream_of(*place);
  });
  followed_.push_back(std::move(place));
}

std::shared_ptr<ReachedPlace> Timeline::place_after_writes(AddressRange memory) {
  MutexLock lock(host_write_mutex);
  const auto comes_before = [&](const std::shared_ptr<ReachedPlace>& place) {
    return std::ranges::all_of(writers, [&](const Timeline* writer) {
      const std::weak_ptr<const Timeline> self = writer->weak_from_this();
      const bool begun = std::ranges::any_of(
          writer->host_writes_begun_, [&](AddressRange range) { return overlap(range, memory); });
      return !begun && std::ranges::all_of(writer->host_writes_, [&](const SentWrite& write) {
        return !overlap(write.memory, memory) || place->covers(self, write.position);
      });
    });
  };
  const auto found = std::ranges::find_if(followed_, comes_before);
  return found == followed_.end() ? nullptr : *found;
}

void Timeline::settle_host_writes() {
  MutexLock lock(host_write_mutex);
  std::erase_if(host_writes_, [&](const SentWrite& write) {
    return write.position <= reached_.load(std::memory_order_acquire);
  });
  writes_host_.store(!host_writes_.empty(), std::memory_order_release);
  if (host_writes_.empty() && host_writes_begun_.empty()) remove_writer(this);
}

// Replaces an earlier write to exactly the same memory, because that write is done before this one.
void Timeline::note_host_write(AddressRange memory) {
  const uint64_t position = std::max<uint64_t>(sent(), 1);
  const auto same = std::ranges::find_if(
      host_writes_, [&](const SentWrite& write) { return are_equal(write.memory, memory); });
  if (same != host_writes_.end()) {
    same->position = position;
  } else if (host_writes_.size() < kMostHostWrites) {
    host_writes_.push_back({memory, position});
  } else {
    SentWrite& last = host_writes_.back();
    last = {{std::min(last.memory.begin, memory.begin), std::max(last.memory.end, memory.end)},
            position};
  }
  writes_host_.store(true, std::memory_order_release);
}

HostWrite::HostWrite(Timeline* timeline, AddressRange memory)
    : timeline_(timeline), memory_(memory) {
  if (!timeline_) return;
  MutexLock lock(host_write_mutex);
  timeline_->host_writes_begun_.push_back(memory_);
  add_writer(timeline_);
}

HostWrite::~HostWrite() {
  if (!timeline_) return;
  {
    MutexLock lock(host_write_mutex);
    std::vector<AddressRange>& begun = timeline_->host_writes_begun_;
    begun.erase(
        std::ranges::find_if(begun, [&](AddressRange one) { return are_equal(one, memory_); }));
    timeline_->note_host_write(memory_);
  }
  timeline_->settle_host_writes();  // the write may already be done
}

}  // namespace rcuda::client

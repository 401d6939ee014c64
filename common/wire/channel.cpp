#include "common/wire/channel.h"

#include <string>

namespace rcuda::wire {

using Window = ClientWindow;

Reply::~Reply() {
  if (channel_) channel_->release_slot(slot_);
}

Channel::Head::Head(CommandHeader header, const Command& command) {
  header.opcode = command.opcode;
  const size_t bytes = sizeof header + command.body.size();
  std::byte* to = small_;
  if (bytes > sizeof small_) {
    large_.resize(bytes);
    to = large_.data();
  }
  std::memcpy(to, &header, sizeof header);
  if (!command.body.empty()) {
    std::memcpy(to + sizeof header, command.body.data(), command.body.size());
  }
  bytes_ = {to, bytes};
}

Channel::Channel(transport::Link& link, std::chrono::nanoseconds spin,
                 std::chrono::milliseconds patience)
    : link_(link),
      window_(link.window().data()),
      spin_(spin),
      patience_(patience),
      is_network_(link.traits().reach != transport::Reach::kThisMachine),
      ring_(link, kCommandRingLayout) {
  for (uint32_t i = Window::kSmallReplyCount; i-- > 0;) {
    small_slots_.push_back(
        static_cast<uint32_t>(Window::kSmallReplies + uint64_t{i} * Window::kSmallReplyBytes));
  }
  for (uint32_t i = Window::kLargeReplyCount; i-- > 0;) {
    large_slots_.push_back(
        static_cast<uint32_t>(Window::kLargeReplies + uint64_t{i} * Window::kLargeReplyBytes));
  }
}

uint64_t Channel::commands() {
  MutexLock lock(order_mutex_);
  return commands_;
}

// ---- replies -----------------------------------------------------------------------------------

bool Channel::acquire_slot(size_t reply_bytes, bool patient, ReplySlot* slot) {
  const bool small =
      reply_bytes + sizeof(ReplyHeader) + sizeof(uint64_t) <= Window::kSmallReplyBytes;
  const size_t all = small ? Window::kSmallReplyCount : Window::kLargeReplyCount;
  const size_t kept = patient ? 0 : all / 4;
  MutexLock lock(slots_mutex_);
  std::vector<uint32_t>& slots = small ? small_slots_ : large_slots_;
  while (slots.size() <= kept) {
    if (!patient) return false;
    // A slot becomes free when its Reply is destroyed.
    lock.unlock();
    const CancellationOff off;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    lock.lock();
  }
  slot->offset = slots.back();
  slot->bytes = small ? Window::kSmallReplyBytes : Window::kLargeReplyBytes;
  slots.pop_back();
  do {
    slot->call = next_call_.fetch_add(1, std::memory_order_relaxed);
  } while (slot->call == 0);
  return true;
}

void Channel::release_slot(const ReplySlot& slot) {
  MutexLock lock(slots_mutex_);
  (slot.offset < Window::kLargeReplies ? small_slots_ : large_slots_).push_back(slot.offset);
}

bool Channel::has_reply(const ReplySlot& slot) const {
  return ReplyStamp::call(word_at(slot.offset + slot.bytes - sizeof(uint64_t))) == slot.call;
}

Status Channel::take_reply(const ReplySlot& slot, uint32_t* result, Reply* reply) {
  const uint64_t end = slot.offset + slot.bytes - sizeof(uint64_t);
  const uint32_t bytes = ReplyStamp::body_bytes(word_at(end));
  ReplyHeader header;
  const uint64_t most = slot.bytes - sizeof(uint64_t);
  if (bytes < sizeof header || bytes > most) {
    return Status(Code::kProtocol, "the worker sent a reply of " + std::to_string(bytes) +
                                       " bytes; its reply slot takes " +
                                       std::to_string(sizeof header) + " to " +
                                       std::to_string(most) + " bytes; closing the connection");
  }
  const std::byte* const at = window_ + end - ((bytes + 7) & ~7u);
  std::memcpy(&header, at, sizeof header);
  *result = header.result;
  Reply taken({at + sizeof header, bytes - sizeof header});
  taken.channel_ = this;
  taken.slot_ = slot;
  *reply = std::move(taken);
  return {};
}

// ---- completion words --------------------------------------------------------------------------

bool Channel::word_reached(const Word& word, uint32_t* result) const {
  const uint64_t value = word_at(Window::kCompletionWords + 8ull * word.index);
  if (CompletionWord::sequence(value) >= word.sequence) {
    *result = CompletionWord::result(value);
    return true;
  }
  // The GPU-written word is written before the completion word.
  if (word.index >= marks_.size() || word.sequence == 0) return false;
  const auto& mark = reinterpret_cast<const std::atomic<uint64_t>&>(marks_[word.index]);
  *result = 0;
  return mark.load(std::memory_order_acquire) == word.sequence;
}

Status Channel::map_marks(const ReadyEvent& ready) {
  if (ready.marks_region == 0) return {};
  constexpr size_t kMostBytes = sizeof(uint64_t) * Window::kCompletionCount;
  if (ready.marks_bytes == 0 || ready.marks_bytes > kMostBytes) {
    return Status(Code::kProtocol, "the worker announced a region of " +
                                       std::to_string(ready.marks_bytes) +
                                       " bytes for GPU-written words; 1 to " +
                                       std::to_string(kMostBytes) + " bytes are allowed");
  }
  const auto region = static_cast<transport::RegionId>(ready.marks_region);
  RCUDA_ASSIGN_OR_RETURN(void* mapping, link_.map(region, ready.marks_bytes));
  // Null where the medium cannot map. The Link keeps the mapping until it ends.
  if (mapping) {
    marks_ = {static_cast<const uint64_t*>(mapping), ready.marks_bytes / sizeof(uint64_t)};
  }
  return {};
}

bool Channel::is_marked(const Command& command) const {
  if (marks_.empty() || !command.is<SignalBody>()) return false;
  SignalBody signal;
  std::memcpy(&signal, command.body.data(), sizeof signal);
  return signal.word < marks_.size();
}

}  // namespace rcuda::wire

// The functions of the plug-in's interface (plugin.h), and its Link. common/transport/link.h has
// the contract.
//
// VerbsLink is one class in three files: verbs_connect.cpp makes it, verbs_link.cpp has the
// functions for its users, verbs_progress.cpp has its thread. verbs_link.cpp describes the
// protocol.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "common/base/mutex.h"
#include "common/transport/control_channel.h"
#include "common/transport/link_core.h"
#include "common/transport/mapping.h"
#include "common/transport/verbs/adapter_events.h"
#include "common/transport/verbs/bulk_engine.h"
#include "common/transport/verbs/connection.h"
#include "common/transport/verbs/hello.h"
#include "common/transport/verbs/local_memory.h"
#include "common/transport/verbs/loss.h"
#include "common/transport/verbs/medium.h"
#include "common/transport/verbs/put_queue.h"

namespace rcuda::transport::verbs {

Status usable(int control_socket);
Result<std::unique_ptr<Link>> make_link(Bootstrap bootstrap, const LinkOptions& options);

class VerbsLink final : public LinkCore {
 public:
  explicit VerbsLink(const LinkOptions& options)
      : LinkCore(&doorbell_state_, nullptr, false),
        peer_timeout_(options.peer_timeout),
        near_pci_(options.near_pci),
        loss_([this] { poke(); }),
        note_([this](Loss::Sign sign, const std::string& what) { loss_.note(sign, what); }),
        put_queue_(counters_, note_),
        memory_(counters_.registrations),
        bulk_(
            memory_, counters_, note_,
            [this](uint32_t immediate, uint64_t bytes) { immediate_arrived(immediate, bytes); },
            [this](uint64_t region) {
              control_->send({.kind = ControlMessage::kRetired, .region = region});
            }) {}
  ~VerbsLink() override;

  Status connect(Bootstrap bootstrap, const LinkOptions& options);

  const MediumTraits& traits() const override { return kTraits; }
  std::string adapter() const override { return device_name_; }
  std::span<std::byte> window() override { return {window_.data(), window_.size()}; }
  size_t peer_window_bytes() const override { return peer_window_bytes_; }
  Status put(uint64_t offset, std::span<const Bytes> pieces, Wake wake) override;
  Result<Region> expose(void* base, size_t bytes, int backing, uint64_t backing_offset) override;
  Result<Region> expose_device(void* base, size_t bytes, const DeviceMemory& memory) override;
  Status loop_back(void* to, const void* from, size_t bytes) override;
  Status unexpose(RegionId region) override;
  Result<void*> map(RegionId, size_t, void*) override { return static_cast<void*>(nullptr); }
  Status unmap(RegionId) override {
    return {Code::kNotFound, "a connection over verbs has no mapped regions"};
  }
  void write(RegionId region, uint64_t offset, const void* local, size_t bytes,
             TransferDone done) override;
  void read(RegionId region, uint64_t offset, void* local, size_t bytes,
            TransferDone done) override;
  Status put_region(RegionId region, uint64_t offset, Bytes bytes) override;
  void write_with_immediate(RegionId region, uint64_t offset, const void* local, size_t bytes,
                            uint32_t immediate, Company company, TransferDone done) override;
  void announce_silence(bool silent) override { control_->announce_silence(silent); }
  void close() override;
  void abandon() noexcept override;

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr size_t kMaxQueues = 16, kUsualQueues = 4;
  static constexpr uint32_t kReceives = 16;
  // How long a closing Link waits for its last puts to arrive and for posted transfers to complete.
  // Also limits loop_back() if peer_timeout_ is zero.
  static constexpr std::chrono::seconds kLastPuts{2};

  enum Immediate : uint32_t { kFlush = 0, kArm = 1, kAck = 2, kWake = 3 };

  // Making the Link: verbs_connect.cpp.
  Status make_window(size_t bytes);
  Status make_queues();
  Status open(const Socket& control, bool server, Hello* own, Hello* peer, Deadline deadline);
  Status connect_queues(const Socket& control, bool server, const Hello& own, const Hello& peer,
                        Deadline deadline);
  std::vector<QueuePairPlan> plans(size_t queues);
  Status prepare(const Socket& control, const Hello& peer);

  void on_broken() override;
  void before_sleep() override;
  void transfer(const TransferRequest& what, TransferDone done);
  void await_region_puts();
  Status on_control(const ControlMessage& message);
  Region add_region(std::shared_ptr<Registration> registration, bool for_peer);
  void on_control_end(bool intended, const std::string& why);
  void poke();

  // The progress thread: verbs_progress.cpp.
  void run();
  void wait_for_events();
  void take_completion_events();
  void take_immediates();
  void take_connection_events();
  void shut_down();

  const std::chrono::milliseconds peer_timeout_;
  const std::string near_pci_;
  std::string device_name_;
  size_t peer_window_bytes_ = 0;
  DoorbellState doorbell_state_;
  Loss loss_;
  const Loss::Note note_;

  // Members are destroyed from the bottom up; queue pairs are destroyed first, explicitly.
  Connection connection_;
  CompChannel channel_;
  Cq send_cq_;
  Cq receive_cq_;
  Cq bulk_cq_;
  Mapping window_;
  Mr window_mr_;
  PutQueue put_queue_;
  LocalMemory memory_;
  BulkEngine bulk_;

  std::atomic<bool> armed_{false};       // this side awaits a requested wake-up
  std::atomic<bool> peer_armed_{false};  // written only in the order of the puts
  std::atomic<bool> closing_{false};

  // Held while bytes are put into a region of the peer, and while a region is retired: no put may
  // follow the answer kRetired.
  Mutex region_puts_mutex_;
  // PutQueue's number of the last put into a region; 0: all such puts are confirmed.
  std::atomic<uint64_t> last_region_put_{0};

  Mutex regions_mutex_;
  CondVar retired_;
  struct Exposed {
    std::shared_ptr<Registration> registration;
    bool for_peer = true;
  };
  std::unordered_map<uint64_t, Exposed> exposed_ RCUDA_GUARDED_BY(regions_mutex_);
  std::unordered_set<uint64_t> retiring_ RCUDA_GUARDED_BY(regions_mutex_);
  uint64_t next_region_ RCUDA_GUARDED_BY(regions_mutex_) = 1;

  AdapterEvents::Attachment adapter_;
  UniqueFd poke_;
  std::thread progress_;
  std::unique_ptr<ControlChannel> control_;
};

}  // namespace rcuda::transport::verbs

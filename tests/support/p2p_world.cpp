#include "tests/support/p2p_world.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include "common/base/unique_fd.h"
#include "p2p/link/messages.h"

namespace rcuda::testing {

using p2p::CopyBox;
using p2p::DeviceAddress;
using p2p::Lane;
using p2p::StreamPlace;
using p2p::Ticket;

void SimWorld::after_us(double us, std::function<void()> action) {
  const auto ns = static_cast<uint64_t>(std::llround(std::max(us, 0.0) * 1e3));
  events_.emplace(std::pair(now_ns_ + ns, sequence_++), std::move(action));
}

bool SimWorld::run(const std::vector<p2p::Core*>& cores, const std::function<bool()>& done,
                   double limit_us) {
  const double end_us = now_us() + limit_us;
  while (true) {
    bool moved = true;
    while (moved) {
      moved = false;
      for (p2p::Core* core : cores) moved |= core->run_round();
    }
    if (done()) return true;
    if (events_.empty() || now_us() > end_us) return false;
    const auto event = events_.extract(events_.begin());
    now_ns_ = event.key().first;
    event.mapped()();
  }
}

// --- SimDevices ----------------------------------------------------------------------------------

SimDevices::SimDevices(SimWorld& world, std::string name, int count)
    : world_(world), name_(std::move(name)), lanes_(static_cast<size_t>(count)) {}

SimDevices::~SimDevices() {
  for (const auto& [base, bytes] : memory_) {
    everywhere().erase(base);
    delete[] reinterpret_cast<std::byte*>(base);
  }
  if (!registered_.empty()) world_.violation(name_ + ": host memory left registered");
  if (!allocated_.empty()) world_.violation(name_ + ": device memory left allocated");
  if (!places_.empty()) world_.violation(name_ + ": a stream left held");
  if (!mapped_.empty()) world_.violation(name_ + ": a peer's memory left mapped");
}

std::map<uint64_t, uint64_t>& SimDevices::everywhere() {
  static std::map<uint64_t, uint64_t> memory;
  return memory;
}

uint64_t SimDevices::make_stream() {
  const uint64_t id = streams_.size() + 1;
  streams_[id];
  return id;
}

void SimDevices::run_kernel(uint64_t stream, double us, std::function<void()> work) {
  streams_[stream].tasks.push_back({us, std::move(work), 0});
  run_stream(stream);
}

bool SimDevices::stream_idle(uint64_t stream) const {
  const Stream& state = streams_.at(stream);
  return state.tasks.empty() && !state.running;
}

const std::vector<Status>& SimDevices::stream_errors(uint64_t stream) const {
  return streams_.at(stream).errors;
}

void SimDevices::run_stream(uint64_t id) {
  Stream& stream = streams_[id];
  if (stream.running || stream.tasks.empty()) return;
  Task& task = stream.tasks.front();
  if (task.place != 0) {
    const auto place = places_.find(task.place);
    if (place != places_.end()) place->second.reached = true;
    const bool held = std::any_of(places_.begin(), places_.end(), [&](const auto& entry) {
      return entry.second.task == task.place && entry.second.hold;
    });
    if (held) return;
    stream.tasks.pop_front();
    return run_stream(id);
  }
  stream.running = true;
  world_.after_us(task.us, [this, id] {
    Stream& running = streams_[id];
    const Task done = std::move(running.tasks.front());
    running.tasks.pop_front();
    running.running = false;
    if (done.work) done.work();
    run_stream(id);
  });
}

std::byte* SimDevices::make_memory(size_t bytes) {
  auto* memory = new std::byte[bytes];
  memory_[reinterpret_cast<uint64_t>(memory)] = bytes;
  everywhere()[reinterpret_cast<uint64_t>(memory)] = bytes;
  return memory;
}

void SimDevices::free_memory(std::byte* memory) {
  memory_.erase(reinterpret_cast<uint64_t>(memory));
  everywhere().erase(reinterpret_cast<uint64_t>(memory));
  delete[] memory;
}

std::vector<p2p::EngineDevice> SimDevices::devices() {
  std::vector<p2p::EngineDevice> devices;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    devices.push_back({"GPU-" + name_ + "-" + std::to_string(i), ""});
  }
  return devices;
}

bool SimDevices::known(uint64_t address, uint64_t bytes, bool* host) const {
  const auto inside = [&](const std::map<uint64_t, uint64_t>& ranges) {
    auto range = ranges.upper_bound(address);
    if (range == ranges.begin()) return false;
    --range;
    return address + bytes <= range->first + range->second;
  };
  *host = inside(registered_);
  return *host || inside(memory_) || inside(allocated_) || inside(everywhere());
}

void SimDevices::move(const CopyBox& box) {
  for (uint64_t slice = 0; slice < box.slices; ++slice) {
    for (uint64_t row = 0; row < box.rows; ++row) {
      const uint64_t to =
          box.destination + slice * box.destination_slice + row * box.destination_pitch;
      const uint64_t from = box.source + slice * box.source_slice + row * box.source_pitch;
      bool host = false;
      if (!known(to, box.width_bytes, &host) || !known(from, box.width_bytes, &host)) {
        world_.violation(name_ + ": a copy of memory that is neither on the device nor registered");
        return;
      }
      if (!world_.move_bytes) continue;
      std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from),
                   box.width_bytes);
    }
  }
}

Result<Ticket> SimDevices::copy(int device, Lane lane, std::span<const CopyBox> boxes) {
  ++copies_;
  LaneState& state = lanes_[static_cast<size_t>(device)][static_cast<size_t>(lane)];
  if (!state.failure.ok()) return state.failure;
  const Speed& speed = lane == Lane::kOut  ? speeds_.out
                       : lane == Lane::kIn ? speeds_.in
                                           : speeds_.local;
  const auto due = [lane](std::map<Lane, int>& counts) {
    const auto found = counts.find(lane);
    if (found == counts.end() || --found->second != 0) return false;
    counts.erase(found);
    return true;
  };
  const bool refuse = !boxes.empty() && due(refusing_);
  std::vector<CopyBox> list(boxes.begin(), boxes.end());
  if (refuse) {
    list.resize((list.size() + 1) / 2);
    list.back().width_bytes = (list.back().width_bytes + 1) / 2;
  }
  uint64_t bytes = 0;
  for (const CopyBox& box : list) bytes += box.width_bytes * box.rows * box.slices;
  state.free_us = std::max(state.free_us, world_.now_us()) + speed.busy_us(bytes);
  const Ticket ticket = ++state.issued;
  const bool fail = !boxes.empty() && due(failing_);
  world_.after_us(state.free_us + speed.delay_us - world_.now_us(),
                  [this, &state, ticket, fail, list = std::move(list)] {
                    if (fail) {
                      state.failure = Status::from_cuda(719, "a simulated copy");
                      return;
                    }
                    for (const CopyBox& box : list) move(box);
                    state.finished = ticket;
                  });
  if (refuse) return Status::from_cuda(1, "a simulated copy");
  return ticket;
}

Result<Ticket> SimDevices::finished(int device, Lane lane) {
  LaneState& state = lanes_[static_cast<size_t>(device)][static_cast<size_t>(lane)];
  if (!state.failure.ok()) {
    // The error is reported once; then the lane works again. (In reality, the context would stay
    // broken. The lanes of other devices would still work.)
    return std::exchange(state.failure, {});
  }
  return state.finished;
}

Result<StreamPlace> SimDevices::enter(p2p::StreamRef ref, bool hold) {
  const uint64_t id = next_place_++;
  const auto last = places_.find(last_hold_);
  const bool joins = hold && ref.follows && last != places_.end();
  if (hold) last_hold_ = id;
  if (joins) {
    places_[id] = {ref.stream, hold, false, last->first, last->second.task};
    return StreamPlace{id};
  }
  places_[id] = {ref.stream, hold, false, 0, id};
  streams_[ref.stream].tasks.push_back({0, {}, id});
  run_stream(ref.stream);
  return StreamPlace{id};
}

Result<bool> SimDevices::reached(StreamPlace place) {
  const auto found = places_.find(static_cast<uint64_t>(place));
  if (found == places_.end()) {
    world_.violation(name_ + ": a place queried after its release");
    return false;
  }
  const PlaceState& state = found->second;
  if (const auto failed = failed_streams_.find(state.stream); failed != failed_streams_.end()) {
    return Status::from_cuda(failed->second, "a simulated stream");
  }
  return state.behind != 0 ? !places_.contains(state.behind) : state.reached;
}

void SimDevices::release(StreamPlace place, const Status& status) {
  const auto found = places_.find(static_cast<uint64_t>(place));
  if (found == places_.end()) {
    world_.violation(name_ + ": a place released twice");
    return;
  }
  const uint64_t stream = found->second.stream;
  if (!status.ok()) streams_[stream].errors.push_back(status);
  places_.erase(found);
  run_stream(stream);
}

bool SimDevices::holding() {
  return std::any_of(places_.begin(), places_.end(),
                     [](const auto& entry) { return entry.second.hold; });
}

bool SimDevices::pause(p2p::Pause what) {
  paused_ |= what <= strongest_pause_ && !holding();
  return paused_ && what <= strongest_pause_;
}

void SimDevices::want_pause(const char* call) {
  if (!paused_ || holding()) world_.violation(name_ + ": " + call + " outside of a pause");
}

void SimDevices::expect_withdrawn(uint64_t base) {
  if (world_.exposed.contains(base)) {
    world_.violation(name_ + ": memory released while a peer may access it");
  }
}

Status SimDevices::register_host(void* base, size_t bytes) {
  want_pause("register_host");
  if (fail_registration_) return Status::from_cuda(2, "cuMemHostRegister");
  registered_[reinterpret_cast<uint64_t>(base)] = bytes;
  return {};
}

void SimDevices::unregister_host(void* base) {
  want_pause("unregister_host");
  expect_withdrawn(reinterpret_cast<uint64_t>(base));
  if (registered_.erase(reinterpret_cast<uint64_t>(base)) == 0) {
    world_.violation(name_ + ": unregistered memory that was not registered");
  }
}

Result<DeviceAddress> SimDevices::allocate(int, size_t bytes) {
  want_pause("allocate");
  if (fail_allocation_) return Status::from_cuda(2, "cuMemAlloc");
  const auto address = reinterpret_cast<uint64_t>(new std::byte[bytes]);
  allocated_[address] = bytes;
  everywhere()[address] = bytes;
  return address;
}

void SimDevices::free(int, DeviceAddress address) {
  want_pause("free");
  expect_withdrawn(address);
  if (allocated_.erase(address) == 0) {
    world_.violation(name_ + ": freed memory that was not allocated");
    return;
  }
  everywhere().erase(address);
  delete[] reinterpret_cast<std::byte*>(address);
}

Result<p2p::ExportedMemory> SimDevices::export_memory(int, DeviceAddress address) {
  if (!ipc_) return Status(Code::kUnsupported, "no mapped memory in this test");
  for (const auto* ranges : {&memory_, &allocated_}) {
    auto range = ranges->upper_bound(address);
    if (range == ranges->begin()) continue;
    --range;
    if (address >= range->first + range->second) continue;
    p2p::ExportedMemory memory;
    std::memcpy(memory.handle.data(), &range->first, sizeof range->first);
    memory.offset = address - range->first;
    return memory;
  }
  return Status(Code::kInvalidArgument, "not memory of this device");
}

Result<p2p::MappedMemory> SimDevices::open(int device, const p2p::ExportedMemory& memory) {
  if (!ipc_) return Status(Code::kUnsupported, "no mapped memory in this test");
  if (failing_mapping_ > 0 && --failing_mapping_ == 0) {
    return Status::from_cuda(2, "cuIpcOpenMemHandle");
  }
  DeviceAddress base = 0;
  std::memcpy(&base, memory.handle.data(), sizeof base);
  const auto memory_there = everywhere().find(base);
  if (memory_there == everywhere().end()) return Status::from_cuda(1, "cuIpcOpenMemHandle");
  if (!mapped_.insert({device, base}).second) world_.violation(name_ + ": a handle opened twice");
  ++opened_;
  return p2p::MappedMemory{base, memory_there->second};
}

void SimDevices::close(int device, DeviceAddress base) {
  want_pause("close");
  if (mapped_.erase({device, base}) == 0) world_.violation(name_ + ": closed an unopened mapping");
}

bool SimDevices::prove_gpudirect(int, transport::Link&) {
  want_pause("prove_gpudirect");
  return gpudirect_;
}

// --- SimLink -------------------------------------------------------------------------------------

namespace {

struct SimRegion {
  std::byte* base = nullptr;
  size_t bytes = 0;
  std::shared_ptr<UniqueFd> backing;
};

// Shared by both ends of a pair.
struct SimCable {
  SimWorld& world;
  transport::MediumTraits traits;
  SimWire wire;
  struct End {
    std::vector<std::byte> window;
    std::map<uint64_t, SimRegion> regions;
    uint64_t next_region = 1;
    double wire_free_us = 0;  // when the wire away from this end is free
    bool gone = false;        // the Link object was destroyed
    bool refuse = false;
    std::map<uint64_t, transport::TransferDone> pending;  // transfers in flight from this end
    transport::ImmediateArrived immediate_arrived;
    uint64_t next_transfer = 1;
  };
  End ends[2];
  Status broken;

  void break_with(const Status& status) {
    if (!broken.ok()) return;
    broken = status;
    for (End& end : ends) {
      auto pending = std::exchange(end.pending, {});
      for (auto& [id, done] : pending) done(broken);
    }
  }
};

}  // namespace

class SimLink final : public transport::Link {
 public:
  SimLink(std::shared_ptr<SimCable> cable, int end) : cable_(std::move(cable)), end_(end) {}
  ~SimLink() override {
    close();
    own().gone = true;
    while (!own().regions.empty()) withdraw(own().regions.begin());
    if (!lent_.empty()) cable_->world.violation("memory is still lent when its Link ends");
    for (const auto& [region, mapping] : mapped_) ::munmap(mapping.first, mapping.second);
  }

  const transport::MediumTraits& traits() const override { return cable_->traits; }
  std::span<std::byte> window() override { return own().window; }
  size_t peer_window_bytes() const override { return cable_->ends[1 - end_].window.size(); }

  Status put(uint64_t offset, std::span<const transport::Bytes> pieces, transport::Wake) override {
    if (!cable_->broken.ok()) return cable_->broken;
    std::vector<std::byte> bytes;
    for (const auto& piece : pieces) bytes.insert(bytes.end(), piece.begin(), piece.end());
    if (offset % 8 != 0 || bytes.size() % 8 != 0 || bytes.size() < 8 ||
        offset + bytes.size() > peer().window.size()) {
      cable_->world.violation("a put outside of the peer's window, or not in whole words");
      return {};
    }
    // A message's time does not depend on its size.
    cable_->world.after_us(
        cable_->wire.message_us, [cable = cable_, to = 1 - end_, offset, bytes = std::move(bytes)] {
          if (cable->ends[to].gone) return;
          std::memcpy(cable->ends[to].window.data() + offset, bytes.data(), bytes.size());
        });
    return {};
  }

  Status wait(const std::function<bool()>& ready, std::chrono::steady_clock::time_point,
              transport::WokenBy) override {
    if (ready()) return {};
    if (!cable_->broken.ok()) return cable_->broken;
    return {Code::kTimeout, "simulated links do not sleep"};
  }
  void interrupt() override {}

  Result<transport::Region> expose(void* base, size_t bytes, int backing, uint64_t) override {
    if (!cable_->broken.ok()) return cable_->broken;
    if (own().refuse) return Status::from_errno(ENOMEM, "registering memory");
    const uint64_t id = own().next_region++;
    own().regions[id] = {static_cast<std::byte*>(base), bytes,
                         backing >= 0 ? std::make_shared<UniqueFd>(::dup(backing)) : nullptr};
    cable_->world.exposed.insert(reinterpret_cast<uint64_t>(base));
    return transport::Region{transport::RegionId{id}, bytes};
  }
  Result<transport::Region> expose_device(void* base, size_t bytes,
                                          const transport::DeviceMemory&) override {
    if (!traits().has_adapter)
      return Status(Code::kUnsupported, "this simulated medium has no adapter for device memory");
    return expose(base, bytes, -1, 0);
  }
  Status loop_back(void*, const void*, size_t) override {
    return {Code::kUnsupported, "simulated links have no adapter"};
  }
  Status unexpose(transport::RegionId region) override {
    const auto found = own().regions.find(static_cast<uint64_t>(region));
    if (found != own().regions.end()) withdraw(found);
    return cable_->broken;
  }
  Result<void*> map(transport::RegionId region, size_t, void*) override {
    const auto found = peer().regions.find(static_cast<uint64_t>(region));
    if (found == peer().regions.end())
      return Status(Code::kNotFound, "the peer has not exposed the region");
    if (!traits().shares_pages || !found->second.backing) return static_cast<void*>(nullptr);
    // Each end has its own mapping, as two processes have.
    void* base = ::mmap(nullptr, found->second.bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                        found->second.backing->get(), 0);
    if (base == MAP_FAILED) return Status::from_errno(errno, "mapping a region");
    mapped_[region] = {base, found->second.bytes};
    return base;
  }
  Status unmap(transport::RegionId region) override {
    const auto found = mapped_.find(region);
    if (found == mapped_.end()) return {Code::kNotFound, "the region is not mapped"};
    ::munmap(found->second.first, found->second.second);
    mapped_.erase(found);
    return {};
  }

  void lend(const void* base, size_t bytes) override {
    lent_.insert({static_cast<const std::byte*>(base), bytes});
  }
  void take_back(const void* base, size_t bytes) override {
    lent_.erase({static_cast<const std::byte*>(base), bytes});
  }

  void write(transport::RegionId region, uint64_t offset, const void* local, size_t bytes,
             transport::TransferDone done) override {
    write_with_immediate(region, offset, local, bytes, 0, transport::Company::kAlone,
                         std::move(done));
  }
  void on_immediate(transport::ImmediateArrived arrived) override {
    own().immediate_arrived = std::move(arrived);
  }
  void write_with_immediate(transport::RegionId region, uint64_t offset, const void* local,
                            size_t bytes, uint32_t immediate, transport::Company,
                            transport::TransferDone done) override {
    if (!cable_->broken.ok()) return done(cable_->broken);
    auto& end = own();
    const double now = cable_->world.now_us();
    end.wire_free_us = std::max(end.wire_free_us, now) + cable_->wire.speed.busy_us(bytes);
    const uint64_t id = end.next_transfer++;
    end.pending[id] = std::move(done);
    const double late_us = id % 2 == 1 ? cable_->wire.uneven_us : 0;
    // Over a socket, a write completes long before its bytes arrive. The Link may read the caller's
    // memory until they have arrived.
    if (immediate != 0 && traits().copies_by_cpu) {
      if (!is_lent(static_cast<const std::byte*>(local), bytes)) {
        cable_->world.violation("a chunk is sent from memory that is not lent to the Link");
      }
      cable_->world.after_us(end.wire_free_us - now, [cable = cable_, from = end_, id] {
        const auto pending = cable->ends[from].pending.find(id);
        if (pending == cable->ends[from].pending.end()) return;
        std::exchange(pending->second, [](const Status&) {})({});
      });
    }
    cable_->world.after_us(
        end.wire_free_us + cable_->wire.speed.delay_us + late_us - now,
        [cable = cable_, from = end_, id, region, offset, local, bytes, immediate] {
          auto& sender = cable->ends[from];
          const auto pending = sender.pending.find(id);
          if (pending == sender.pending.end()) return;
          const auto finished = std::move(pending->second);
          sender.pending.erase(pending);
          auto& regions = cable->ends[1 - from].regions;
          const auto target = regions.find(static_cast<uint64_t>(region));
          if (target == regions.end() || offset + bytes > target->second.bytes) {
            return finished(Status(Code::kProtocol, "a write outside the region"));
          }
          if (cable->world.move_bytes) std::memcpy(target->second.base + offset, local, bytes);
          const auto& arrived = cable->ends[1 - from].immediate_arrived;
          if (immediate != 0 && arrived) {
            // In two parts, as a medium may cut a write.
            arrived(immediate, bytes / 2);
            arrived(immediate, bytes - bytes / 2);
          }
          if (immediate != 0) return finished({});
          // Without an immediate, the write completes when the peer's answer arrives.
          cable->world.after_us(cable->wire.message_us, [finished] { finished({}); });
        });
  }
  void read(transport::RegionId, uint64_t, void*, size_t, transport::TransferDone done) override {
    done(Status(Code::kUnsupported, "simulated links only write"));
  }

  Status status() const override { return cable_->broken; }
  void close() override {
    cable_->break_with({Code::kUnavailable, "the peer ended the connection"});
  }
  transport::LinkCounters counters() const override { return {}; }
  void abandon() noexcept override {}

 private:
  SimCable::End& own() { return cable_->ends[end_]; }
  SimCable::End& peer() { return cable_->ends[1 - end_]; }
  bool is_lent(const std::byte* begin, size_t bytes) const {
    return std::ranges::any_of(lent_, [&](const auto& one) {
      return one.first <= begin && begin + bytes <= one.first + one.second;
    });
  }
  void withdraw(std::map<uint64_t, SimRegion>::iterator region) {
    auto& exposed = cable_->world.exposed;
    exposed.erase(exposed.find(reinterpret_cast<uint64_t>(region->second.base)));
    own().regions.erase(region);
  }

  std::shared_ptr<SimCable> cable_;
  const int end_;
  std::map<transport::RegionId, std::pair<void*, size_t>> mapped_;
  std::set<std::pair<const std::byte*, size_t>> lent_;
};

SimLinkPair make_sim_links(SimWorld& world, const char* medium, const SimWire& wire) {
  auto cable = std::make_shared<SimCable>(
      SimCable{world, transport::find_medium(medium)->traits, wire, {}, {}});
  for (auto& end : cable->ends) end.window.resize(p2p::PeerWindow::kBytes);
  SimLinkPair pair;
  pair.first = std::make_unique<SimLink>(cable, 0);
  pair.second = std::make_unique<SimLink>(cable, 1);
  pair.cut = [cable] { cable->break_with({Code::kUnavailable, "the cable was cut"}); };
  pair.refuse_registration = [cable](bool first) { cable->ends[first ? 0 : 1].refuse = true; };
  return pair;
}

}  // namespace rcuda::testing

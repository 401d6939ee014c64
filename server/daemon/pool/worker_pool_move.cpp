// Moves parked sessions to other GPUs of the server. The driver moves the memory when the session
// wakes. From the request on, the session's memory is counted and shown on the new GPU.
#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "common/base/list_text.h"
#include "common/base/log.h"
#include "server/daemon/pool/worker_pool.h"

namespace rcuda::server {
namespace {

constexpr uint32_t kLeastDriver = 13000;  // CUDA 13.0, which NVIDIA driver 580 brings

}  // namespace

Result<uint32_t> WorkerPool::move_session(uint32_t worker_pid, std::optional<uint32_t> from,
                                          std::optional<uint32_t> chosen,
                                          const std::function<bool(uint32_t gpu)>& may_take,
                                          const Identity& by) {
  RCUDA_ASSIGN_OR_RETURN(Worker* const worker,
                         find_session(worker_pid, [](const Identity&) { return true; }));
  if (!from && worker->session.devices.size() != 1) {
    return Status(Code::kInvalidArgument, "the session of worker " + std::to_string(worker_pid) +
                                              " has the GPUs " + list_of(worker->session.devices) +
                                              ": name one of them (--from)");
  }
  const uint32_t source = from.value_or(worker->session.devices.front());
  if (!chosen) {
    RCUDA_ASSIGN_OR_RETURN(chosen, choose_gpu(*worker, source, may_take));
  }
  const uint32_t to = *chosen;
  RCUDA_RETURN_IF_ERROR(check_move(*worker, source, to));
  std::map<uint32_t, uint32_t>& moves = worker->park.moves;
  // Keeps the map a permutation: every GPU in it gets the memory of exactly one GPU.
  for (const uint32_t gpu : {source, to}) moves.try_emplace(gpu, gpu);
  for (auto& [gpu, place] : moves) place = place == source ? to : place == to ? source : place;
  set_devices(*worker, {{source, to}}, ParkStep::What::kPlace);
  ++worker->park.unanswered_moves;
  RCUDA_INFO("the session of worker %d (%s) will wake on GPU %u instead of %u, as %s requested",
             worker->pid, worker->identity.user.c_str(), to, source, by.user.c_str());
  if (audit_) audit_->control("move", by, worker_pid);
  return to;
}

Result<uint32_t> WorkerPool::choose_gpu(const Worker& worker, uint32_t from,
                                        const std::function<bool(uint32_t gpu)>& may_take) {
  const auto sessions_of = [&](uint32_t gpu) {
    return std::ranges::count_if(workers_, [gpu](const Worker& other) {
      const std::vector<uint32_t>& devices = other.session.devices;
      return other.is(State::kBusy) && std::ranges::find(devices, gpu) != devices.end();
    });
  };
  std::optional<uint32_t> best;
  Status why(Code::kUnavailable,
             "the server has no other GPU that can take the session of worker " +
                 std::to_string(worker.pid));
  for (const uint32_t gpu : offer_.ordinals()) {
    if (gpu == from || !may_take(gpu)) continue;
    if (const Status may = check_move(worker, from, gpu); !may.ok()) {
      why = may;
    } else if (!best || sessions_of(gpu) < sessions_of(*best)) {
      best = gpu;
    }
  }
  if (!best) return why;
  return *best;
}

Status WorkerPool::check_move(const Worker& worker, uint32_t from, uint32_t to) {
  const std::string who = "the session of worker " + std::to_string(worker.pid);
  const std::vector<uint32_t>& devices = worker.session.devices;
  if (std::ranges::find(devices, from) == devices.end()) {
    return {Code::kInvalidArgument,
            who + " does not have GPU " + std::to_string(from) + ", but " + list_of(devices)};
  }
  if (std::ranges::find(devices, to) != devices.end()) {
    return {Code::kInvalidArgument, who + " has GPU " + std::to_string(to) + " already"};
  }
  const auto find = [&](uint32_t ordinal) {
    return std::ranges::find(offer_.devices, ordinal, &wire::ServerStatus::Device::ordinal);
  };
  const auto source = find(from), target = find(to);
  if (source == offer_.devices.end() || target == offer_.devices.end()) {
    return {Code::kInvalidArgument,
            "the server does not offer GPU " + std::to_string(to) + ": rcuda-smi lists its GPUs"};
  }
  if (source->name != target->name || source->total_bytes != target->total_bytes) {
    return {Code::kInvalidArgument, "GPU " + std::to_string(to) + " (" + target->name +
                                        ") is of another kind than GPU " + std::to_string(from) +
                                        " (" + source->name + "): name a GPU of the same kind"};
  }
  if (!worker.identity.lease.empty()) {
    return {Code::kInvalidArgument, who + " runs under a lease, so it stays on the leased GPUs"};
  }
  if (worker.devices && !worker.devices->empty()) {
    return {Code::kInvalidArgument,
            who +
                " can use only its own GPUs, because the server has device_isolation = "
                "\"session\""};
  }
  if (to >= Ledger::kDevices && worker.permit && worker.permit->device_room(from)) {
    return {Code::kInvalidArgument,
            "the session has a memory limit, which the server can "
            "apply only to GPUs 0 to " +
                std::to_string(Ledger::kDevices - 1) + ", not to GPU " + std::to_string(to)};
  }
  if (offer_.driver_version < kLeastDriver) {
    return {Code::kInvalidArgument,
            "the server's driver cannot move sessions: install NVIDIA driver 580 or later"};
  }
  if (worker.park.state != ParkState::kParked) {
    return {Code::kUnavailable, who + " is not parked: park it first (rcuda-smi park)"};
  }
  if (worker.park.way == ParkWay::kWorker) {
    return {Code::kUnavailable, who +
                                    " is parked by its worker, which keeps its context on the GPU: "
                                    "only a server without movable_memory can move sessions"};
  }
  if (group_of(worker).size() > 1) {
    return {Code::kUnavailable, who +
                                    " shares memory or an NCCL communicator with other sessions. "
                                    "Such a session cannot move: wait until the others have ended, "
                                    "or end them (rcuda-smi end)"};
  }
  return {};
}

// Replaces devices of the session. `moves`: the new device, by the device that the session has now.
void WorkerPool::set_devices(Worker& worker, const std::map<uint32_t, uint32_t>& moves,
                             ParkStep::What step) {
  std::map<uint32_t, uint64_t> bytes;
  for (uint32_t& device : worker.session.devices) {
    const auto move = moves.find(device);
    const uint32_t before = std::exchange(device, move == moves.end() ? device : move->second);
    bytes[device] = worker.park.bytes[before];
  }
  worker.park.bytes = std::move(bytes);
  // Updates the message that a successor gets (carry()).
  Result<ToWorker> message = decode_message<ToWorker>(worker.start);
  if (auto* const start = message.ok() ? std::get_if<SessionStart>(&*message) : nullptr) {
    start->hello.devices = worker.session.devices;
    worker.start = encode_message(*message);
  }
  send_step(worker, ParkStep{step, 0, {}, worker.session.devices});
}

// Undoes the move, because the driver has restored the session on its old GPU.
void WorkerPool::move_back(Worker& worker, const std::string& why) {
  std::map<uint32_t, uint32_t> back;
  for (const auto& [gpu, place] : worker.park.moves) back[place] = gpu;
  RCUDA_WARN("the session of worker %d stays on its GPU: %s", worker.pid, why.c_str());
  worker.park.refused = "it is not moved: " + why;
  set_devices(worker, back, ParkStep::What::kPlaceBack);
}

GpuMoves WorkerPool::moves_of(const Worker& worker) const {
  const auto name_of = [&](uint32_t ordinal) {
    const std::vector<uint32_t> ordinals = offer_.ordinals();
    const auto found = std::ranges::find(ordinals, ordinal);
    return found == ordinals.end()
               ? std::string()
               : offer_.identities[static_cast<size_t>(found - ordinals.begin())].uuid;
  };
  GpuMoves moves;
  for (const auto& [gpu, place] : worker.park.moves) {
    if (gpu != place) moves[name_of(gpu)] = name_of(place);
  }
  return moves;
}

}  // namespace rcuda::server

// What the pool tells of its sessions: all of them to the server's own user and to root, and to
// others their own.
#include <algorithm>

#include <unistd.h>

#include "server/daemon/worker_pool.h"

namespace rcuda::server {

bool WorkerPool::shows(const Worker& worker, const Identity& to) const {
  if (!worker.is(State::kBusy)) return false;
  const bool all = to.method != "insecure" && (to.uid == ::geteuid() || to.uid == 0u);
  return all || same_user(worker.identity, to);
}

void WorkerPool::report(wire::ServerStatus* status, const Identity& to) const {
  status->driver = offer_.driver;
  status->devices = offer_.devices;
  for (const Worker& worker : workers_) {
    if (worker.is(State::kIdle)) ++status->idle_workers;
    if (!shows(worker, to)) continue;
    status->sessions.push_back(worker.session);
    status->sessions.back().user = worker.identity.user;
    status->sessions.back().seconds = static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - worker.since).count());
  }
}

std::optional<Admission::Room> WorkerPool::report(wire::GpuReport::Gpu* gpu,
                                                  const std::map<uint32_t, uint64_t>& memory_of,
                                                  const Identity& to) const {
  std::optional<Admission::Room> least;
  for (const Worker& worker : workers_) {
    const std::vector<uint32_t>& devices = worker.session.devices;
    if (!shows(worker, to) ||
        std::find(devices.begin(), devices.end(), gpu->ordinal) == devices.end()) {
      continue;
    }
    wire::GpuReport::Process process{worker.session.host, worker.session.client_pid};
    const auto told = memory_of.find(static_cast<uint32_t>(worker.pid));
    if (told != memory_of.end()) process.used_bytes = told->second;
    if (worker.permit) {
      const auto booked = worker.permit->device_use(gpu->ordinal);
      if (booked) process.used_bytes = *booked;
      const auto room = worker.permit->device_room(gpu->ordinal);
      if (room && same_user(worker.identity, to) && (!least || room->free < least->free)) {
        least = room;
      }
    }
    gpu->processes.push_back(std::move(process));
  }
  return least;
}

}  // namespace rcuda::server

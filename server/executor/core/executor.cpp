#include "server/executor/core/executor.h"

#include <string>

namespace rcuda::server {
namespace {

PeerHub::Options peer_options(const PeerSettings& settings, Answers& answers, Jobs& jobs,
                              ExportedNames& names) {
  PeerHub::Options options{settings};
  options.names = &names;
  options.on_error = [&answers](CUresult error) { answers.latch(error); };
  // Wakes the executor thread: the CommandScheduler may hold back a command that can run after this
  // change.
  options.on_change = [&jobs] { jobs.wake(); };
  // The engine's thread must not wait. So if the event ring is full, the executor thread sends the
  // line.
  options.report = [&answers, &jobs](const std::string& line) {
    if (answers.events().try_output(true, line).ok()) return;
    jobs.post([&answers, line] { (void)answers.events().output(true, line); });
  };
  return options;
}

// If the bandwidth is limited, the client must not write into shadows before the copy starts:
// CopyPace may hold the copy back, and the copy must not use the bandwidth in the meantime.
HostMemory::Options host_options(const SessionResources& resources) {
  HostMemory::Options options = resources.host_memory;
  options.client_writes = !resources.quota->limits(&Allowance::bandwidth);
  return options;
}

// Whether the GPU may write words for waits of the client. The client can map these words only over
// a medium that shares pages. They are page-locked in the context of the first device. A reset of
// this context unpins them for a moment, in which no other device may write them. So the session
// must have only one device.
bool can_mark(const SessionResources& resources) {
  return resources.link->traits().shares_pages && resources.devices.size() == 1;
}

}  // namespace

Executor::Executor(const SessionResources& given)
    : resources(given),
      names(given.exporter),
      movable(*given.unmetered, names, given.devices, given.movable_memory),
      meters(movable.table(), given.devices, given.quota, given.limits, &done),
      driver(meters.table()),
      link(*given.link),
      objects(driver, resources.devices),
      answers(link),
      jobs(link, work),
      output(driver, objects, resources.output),
      origins(movable.table(), resources.devices),
      opened(meters, resources.devices),
      peers(*given.unmetered, peer_options(resources.peers, answers, jobs, names)),
      peer_memory(driver, work),
      pool_frees(driver, objects, [this] { return peers.holding(); }),
      digest_memory(driver, meters.memory),
      completions(driver, objects, work, answers, output, pool_frees,
                  {can_mark(resources) ? resources.wait_marks : std::span<std::byte>(),
                   resources.most_streams}),
      idle(driver, objects, work, completions),
      device_waits(objects, idle, jobs, peers),
      client_resources(answers.events()),
      arrivals(std::make_shared<transport::Arrivals>()),
      host_memory(driver, link, *arrivals, client_resources, meters.memory,
                  host_options(resources)),
      region_puts(
          std::make_shared<RegionPuts>(driver, link, answers, completions, names, resources.marks)),
      mirrors(driver, link, objects, answers, completions, host_memory, digest_memory),
      graph_keeper(driver, objects, client_resources, idle),
      arrival_gates(std::make_shared<ArrivalGates>(driver, resources.arrival_words)),
      host_callbacks(driver, link, answers.events(), client_resources, graph_keeper, mirrors,
                     arrival_gates),
      gpu_direct(*given.unmetered, link, movable),
      transfers(driver, link, answers, host_memory, gpu_direct, region_puts, arrival_gates,
                *arrivals),
      graph_copies(driver, graph_keeper, {host_memory, mirrors, transfers, host_callbacks},
                   resources.quota->limits(&Allowance::bandwidth)),
      pace(*resources.quota, host_memory, objects, graph_copies),
      images(resources.images),
      nccl(*resources.unmetered, jobs, resources.nccl),
      common_services{driver, resources, objects, answers, output, completions},
      loop_services{common_services, done,      meters,       movable,   work,         jobs,
                    peers,           idle,      device_waits, *arrivals, *region_puts, mirrors,
                    gpu_direct,      transfers, pace},
      blob_services{blobs},
      context_services{common_services, peers,  host_memory,     mirrors,
                       links,           opened, device_resources},
      copy_services{common_services, host_memory, graph_keeper, transfers, *arrivals, done},
      graph_services{driver, objects, host_memory, graph_keeper, graph_copies, host_callbacks},
      interprocess_services{driver, names, origins, movable, opened},
      launch_services{driver, objects, completions, host_callbacks},
      memory_services{driver,  meters,       pool_frees, host_memory,
                      mirrors, *region_puts, names,      origins},
      module_services{common_services, device_waits, images, links},
      nccl_services{objects, answers, completions, nccl},
      peer_services{resources, objects, answers, work, idle, peers, peer_memory, done},
      stream_services{common_services, idle} {
  link.before_puts([puts = region_puts] { puts->deliver(); });
  link.on_immediate([arrivals = arrivals](uint32_t immediate, uint64_t bytes) {
    arrivals->arrived(immediate, bytes);
  });
  peers.wait_for_client([puts = region_puts](uint64_t* number) { return puts->client_has(number); });
  names.before_first_use([puts = region_puts.get()] { puts->await_marks(); });
  meters.memory.tell = [this](const std::string& text) {
    (void)answers.events().notice(false, text);
  };
  meters.before_trimming = [this] {
    if (peers.holding()) return false;
    pool_frees.reached_all();
    return true;
  };
}

Executor::~Executor() { region_puts->end(); }

}  // namespace rcuda::server

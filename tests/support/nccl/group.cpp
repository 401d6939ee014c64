#include "tests/support/nccl/group.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace testnccl {
namespace {

struct Step {
  CommunicatorPtr communicator;
  std::optional<Request> collective;
  std::optional<Leg> leg;
};

struct Job {
  std::vector<Setup> setups;
  std::vector<Step> steps;
  std::vector<CommunicatorPtr> used;
};

struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  Job job;
};

Group& group() {
  thread_local Group mine;
  return mine;
}

std::mutex handles_mutex;
std::map<ncclComm_t, CommunicatorPtr>& handles() {
  static auto* all = new std::map<ncclComm_t, CommunicatorPtr>;
  return *all;
}

std::string& refusal() {
  thread_local std::string text;
  return text;
}

ncclResult_t run_setups(const std::vector<Setup>& setups) {
  std::vector<ncclResult_t> results(setups.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < setups.size(); ++i)
    threads.emplace_back([&, i] { results[i] = setups[i].run(); });
  for (std::thread& thread : threads) thread.join();
  const auto bad = std::find_if(results.begin(), results.end(),
                                [](ncclResult_t each) { return each != ncclSuccess; });
  for (size_t i = 0; i < setups.size(); ++i) {
    if (results[i] == ncclSuccess || !setups[i].made || !setups[i].made->blocking()) continue;
    (void)take(*setups[i].handle);
    setups[i].made->abort();
    *setups[i].handle = nullptr;
  }
  return bad == results.end() ? ncclSuccess : *bad;
}

// Connects ranks that have had no operation with each other: the first operation with a rank waits
// until that rank calls, too.
ncclResult_t connect(const std::vector<Step>& steps) {
  std::vector<std::pair<CommunicatorPtr, std::set<int32_t>>> peers;
  for (const Step& step : steps) {
    auto found = std::find_if(peers.begin(), peers.end(),
                              [&](const auto& each) { return each.first == step.communicator; });
    if (found == peers.end()) found = peers.insert(peers.end(), {step.communicator, {}});
    for (int32_t rank = 0; rank < step.communicator->ranks(); ++rank) {
      if (!step.leg || step.leg->transfer.peer == rank) found->second.insert(rank);
    }
  }
  std::erase_if(peers, [](const auto& each) { return each.first->knows(each.second); });
  for (const auto& [communicator, ranks] : peers) (void)communicator->begin_connect(ranks);
  ncclResult_t result = ncclSuccess;
  for (const auto& [communicator, ranks] : peers) {
    if (communicator->end_connect() || result != ncclSuccess) continue;
    result = communicator->failure();
  }
  return result;
}

struct Range {
  size_t step;
  CUdeviceptr begin, end;
  bool written;
};

// The operations of a group have no order, so no operation may write memory that another operation
// uses.
ncclResult_t check_overlaps(const std::vector<Step>& steps) {
  std::vector<Range> ranges;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Communicator& of = *steps[i].communicator;
    if (steps[i].leg) {
      const Leg& leg = *steps[i].leg;
      const size_t bytes = leg.transfer.count * size_of(leg.transfer.type);
      ranges.push_back({i, leg.buffer, leg.buffer + bytes, leg.transfer.sends == 0});
    } else {
      const Request& request = *steps[i].collective;
      const size_t sent = bytes_sent(request.call, of.rank(), of.ranks());
      const size_t received = bytes_received(request.call, of.rank(), of.ranks());
      ranges.push_back({i, request.sent, request.sent + sent, false});
      ranges.push_back({i, request.received, request.received + received, true});
    }
  }
  for (const Range& a : ranges) {
    for (const Range& b : ranges) {
      if (!a.written || a.step == b.step || a.begin == a.end || b.begin == b.end) continue;
      if (a.begin >= b.end || b.begin >= a.end) continue;
      return steps[a.step].communicator->fail(
          ncclInvalidUsage, "an operation of a group writes memory that another operation uses",
          false);
    }
  }
  return ncclSuccess;
}

ncclResult_t run(const Job& job) {
  if (!job.setups.empty() && !job.steps.empty()) {
    return refuse(ncclInvalidUsage,
                  "one group may not both make communicators and start operations");
  }
  if (const ncclResult_t result = run_setups(job.setups); result != ncclSuccess) return result;
  if (const ncclResult_t result = check_overlaps(job.steps); result != ncclSuccess) return result;
  if (const ncclResult_t result = connect(job.steps); result != ncclSuccess) return result;
  std::vector<std::pair<CommunicatorPtr, std::vector<Leg>>> legs;
  for (const Step& step : job.steps) {
    if (step.collective) {
      if (const ncclResult_t result = step.communicator->enqueue(*step.collective);
          result != ncclSuccess)
        return result;
      continue;
    }
    auto found = std::find_if(legs.begin(), legs.end(),
                              [&](const auto& each) { return each.first == step.communicator; });
    if (found == legs.end()) found = legs.insert(legs.end(), {step.communicator, {}});
    found->second.push_back(*step.leg);
  }
  for (const auto& [communicator, of_it] : legs) {
    if (const ncclResult_t result = communicator->enqueue(of_it); result != ncclSuccess)
      return result;
  }
  return ncclSuccess;
}

ncclResult_t submit(Job job) {
  const bool blocks = std::all_of(job.used.begin(), job.used.end(),
                                  [](const auto& each) { return each->blocking(); });
  if (!blocks) {
    for (const auto& each : job.used) each->set_state(ncclInProgress);
  }
  const ncclResult_t result = blocks ? run(job) : ncclInProgress;
  for (const auto& each : job.used) each->leave();
  if (blocks) return result;
  std::thread([job = std::move(job)] {
    const ncclResult_t result = run(job);
    for (const auto& each : job.used) each->set_state(result);
  }).detach();
  return ncclInProgress;
}

void remember(const CommunicatorPtr& communicator) {
  auto& used = group().job.used;
  if (std::find(used.begin(), used.end(), communicator) == used.end()) used.push_back(communicator);
}

}  // namespace

ncclComm_t add_handle(const CommunicatorPtr& communicator) {
  static uintptr_t next = 0x10000;
  const std::lock_guard lock(handles_mutex);
  auto* handle = reinterpret_cast<ncclComm_t>(next += 64);
  handles()[handle] = communicator;
  return handle;
}

CommunicatorPtr find(ncclComm_t handle) {
  const std::lock_guard lock(handles_mutex);
  const auto found = handles().find(handle);
  return found == handles().end() ? nullptr : found->second;
}

CommunicatorPtr take(ncclComm_t handle) {
  const std::lock_guard lock(handles_mutex);
  const auto found = handles().find(handle);
  if (found == handles().end()) return nullptr;
  CommunicatorPtr communicator = found->second;
  handles().erase(found);
  return communicator;
}

ncclResult_t refuse(ncclResult_t result, const std::string& text) {
  refusal() = text;
  std::fprintf(stderr, "testnccl: %s\n", text.c_str());
  return result;
}

const std::string& last_refusal() { return refusal(); }

CommunicatorPtr use(ncclComm_t handle, ncclResult_t* result, bool also_failed) {
  CommunicatorPtr communicator = find(handle);
  if (!communicator) {
    *result = refuse(ncclInvalidArgument, "no communicator has this handle, or it has ended");
    return nullptr;
  }
  const ncclResult_t state = communicator->state();
  if (state == ncclInProgress) {
    *result =
        communicator->fail(ncclInvalidArgument, "the previous call is still in progress", false);
  } else if (state != ncclSuccess && !also_failed) {
    *result = state;
  } else if (!communicator->enter()) {
    *result =
        communicator->fail(ncclInvalidUsage, "two threads use the communicator at once", false);
  } else {
    remember(communicator);
    return communicator;
  }
  return nullptr;
}

void add(Setup setup) {
  if (setup.made) remember(setup.made);
  group().job.setups.push_back(std::move(setup));
}

void add(const CommunicatorPtr& communicator, Request request) {
  group().job.steps.push_back({communicator, std::move(request), std::nullopt});
}

void add(const CommunicatorPtr& communicator, Leg leg) {
  group().job.steps.push_back({communicator, std::nullopt, leg});
}

void begin_group() { ++group().depth; }

ncclResult_t end_group(bool run) {
  Group& mine = group();
  if (mine.depth == 0) return refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--mine.depth > 0) return ncclSuccess;
  const ncclResult_t error = std::exchange(mine.error, ncclSuccess);
  Job job = std::exchange(mine.job, {});
  if (error == ncclSuccess && run) return submit(std::move(job));
  for (const auto& each : job.used) each->leave();
  return error;
}

ncclResult_t as_group(const std::function<ncclResult_t()>& call) {
  begin_group();
  const ncclResult_t result = call();
  if (result != ncclSuccess && group().error == ncclSuccess) group().error = result;
  const ncclResult_t ended = end_group();
  return result != ncclSuccess ? result : ended;
}

}  // namespace testnccl

// The host side of NCCL's device API. Device communicators, windows and their addresses are those
// of the worker, and kernels run in the worker, so kernels can use them as they are.
//
// The worker's NCCL fills in the structs, in the layout for which the program was compiled. The
// client copies the bytes that NCCL has written (server/executor/nccl/device_api.h).
#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "client/nccl/ask.h"
#include "client/nccl/communicator.h"
#include "client/nccl/forwarded.h"
#include "client/nccl/group.h"
#include "client/nccl/library.h"
#include "client/nccl/windows.h"
#include "client/process/process.h"
#include "common/base/append_bytes.h"
#include "common/base/first_report.h"
#include "common/base/log.h"

namespace rcuda::client::nccl {
namespace {

// Reads a T from the text, and advances `*at`. Returns false if the text is too short.
template <typename T>
bool read(const std::string& text, size_t* at, T* value) {
  if (text.size() - *at < sizeof(T)) return false;
  std::memcpy(static_cast<void*>(value), text.data() + *at, sizeof(T));
  *at += sizeof(T);
  return true;
}

// Returns the elements of a list. If there are too many, returns kMostListItems + 1 of them.
template <typename T>
std::vector<T*> elements_of(const void* first) {
  std::vector<T*> elements;
  for (auto* one = static_cast<T*>(const_cast<void*>(first)); one; one = one->next) {
    if (elements.size() > kMostListItems) break;
    elements.push_back(one);
  }
  return elements;
}

// The program's variables into which ncclDevCommCreate() writes.
struct Targets {
  void* created = nullptr;
  std::vector<DeviceResource> resources;
  std::vector<DeviceTeam> teams;
};

// Makes the tail of kCreateDevice. Returns an ncclResult_t.
int read_requirements(const void* requirements, std::vector<std::byte>* tail, Targets* targets) {
  DeviceTail head;
  DeviceRequirements versioned;
  std::memcpy(&versioned, requirements, sizeof versioned);
  const bool is_versioned = versioned.magic == kConfigMagic;
  head.lists_at = is_versioned ? sizeof versioned : 0;
  const size_t bytes = is_versioned ? versioned.size : kRequirementsOf228;
  const void* lists[2];  // pointers to the first elements
  if (bytes > kMostStructBytes || bytes < head.lists_at + sizeof lists) return kInvalidArgument;
  std::memcpy(lists, static_cast<const std::byte*>(requirements) + head.lists_at, sizeof lists);
  for (const DeviceResource* const one : elements_of<DeviceResource>(lists[0])) {
    targets->resources.push_back(*one);
  }
  for (const DeviceTeam* const one : elements_of<DeviceTeam>(lists[1])) {
    targets->teams.push_back(*one);
  }
  if (std::max(targets->resources.size(), targets->teams.size()) > kMostListItems) {
    return kInvalidArgument;
  }
  head.requirement_bytes = static_cast<uint32_t>(bytes);
  head.resources = static_cast<uint32_t>(targets->resources.size());
  head.teams = static_cast<uint32_t>(targets->teams.size());
  append_bytes(tail, std::span(&head, 1));
  append_bytes(tail, std::span(static_cast<const std::byte*>(requirements), bytes));
  std::memset(tail->data() + sizeof head + head.lists_at, 0, sizeof lists);
  tail->resize((tail->size() + 7) & ~size_t{7});
  for (DeviceResource one : targets->resources) {
    one.next = nullptr;
    one.buffer = one.first_signal = one.first_counter = nullptr;
    append_bytes(tail, std::span(&one, 1));
  }
  for (DeviceTeam one : targets->teams) {
    one.next = nullptr;
    one.made = nullptr;
    append_bytes(tail, std::span(&one, 1));
  }
  return kSuccess;
}

// Writes the worker's description of a device communicator (Question::kDeviceCommunicator) into the
// program's variables. Returns the bytes of the struct; none if the description is incomplete.
std::vector<std::byte> write_created(const std::string& text, const Targets& targets) {
  size_t at = 0;
  uint64_t bytes = 0;
  if (!read(text, &at, &bytes) || bytes > kMostStructBytes || text.size() - at < bytes) return {};
  const auto created = std::as_bytes(std::span(text)).subspan(at, bytes);
  at += (bytes + 7) & ~size_t{7};
  if (at > text.size()) return {};
  for (const DeviceResource& one : targets.resources) {
    MadeResource made;
    if (!read(text, &at, &made)) return {};
    if (one.buffer) *one.buffer = made.buffer;
    if (one.first_signal) *one.first_signal = made.first_signal;
    if (one.first_counter) *one.first_counter = made.first_counter;
  }
  for (const DeviceTeam& one : targets.teams) {
    Multimem made{};
    if (!read(text, &at, &made)) return {};
    if (one.made) *one.made = made;
  }
  std::memcpy(targets.created, created.data(), created.size());
  return {created.begin(), created.end()};
}

wire::NcclAskBody about(const Communicator& communicator, int32_t value = 0, int32_t other = 0) {
  return {.communicator = communicator.id, .value = value, .other = other};
}

// NCCL's functions for teams return no error, and crash for an invalid communicator. The client's
// functions return an empty team after an error.
Team ask_team(void* comm, TeamOf which, int mode = 0) {
  const Communicator* const communicator = find<Communicator>(comm);
  Team team{};
  if (!communicator) return team;
  const Asked asked = ask(*communicator->session, Question::kTeam,
                          about(*communicator, static_cast<int32_t>(which), mode));
  size_t at = 0;
  if (asked.result != kSuccess || !read(asked.text, &at, &team)) {
    if (first_report("nccl team")) {
      RCUDA_ERROR("%s cannot return a team of a communicator, so the team is empty: result %d (%s)",
                  communicator->session->name().c_str(), asked.result,
                  ncclGetErrorString(asked.result));
    }
    return {};
  }
  return team;
}

int ask_window(void* window, size_t offset, AddressOf which, const WindowTail& tail, Asked* asked) {
  Session* const session = session_of_window(window);
  if (!session) return kInvalidArgument;
  wire::NcclAskBody body{};
  body.window = reinterpret_cast<uint64_t>(window);
  body.offset = offset;
  body.value = static_cast<int32_t>(which);
  *asked = ask(*session, Question::kWindowAddress, body, std::as_bytes(std::span(&tail, 1)));
  return asked->result;
}

int ask_address(void* window, size_t offset, AddressOf which, const WindowTail& tail,
                void** address) {
  Asked asked;
  if (!address) return kInvalidArgument;
  if (const int result = ask_window(window, offset, which, tail, &asked); result != kSuccess) {
    return result;
  }
  *address = reinterpret_cast<void*>(asked.value);
  return kSuccess;
}

int ask_element(void* window, size_t offset, AddressOf which, const WindowTail& tail,
                uint32_t* element, size_t* element_offset) {
  Asked asked;
  if (!element || !element_offset) return kInvalidArgument;
  if (const int result = ask_window(window, offset, which, tail, &asked); result != kSuccess) {
    return result;
  }
  *element = static_cast<uint32_t>(asked.error);
  *element_offset = asked.value;
  return kSuccess;
}

// Returns the worker of the current context, for questions without a communicator.
Session* any_session() {
  if (!open_library().ok()) return nullptr;
  const CudaResult<Route> place = find_place();
  return place ? place->session : nullptr;
}

int ask_requirement(Session* session, wire::NcclAskBody body, RequirementOf which,
                    const RequirementTail& tail, void* handle, void* requirement) {
  if (!session) return kSystemError;
  if (!handle || !requirement) return kInvalidArgument;
  body.value = static_cast<int32_t>(which);
  const Asked asked =
      ask(*session, Question::kRequirement, body, std::as_bytes(std::span(&tail, 1)));
  if (asked.result != kSuccess) return asked.result;
  MadeRequirement made;
  size_t at = 0;
  if (!read(asked.text, &at, &made)) return kInternalError;
  const size_t bytes = asked.text.size() - at;
  const auto is_inside = [&](uint64_t offset) {
    return offset == MadeRequirement::kNull ||
           (bytes >= sizeof(uint32_t) && offset <= bytes - sizeof(uint32_t));
  };
  if (bytes > kMostStructBytes || !is_inside(made.buffer_at) || !is_inside(made.first_signal_at) ||
      !is_inside(made.first_counter_at)) {
    return kInternalError;
  }
  std::memcpy(handle, asked.text.data() + at, bytes);
  const auto place = [&](uint64_t offset) {
    const bool is_null = offset == MadeRequirement::kNull;
    return is_null ? nullptr
                   : reinterpret_cast<uint32_t*>(static_cast<std::byte*>(handle) + offset);
  };
  made.resource.buffer = place(made.buffer_at);
  made.resource.first_signal = place(made.first_signal_at);
  made.resource.first_counter = place(made.first_counter_at);
  std::memcpy(requirement, &made.resource, sizeof made.resource);
  return kSuccess;
}

}  // namespace

int ncclCommQueryProperties(void* comm, void* properties) {
  const Communicator* const communicator = find<Communicator>(comm);
  if (!communicator || !properties) return kInvalidArgument;
  DeviceRequirements head;  // ncclCommProperties_t begins with the same members
  std::memcpy(&head, properties, sizeof head);
  if (head.magic != kConfigMagic || head.size < sizeof head || head.size > kMostStructBytes) {
    return kInvalidArgument;
  }
  const Asked asked = ask(*communicator->session, Question::kProperties, about(*communicator),
                          std::span(static_cast<const std::byte*>(properties), head.size));
  if (asked.result != kSuccess) return asked.result;
  struct Numbers {
    DeviceRequirements head;
    int rank, ranks, cuda_device, nvml_device;
  };
  std::memcpy(properties, asked.text.data(), std::min(asked.text.size(), head.size));
  // The worker's NCCL returns the worker's device numbers; the program needs the client's ordinal.
  const int devices[] = {static_cast<int>(communicator->device),
                         static_cast<int>(communicator->device)};
  if (head.size >= sizeof(Numbers)) {
    std::memcpy(static_cast<std::byte*>(properties) + offsetof(Numbers, cuda_device), devices,
                sizeof devices);
  }
  return kSuccess;
}

int ncclDevCommCreate(void* comm, const void* requirements, void* created) {
  Communicator* const communicator = find<Communicator>(comm);
  if (!communicator || !requirements || !created) return refuse(kInvalidArgument);
  Step step = step_on(*communicator, Verb::kCreateDevice);
  Targets targets;
  targets.created = created;
  if (const int result = read_requirements(requirements, &step.tail, &targets);
      result != kSuccess) {
    return refuse(result);
  }
  step.answered = [session = communicator->session, id = communicator->id, ref = step.communicator,
                   targets = std::move(targets)](const Answer& answer) {
    wire::NcclAskBody body{};
    body.communicator = id;
    body.value = static_cast<int32_t>(answer.value);
    const Asked asked = ask(*session, Question::kDeviceCommunicator, body);
    std::vector<std::byte> bytes = write_created(asked.text, targets);
    if (bytes.empty()) {
      RCUDA_ERROR("ncclDevCommCreate fails: %s did not return the new communicator (result %d)",
                  session->name().c_str(), asked.result);
      return asked.result == kSuccess ? int{kInternalError} : asked.result;
    }
    if (Communicator* const used = ref.get()) {
      used->add_device_communicator(answer.value, std::move(bytes));
    }
    return int{kSuccess};
  };
  return submit(std::move(step));
}

int ncclDevCommDestroy(void* comm, const void* dev_comm) {
  Communicator* const communicator = find<Communicator>(comm);
  if (!communicator || !dev_comm) return kInvalidArgument;
  const uint64_t number = communicator->take_device_communicator(dev_comm);
  if (number == 0) return kInvalidArgument;
  Step step = step_on(*communicator, Verb::kDestroyDevice);
  step.call.source = number;
  return submit_at_once(std::move(step));
}

int ncclGetLsaMultimemDevicePointer(void* window, size_t offset, void** address) {
  return ask_address(window, offset, AddressOf::kLsaMultimem, {}, address);
}
int ncclGetMultimemDevicePointer(void* window, size_t offset, Multimem multimem, void** address) {
  return ask_address(window, offset, AddressOf::kMultimem, {0, {}, multimem}, address);
}
int ncclGetLsaDevicePointer(void* window, size_t offset, int lsa_rank, void** address) {
  return ask_address(window, offset, AddressOf::kLsa, {lsa_rank, {}, {}}, address);
}
int ncclGetPeerDevicePointer(void* window, size_t offset, int peer, void** address) {
  return ask_address(window, offset, AddressOf::kPeer, {peer, {}, {}}, address);
}
int ncclGetMultimemDeviceLeInfo(void* window, size_t offset, uint32_t* element,
                                size_t* element_offset) {
  return ask_element(window, offset, AddressOf::kMultimemElement, {}, element, element_offset);
}
int ncclGetCftDeviceLeInfo(void* window, size_t offset, int peer, Team team, uint32_t* element,
                           size_t* element_offset) {
  return ask_element(window, offset, AddressOf::kCftElement, {peer, team, {}}, element,
                     element_offset);
}
int ncclGetPeerDeviceLeInfo(void* window, size_t offset, int peer, uint32_t* element,
                            size_t* element_offset) {
  return ask_element(window, offset, AddressOf::kPeerElement, {peer, {}, {}}, element,
                     element_offset);
}

Team ncclTeamWorld(void* comm) {
  const Communicator* const communicator = find<Communicator>(comm);
  return communicator ? Team{communicator->ranks, communicator->rank, 1} : Team{};
}
Team ncclTeamLsa(void* comm) { return ask_team(comm, TeamOf::kLsa); }
Team ncclTeamRail(void* comm) { return ask_team(comm, TeamOf::kRail); }
Team ncclTeamCft(void* comm, int mode) { return ask_team(comm, TeamOf::kCft, mode); }
Team ncclTeamCftMultimem(void* comm) { return ask_team(comm, TeamOf::kCftMultimem); }
// Ranks of a team are equally spaced in each larger team.
int ncclTeamRankToWorld(void* comm, Team team, int rank) {
  return ncclTeamWorld(comm).rank + (rank - team.rank) * team.stride;
}
int ncclTeamRankToLsa(void* comm, Team team, int rank) {
  return ncclTeamLsa(comm).rank + (rank - team.rank) * team.stride;
}

int ncclLsaBarrierCreateRequirement(Team team, int count, void* handle, void* requirement) {
  return ask_requirement(any_session(), {}, RequirementOf::kLsaBarrier, {team, {count, 0}}, handle,
                         requirement);
}
int ncclCftBarrierCreateRequirement(Team team, int count, void* handle, void* requirement) {
  return ask_requirement(any_session(), {}, RequirementOf::kCftBarrier, {team, {count, 0}}, handle,
                         requirement);
}
int ncclGinBarrierCreateRequirement(void* comm, Team team, int count, void* handle,
                                    void* requirement) {
  const Communicator* const communicator = find<Communicator>(comm);
  if (!communicator) return kInvalidArgument;
  return ask_requirement(communicator->session, about(*communicator), RequirementOf::kGinBarrier,
                         {team, {count, 0}}, handle, requirement);
}
int ncclGinInboxA2ACreateRequirement(Team peers, int blocks, int size_log2, void* handle,
                                     void* requirement) {
  return ask_requirement(any_session(), {}, RequirementOf::kGinInbox, {peers, {blocks, size_log2}},
                         handle, requirement);
}
int ncclGinOutboxCreateRequirement(int blocks, int size_log2, void* handle, void* requirement) {
  return ask_requirement(any_session(), {}, RequirementOf::kGinOutbox, {{}, {blocks, size_log2}},
                         handle, requirement);
}
int ncclLLA2ACreateRequirement(int blocks, int slots, void* handle, void* requirement) {
  return ask_requirement(any_session(), {}, RequirementOf::kLowLatency, {{}, {blocks, slots}},
                         handle, requirement);
}
int ncclLLA2ACalcSlots(int elements, int element_bytes) {
  Session* const session = any_session();
  if (!session) return 0;
  return ask(*session, Question::kSlots, {.value = elements, .other = element_bytes}).error;
}

}  // namespace rcuda::client::nccl

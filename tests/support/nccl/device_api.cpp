// The host side of the device API, and parameters. The LSA (load/store accessible) team of a rank
// consists of the ranks around it that are of the same process: this library cannot map memory of
// other processes.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/support/nccl/group.h"
#include "tests/support/nccl/nccl_device.h"

namespace testnccl {
namespace {

constexpr size_t kUnit = 128;

struct Window {
  ncclComm_t comm;
  CUdeviceptr resource = 0;  // memory of a device communicator, freed with the communicator
};

std::mutex windows_mutex;
std::map<ncclWindow_t, Window>& windows() {
  static auto* all = new std::map<ncclWindow_t, Window>;
  return *all;
}

// The ranks of a communicator exchange this about their memory.
struct Place {
  uint64_t process;
  CUdeviceptr memory;
  size_t bytes;
};

ncclTeam_t lsa_team(const std::vector<Place>& places, int rank) {
  const auto is_here = [&](int other) {
    return places[static_cast<size_t>(other)].process == process_key();
  };
  int first = rank, last = rank;
  while (first > 0 && is_here(first - 1)) --first;
  while (last + 1 < static_cast<int>(places.size()) && is_here(last + 1)) ++last;
  return {last - first + 1, rank - first, 1};
}

std::vector<Place> exchange(Communicator& communicator, CUdeviceptr memory, size_t bytes) {
  Bytes mine;
  put(mine, Place{process_key(), memory, bytes});
  const Bytes all = communicator.exchange(mine);
  Reader reader(all);
  std::vector<Place> places;
  while (reader.rest() >= sizeof(Place)) places.push_back(reader.get<Place>());
  return places;
}

// Makes the window of this rank's memory. All ranks call it at the same time.
ncclResult_t make_window(ncclComm_t comm, Communicator& communicator, CUdeviceptr memory,
                         size_t bytes, Window about, ncclWindow_t* window, ncclTeam_t* team) {
  const Current current(communicator.context());
  const std::vector<Place> places = exchange(communicator, memory, bytes);
  if (places.empty()) return communicator.failure();
  const auto differs = [&](const Place& place) { return place.bytes != bytes; };
  if (std::any_of(places.begin(), places.end(), differs)) {
    return communicator.fail(ncclInvalidArgument, "the windows of the ranks differ in size", false);
  }
  *team = lsa_team(places, communicator.rank());
  if (team->nRanks > kMostLsaRanks) {
    return communicator.fail(ncclInternalError, "too many ranks in a process", false);
  }
  ncclWindow_vidmem content{};
  for (int i = 0; i < team->nRanks; ++i) {
    const int rank = communicator.rank() - team->rank + i;
    content.memory[i] = reinterpret_cast<char*>(places[static_cast<size_t>(rank)].memory);
  }
  CUdeviceptr made = 0;
  if (cuMemAlloc(&made, sizeof content) != CUDA_SUCCESS ||
      cuMemcpyHtoD(made, &content, sizeof content) != CUDA_SUCCESS) {
    return communicator.fail(ncclUnhandledCudaError, "cannot allocate a window in device memory",
                             false);
  }
  *window = reinterpret_cast<ncclWindow_t>(made);
  about.comm = comm;
  const std::lock_guard lock(windows_mutex);
  windows()[*window] = about;
  return ncclSuccess;
}

ncclResult_t end_window(ncclComm_t comm, ncclWindow_t window) {
  const CommunicatorPtr communicator = find(comm);
  const std::lock_guard lock(windows_mutex);
  const auto found = windows().find(window);
  if (!communicator || found == windows().end() || found->second.comm != comm) {
    return refuse(ncclInvalidArgument, "the communicator has no such window");
  }
  const Current current(communicator->context());
  (void)cuMemFree(reinterpret_cast<CUdeviceptr>(window));
  if (found->second.resource) (void)cuMemFree(found->second.resource);
  windows().erase(found);
  return ncclSuccess;
}

// Runs when the group of the call ends. `requirements` is a copy of the program's struct, but its
// lists are the program's own.
ncclResult_t create_device(ncclComm_t comm, const CommunicatorPtr& communicator,
                           ncclDevCommRequirements_t requirements, ncclDevComm_t* made) {
  const Current current(communicator->context());
  size_t bytes = kUnit;
  for (auto* one = requirements.resourceRequirementsList; one; one = one->next) {
    const size_t step = std::max(one->bufferAlign, kUnit);
    bytes = (bytes + step - 1) / step * step;
    if (one->outBufferHandle) *one->outBufferHandle = static_cast<uint32_t>(bytes / kUnit);
    bytes += one->bufferSize;
    if (one->outGinSignalStart) *one->outGinSignalStart = 5;
    if (one->outGinCounterStart) *one->outGinCounterStart = 7;
  }
  for (auto* one = requirements.teamRequirementsList; one; one = one->next) {
    if (one->outMultimemHandle) one->outMultimemHandle->mcBasePtr = nullptr;
  }
  bytes = (bytes + (2u << 20) - 1) / (2u << 20) * (2u << 20);
  void* memory = nullptr;
  if (ncclMemAlloc(&memory, bytes) != ncclSuccess) return ncclUnhandledCudaError;
  const auto address = reinterpret_cast<CUdeviceptr>(memory);
  (void)cuMemsetD8(address, 0, bytes);
  *made = {};
  ncclTeam_t team{};
  const ncclResult_t result =
      make_window(comm, *communicator, address, bytes, {}, &made->resourceWindow, &team);
  made->magic = kNcclMagic;
  made->version = requirements.version;
  made->rank = communicator->rank();
  made->nRanks = communicator->ranks();
  made->lsaRank = team.rank;
  made->lsaSize = team.nRanks;
  made->tail = 0x5a;
  return result;
}

// The parameters that the tests read. The program's environment has their values.
constexpr const char* kKeys[] = {"NCCL_BUFFSIZE", "NCCL_MAX_NCHANNELS"};

const char* key_of(const char* key) {
  const auto found = std::find_if(std::begin(kKeys), std::end(kKeys),
                                  [&](const char* one) { return std::strcmp(one, key) == 0; });
  return found == std::end(kKeys) ? nullptr : *found;
}

const char* value_of(const char* key) {
  const char* const value = std::getenv(key);
  return value ? value : "";
}

}  // namespace
}  // namespace testnccl

using namespace testnccl;

#pragma GCC visibility push(default)
extern "C" {

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* memory, size_t bytes,
                                    ncclWindow_t* window, int) {
  return as_group([&] {
    ncclResult_t result = ncclSuccess;
    const CommunicatorPtr communicator = use(comm, &result);
    if (!communicator) return result;
    add({[=] {
           ncclTeam_t team;
           return make_window(comm, *communicator, reinterpret_cast<CUdeviceptr>(memory), bytes, {},
                              window, &team);
         },
         nullptr, nullptr});
    return ncclSuccess;
  });
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  return end_window(comm, window);
}

ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t* properties) {
  const CommunicatorPtr communicator = find(comm);
  if (!communicator || properties->magic != kNcclMagic ||
      properties->size < sizeof(ncclCommProperties_t)) {
    return refuse(ncclInvalidArgument,
                  "ncclCommQueryProperties: the communicator does not exist, or the properties "
                  "were not initialised (NCCL_COMM_PROPERTIES_INITIALIZER)");
  }
  properties->rank = communicator->rank();
  properties->nRanks = communicator->ranks();
  properties->cudaDev = communicator->device();
  properties->nvmlDev = communicator->device() + 100;
  properties->deviceApiSupport = true;
  return ncclSuccess;
}

ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t* requirements,
                               ncclDevComm_t* made) {
  return as_group([&] {
    ncclResult_t result = ncclSuccess;
    const CommunicatorPtr communicator = use(comm, &result);
    if (!communicator) return result;
    if (requirements->magic != kNcclMagic || requirements->size < sizeof *requirements) {
      return communicator->fail(ncclInvalidArgument,
                                "ncclDevCommCreate: the requirements were not initialised: assign "
                                "NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER",
                                false);
    }
    add({[=, copy = *requirements] { return create_device(comm, communicator, copy, made); },
         nullptr, nullptr});
    return ncclSuccess;
  });
}

ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t* made) {
  if (made->magic != kNcclMagic)
    return refuse(ncclInvalidArgument, "ncclDevCommDestroy: not a device communicator");
  return end_window(comm, made->resourceWindow);
}

ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsa_rank,
                                     void** address) {
  ncclWindow_vidmem content{};
  {
    const std::lock_guard lock(windows_mutex);
    if (!windows().contains(window))
      return refuse(ncclInvalidArgument, "the window does not exist");
  }
  if (cuMemcpyDtoH(&content, reinterpret_cast<CUdeviceptr>(window), sizeof content) !=
      CUDA_SUCCESS) {
    return ncclUnhandledCudaError;
  }
  if (lsa_rank < 0 || lsa_rank >= kMostLsaRanks || !content.memory[lsa_rank]) {
    return refuse(ncclInvalidArgument, "the LSA team has no such rank");
  }
  *address = content.memory[lsa_rank] + offset;
  return ncclSuccess;
}

ncclTeam_t ncclTeamWorld(ncclComm_t comm) {
  const CommunicatorPtr communicator = find(comm);
  return {communicator->ranks(), communicator->rank(), 1};
}

// Needs no exchange between the ranks: they learned each other's process when they met.
ncclTeam_t ncclTeamLsa(ncclComm_t comm) {
  const CommunicatorPtr communicator = find(comm);
  int first = communicator->rank(), last = communicator->rank();
  while (first > 0 && communicator->is_of_this_process(first - 1)) --first;
  while (last + 1 < communicator->ranks() && communicator->is_of_this_process(last + 1)) ++last;
  return {last - first + 1, communicator->rank() - first, 1};
}

ncclTeam_t ncclTeamRail(ncclComm_t comm) {
  const ncclTeam_t world = ncclTeamWorld(comm), lsa = ncclTeamLsa(comm);
  return {world.nRanks / lsa.nRanks, world.rank / lsa.nRanks, lsa.nRanks};
}

int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank) {
  return ncclTeamWorld(comm).rank + (rank - team.rank) * team.stride;
}

int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank) {
  return ncclTeamLsa(comm).rank + (rank - team.rank) * team.stride;
}

ncclResult_t ncclLsaBarrierCreateRequirement(ncclTeam_t team, int barriers,
                                             ncclLsaBarrierHandle_t* handle,
                                             ncclDevResourceRequirements_t* requirement) {
  *requirement = {};
  handle->nBarriers = barriers;
  requirement->bufferSize =
      sizeof(uint32_t) * static_cast<size_t>(barriers) * static_cast<size_t>(team.nRanks + 1);
  requirement->bufferAlign = alignof(uint32_t);
  requirement->outBufferHandle = &handle->bufHandle;
  return ncclSuccess;
}

ncclResult_t ncclParamBind(ncclParamHandle_t* handle, const char* key) {
  const char* const known = key_of(key);
  if (!known) return refuse(ncclInvalidArgument, std::string("no parameter ") + key);
  *handle = reinterpret_cast<ncclParamHandle_t>(const_cast<char*>(known));
  return ncclSuccess;
}

ncclResult_t ncclParamGetI64(ncclParamHandle_t handle, int64_t* value) {
  *value = std::atoll(value_of(reinterpret_cast<const char*>(handle)));
  return ncclSuccess;
}

ncclResult_t ncclParamGetStr(ncclParamHandle_t handle, const char** value) {
  *value = value_of(reinterpret_cast<const char*>(handle));
  return ncclSuccess;
}

ncclResult_t ncclParamGet(ncclParamHandle_t handle, void* value, int capacity, int* length) {
  const char* const text = value_of(reinterpret_cast<const char*>(handle));
  *length = static_cast<int>(std::strlen(text));
  if (*length > capacity) return ncclInvalidArgument;
  std::memcpy(value, text, static_cast<size_t>(*length));
  return ncclSuccess;
}

ncclResult_t ncclParamGetParameter(const char* key, const char** value, int* length) {
  if (!key_of(key)) return ncclInvalidArgument;
  *value = value_of(key);
  *length = static_cast<int>(std::strlen(*value));
  return ncclSuccess;
}

ncclResult_t ncclParamGetAllParameterKeys(const char*** keys, int* count) {
  static const char* table[std::size(kKeys)];
  std::copy(std::begin(kKeys), std::end(kKeys), table);
  *keys = table;
  *count = static_cast<int>(std::size(kKeys));
  return ncclSuccess;
}

}  // extern "C"
#pragma GCC visibility pop

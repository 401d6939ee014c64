// The host side of the device API: windows, teams, device communicators that kernels use, memory of
// other ranks of a process, parameters, and simulated groups.
#include <memory>

#include "../../support/nccl/nccl_device.h"
#include "ranks.h"

constexpr size_t kBytes = 2u << 20;
constexpr int kBarriers = 4;

// Writes into the memory of each rank of the LSA team: into its window, and into its part of the
// resource that `buffer` names.
__global__ void write(ncclDevComm_t comm, ncclWindow_t window, uint32_t buffer) {
  const int peer = threadIdx.x;
  static_cast<int*>(ncclGetLsaPointer(window, 256, peer))[comm.lsaRank] = comm.rank + 1;
  static_cast<int*>(ncclGetResourceBufferLsaPointer(comm, buffer, peer))[comm.lsaRank] =
      100 + comm.rank;
}

__global__ void read(ncclDevComm_t comm, uint32_t buffer, int* to) {
  const int peer = threadIdx.x;
  to[peer] = static_cast<int*>(ncclGetResourceBufferLsaPointer(comm, buffer, comm.lsaRank))[peer];
}

struct State {
  Rank* rank;
  void* memory = nullptr;
  ncclWindow_t window = nullptr;
  ncclTeam_t lsa{};
  ncclLsaBarrierHandle_t barrier{};
  uint32_t buffer = 0, first_signal = 0;
  ncclDevResourceRequirements_t resources[2]{};
  ncclTeamRequirements_t team{};
  ncclMultimemHandle_t multimem{reinterpret_cast<void*>(1)};
  ncclDevCommRequirements_t requirements;
  struct {
    ncclDevComm_t comm;
    unsigned guard;  // memory after the struct, which nothing may change
  } made{};
};

void describe(State& state) {
  Rank& rank = *state.rank;
  ncclCommProperties_t properties;
  NCCL(ncclCommQueryProperties(rank.comm, &properties));
  CHECK(properties.rank == rank.rank && properties.nRanks == rank.ranks);
  CHECK(properties.cudaDev == rank.device && properties.deviceApiSupport);
  properties.magic = 0;
  NCCL_EXPECT(ncclInvalidArgument, ncclCommQueryProperties(rank.comm, &properties));
  const ncclTeam_t world = ncclTeamWorld(rank.comm), rail = ncclTeamRail(rank.comm);
  state.lsa = ncclTeamLsa(rank.comm);
  CHECK(world.nRanks == rank.ranks && world.rank == rank.rank && world.stride == 1);
  CHECK(state.lsa.nRanks >= 1 && state.lsa.rank < state.lsa.nRanks);
  CHECK(rail.nRanks * state.lsa.nRanks == world.nRanks && rail.stride == state.lsa.nRanks);
  CHECK(ncclTeamRankToWorld(rank.comm, state.lsa, state.lsa.rank) == rank.rank);
  CHECK(ncclTeamRankToLsa(rank.comm, world, rank.rank) == state.lsa.rank);
}

void require(State& state) {
  NCCL(ncclLsaBarrierCreateRequirement(state.lsa, kBarriers, &state.barrier, &state.resources[0]));
  CHECK(state.barrier.nBarriers == kBarriers && state.resources[0].bufferSize > 0);
  CHECK(state.resources[0].outBufferHandle == &state.barrier.bufHandle);
  state.resources[0].next = &state.resources[1];
  state.resources[1].bufferSize = 1000;
  state.resources[1].bufferAlign = 512;
  state.resources[1].outBufferHandle = &state.buffer;
  state.resources[1].outGinSignalStart = &state.first_signal;
  state.team.team = state.lsa;
  state.team.outMultimemHandle = &state.multimem;
  state.requirements.resourceRequirementsList = state.resources;
  state.requirements.teamRequirementsList = &state.team;
  state.made.guard = 0xfeedface;
}

void check_made(const State& state) {
  const ncclDevComm_t& comm = state.made.comm;
  CHECK(comm.rank == state.rank->rank && comm.nRanks == state.rank->ranks);
  CHECK(comm.lsaRank == state.lsa.rank && comm.lsaSize == state.lsa.nRanks);
  CHECK(comm.tail == 0x5a && state.made.guard == 0xfeedface);
  CHECK(state.barrier.bufHandle != 0 && state.buffer > state.barrier.bufHandle);
  CHECK(state.buffer % 4 == 0 && state.first_signal == 5 && !state.multimem.mcBasePtr);
}

void check_memory(State& state) {
  Rank& rank = *state.rank;
  CUDA(cudaSetDevice(rank.device));
  const int ranks = state.lsa.nRanks, first = rank.rank - state.lsa.rank;
  DeviceArray<int> copy(static_cast<size_t>(ranks));
  read<<<1, ranks, 0, rank.stream>>>(state.made.comm, state.buffer, copy.get());
  CUDA(cudaGetLastError());
  CUDA(cudaStreamSynchronize(rank.stream));
  const std::vector<int> resources = copy.values();
  for (int peer = 0; peer < ranks; ++peer) {
    CHECK(resources[static_cast<size_t>(peer)] == 100 + first + peer);
    int window = 0;
    void* address = nullptr;
    NCCL(ncclGetLsaDevicePointer(state.window, 256, peer, &address));
    const int* const mine = static_cast<int*>(address) + state.lsa.rank;
    CUDA(cudaMemcpy(&window, mine, sizeof window, cudaMemcpyDeviceToHost));
    CHECK(window == rank.rank + 1);
  }
  void* address = nullptr;
  NCCL_EXPECT(ncclInvalidArgument, ncclGetLsaDevicePointer(state.window, 0, 7, &address));
  const auto none = reinterpret_cast<ncclWindow_t>(state.memory);
  NCCL_EXPECT(ncclInvalidArgument, ncclGetLsaDevicePointer(none, 0, 0, &address));
}

// The operation has no effect.
void simulate(Ranks& ranks) {
  Rank& rank = ranks.front();
  CUDA(cudaSetDevice(rank.device));
  DeviceArray<int> data(std::vector<int>{7});
  ncclSimInfo_t info;
  NCCL(ncclGroupStart());
  NCCL(ncclAllReduce(data.get(), data.get(), 1, ncclInt32, ncclSum, rank.comm, rank.stream));
  NCCL(ncclGroupSimulateEnd(&info));
  CHECK(info.estimatedTime >= 0);
  CUDA(cudaStreamSynchronize(rank.stream));
  CHECK(data.values().front() == 7);
  NCCL_EXPECT(ncclInvalidUsage, ncclGroupSimulateEnd(&info));
}

void parameters() {
  ncclParamHandle_t handle = nullptr;
  NCCL(ncclParamBind(&handle, "NCCL_BUFFSIZE"));
  int64_t number = 0;
  NCCL(ncclParamGetI64(handle, &number));
  CHECK(number == 4194304);
  const char* text = nullptr;
  NCCL(ncclParamGetStr(handle, &text));
  CHECK(std::string(text) == "4194304");
  char bytes[16] = {};
  int length = 0;
  NCCL(ncclParamGet(handle, bytes, sizeof bytes, &length));
  CHECK(length == 7 && std::string(bytes) == "4194304");
  NCCL(ncclParamGetParameter("NCCL_BUFFSIZE", &text, &length));
  CHECK(length == 7 && std::string(text) == "4194304");
  NCCL_EXPECT(ncclInvalidArgument, ncclParamBind(&handle, "NCCL_UNKNOWN"));
  const char** keys = nullptr;
  int count = 0;
  NCCL(ncclParamGetAllParameterKeys(&keys, &count));
  CHECK(count == 2 && std::string(keys[1]) == "NCCL_MAX_NCHANNELS");
}

void body(Ranks& ranks) {
  std::vector<std::unique_ptr<State>> states;
  for (Rank& rank : ranks) {
    states.push_back(std::make_unique<State>());
    states.back()->rank = &rank;
    CUDA(cudaSetDevice(rank.device));
    NCCL(ncclMemAlloc(&states.back()->memory, kBytes));
    CUDA(cudaMemset(states.back()->memory, 0, kBytes));
    CUDA(cudaDeviceSynchronize());
  }
  const auto of = [&](Rank& rank) -> State& { return *states[&rank - ranks.data()]; };
  each(ranks, [&](Rank& rank) {
    NCCL(ncclCommWindowRegister(rank.comm, of(rank).memory, kBytes, &of(rank).window, 0));
  });
  for (auto& state : states) {
    CUDA(cudaSetDevice(state->rank->device));
    describe(*state);
    require(*state);
  }
  each(ranks, [&](Rank& rank) {
    NCCL(ncclDevCommCreate(rank.comm, &of(rank).requirements, &of(rank).made.comm));
  });
  for (auto& state : states) check_made(*state);
  std::vector<void*> words(ranks.size());
  for (auto& state : states) {
    CUDA(cudaSetDevice(state->rank->device));
    write<<<1, state->lsa.nRanks, 0, state->rank->stream>>>(state->made.comm, state->window,
                                                            state->buffer);
    CUDA(cudaGetLastError());
    CUDA(cudaMalloc(&words[state->rank - ranks.data()], sizeof(int)));
  }
  each(ranks, [&](Rank& rank) {  // all ranks have written
    void* const word = words[&rank - ranks.data()];
    NCCL(ncclAllReduce(word, word, 1, ncclInt32, ncclMax, rank.comm, rank.stream));
  });
  synchronize(ranks);
  for (auto& state : states) check_memory(*state);
  simulate(ranks);
  parameters();
  each(ranks, [&](Rank& rank) {  // no rank needs the memory of another rank any more
    void* const word = words[&rank - ranks.data()];
    NCCL(ncclAllReduce(word, word, 1, ncclInt32, ncclMax, rank.comm, rank.stream));
  });
  synchronize(ranks);
  for (auto& state : states) {
    CUDA(cudaSetDevice(state->rank->device));
    CUDA(cudaFree(words[state->rank - ranks.data()]));
    NCCL(ncclDevCommDestroy(state->rank->comm, &state->made.comm));
    NCCL_EXPECT(ncclInvalidArgument, ncclDevCommDestroy(state->rank->comm, &state->made.comm));
    NCCL(ncclCommWindowDeregister(state->rank->comm, state->window));
    NCCL(ncclMemFree(state->memory));
  }
  say(ranks, "device communicators, windows, parameters and simulated groups");
}

int main(int argc, char** argv) {
  CHECK(setenv("NCCL_BUFFSIZE", "4194304", 1) == 0);
  return run(argc, argv, body);
}

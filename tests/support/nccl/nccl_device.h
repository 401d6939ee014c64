// The part of NCCL's device API that the tests use. Kernels read windows and device communicators,
// so the layouts of these structs belong to the interface. They are those of the tests' own library
// (this folder), not of NVIDIA's. The structs of the host side have the layouts of NCCL 2.30.
#pragma once

#include "nccl_api.h"

#ifdef __CUDACC__
#define TESTNCCL_DEVICE __device__ inline
#endif

constexpr int kMostLsaRanks = 8;

// In device memory; its address is the window's handle.
struct ncclWindow_vidmem {
  char* memory[kMostLsaRanks];  // by rank of the LSA team
};

struct ncclTeam_t {
  int nRanks, rank, stride;
};

struct ncclMultimemHandle_t {
  void* mcBasePtr;
};

struct ncclDevComm_t {
  unsigned magic, version;
  int rank, nRanks;
  int lsaRank, lsaSize;
  ncclWindow_t resourceWindow;
  uint8_t tail;  // makes the struct end with padding
};

struct ncclLsaBarrierHandle_t {
  uint32_t bufHandle;  // the offset in the resource window, in units of 128 bytes
  int nBarriers;
};

struct ncclDevResourceRequirements_t {
  ncclDevResourceRequirements_t* next;
  size_t bufferSize, bufferAlign;
  uint32_t* outBufferHandle;
  int ginSignalCount;
  int ginCounterCount;
  uint32_t* outGinSignalStart;
  uint32_t* outGinCounterStart;
};

struct ncclTeamRequirements_t {
  ncclTeamRequirements_t* next;
  ncclTeam_t team;
  bool multimem;
  ncclMultimemHandle_t* outMultimemHandle;
};

struct ncclDevCommRequirements_t {
  size_t size = sizeof(ncclDevCommRequirements_t);
  unsigned magic = kNcclMagic;
  unsigned version = 23000;
  ncclDevResourceRequirements_t* resourceRequirementsList = nullptr;
  ncclTeamRequirements_t* teamRequirementsList = nullptr;
  bool lsaMultimem = false;
  int barrierCount = 0, lsaBarrierCount = 0;
};

struct ncclCommProperties_t {
  size_t size = sizeof(ncclCommProperties_t);
  unsigned magic = kNcclMagic;
  unsigned version = 23000;
  int rank = 0, nRanks = 0, cudaDev = 0, nvmlDev = 0;
  bool deviceApiSupport = false, multimemSupport = false;
};

extern "C" {

using ncclParamHandle_t = struct ncclParamHandle*;

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* memory, size_t bytes,
                                    ncclWindow_t* window, int flags);
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window);
ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t* properties);
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t* requirements,
                               ncclDevComm_t* made);
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t* made);
ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsa_rank,
                                     void** address);
ncclTeam_t ncclTeamWorld(ncclComm_t comm);
ncclTeam_t ncclTeamLsa(ncclComm_t comm);
ncclTeam_t ncclTeamRail(ncclComm_t comm);
int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank);
int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank);
ncclResult_t ncclLsaBarrierCreateRequirement(ncclTeam_t team, int barriers,
                                             ncclLsaBarrierHandle_t* handle,
                                             ncclDevResourceRequirements_t* requirement);

ncclResult_t ncclParamBind(ncclParamHandle_t* handle, const char* key);
ncclResult_t ncclParamGetI64(ncclParamHandle_t handle, int64_t* value);
ncclResult_t ncclParamGetStr(ncclParamHandle_t handle, const char** value);
ncclResult_t ncclParamGet(ncclParamHandle_t handle, void* value, int capacity, int* length);
ncclResult_t ncclParamGetParameter(const char* key, const char** value, int* length);
ncclResult_t ncclParamGetAllParameterKeys(const char*** keys, int* count);

}  // extern "C"

#ifdef __CUDACC__
TESTNCCL_DEVICE void* ncclGetLsaPointer(ncclWindow_t window, size_t offset, int lsa_rank) {
  return window->memory[lsa_rank] + offset;
}
TESTNCCL_DEVICE void* ncclGetResourceBufferLsaPointer(const ncclDevComm_t& comm, uint32_t handle,
                                                      int lsa_rank) {
  return ncclGetLsaPointer(comm.resourceWindow, size_t{handle} * 128, lsa_rank);
}
#endif

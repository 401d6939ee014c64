// The part of NCCL's C interface that this project uses: results, and structs that cross the
// interface by value or by pointer. Sizes, offsets and values are NCCL's. Handles are void*,
// enumerations int (api/table/nccl.toml). Plain values.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <string>

namespace rcuda::nccl {

// Formats a version number of NCCL 2.9 or later: "2.28.9" for 22809.
inline std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

enum ResultCode : int {
  kSuccess = 0,
  kCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
  kTimeout = 8,
};

struct UniqueId {
  char bytes[128];
};

// ncclTeam_t of NCCL's device API: a subset of the ranks.
struct Team {
  int ranks, rank, stride;
};

struct Multimem {
  void* base;
};

inline constexpr int kUndefined = INT_MIN;  // in an int of a Config: NCCL chooses the value
inline constexpr unsigned kConfigMagic = 0xcafebeef;
inline constexpr int kNoColor = -1;          // of a split: the rank joins no new communicator
inline constexpr int kBuiltInOperators = 5;  // ncclSum to ncclAvg

// The configuration of a communicator. Later releases of NCCL append members; `size` shows which
// members the program was compiled with.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = kConfigMagic;
  unsigned version = 0;  // of the NCCL for which the program was compiled
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  int traffic_class = kUndefined;
  const char* comm_name = nullptr;
  // The members collnetEnable to nvlsHostMode of ncclConfig_t.
  int others[15] = {kUndefined, kUndefined, kUndefined, kUndefined, kUndefined,
                    kUndefined, kUndefined, kUndefined, kUndefined, kUndefined,
                    kUndefined, kUndefined, kUndefined, kUndefined, kUndefined};
};
static_assert(sizeof(Config) == 120 && offsetof(Config, comm_name) == 48);

// The configuration of one operation (nccl...Config).
struct OperationConfig {
  size_t size = sizeof(OperationConfig);
  unsigned magic = kConfigMagic;
  unsigned version = 0;
  void* extensions = nullptr;  // a list of options of vendors
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  int nvls_ctas = kUndefined;
  int cga_cluster_size = kUndefined;
  const char* algorithms = nullptr;
  int force_algorithms = 1;
  int cta_policy = kUndefined;
  uint64_t profiler_tag = 0;
  void* launch_event = nullptr;  // recorded when the operation's kernel has been launched
};
static_assert(sizeof(OperationConfig) == 72);

// The signals of one peer that ncclWaitSignal waits for.
struct SignalWait {
  int count, peer, signal, context;
};

// From NCCL 2.29 on, the requirements of a device communicator begin with this struct. Two pointers
// to lists follow it, then plain values. `size` is the size of all requirements. In NCCL 2.28 the
// requirements begin with the two pointers and have kRequirementsOf228 bytes.
struct DeviceRequirements {
  size_t size;
  unsigned magic;
  unsigned version;
};
inline constexpr size_t kRequirementsOf228 = 56;

// An element of the first list: memory and signals that the device communicator gets. NCCL writes
// the results through the pointers, which may be null.
struct DeviceResource {
  DeviceResource* next;
  size_t bytes, alignment;
  uint32_t* buffer;
  int signals, counters;
  uint32_t *first_signal, *first_counter;
};
static_assert(sizeof(DeviceResource) == 56);

// An element of the second list: a team that gets multicast memory.
struct DeviceTeam {
  DeviceTeam* next;
  Team team;
  uint8_t multimem;  // 0 or 1
  Multimem* made;
};
static_assert(sizeof(DeviceTeam) == 32);

// The result of ncclGroupSimulateEnd(): the estimated time of a group's operations.
struct SimulationInfo {
  static constexpr unsigned kMagic = 0x74685283;
  size_t size = sizeof(SimulationInfo);
  unsigned magic = kMagic;
  unsigned version = 0;
  float microseconds = -1;
};

// The argument of ncclSetEncryption(): how NCCL's sockets carry data.
struct EncryptionConfig {
  static constexpr int kNone = 0, kPsk = 1;
  size_t size = sizeof(EncryptionConfig);
  unsigned magic = kConfigMagic;
  unsigned version = 23203;
  int mode = kNone;
  const char* psk = nullptr;  // kPsk: the secret that all ranks share
};
static_assert(sizeof(EncryptionConfig) == 32);

// Returns the size of one element of a data type, in bytes; 0 if there is no such type.
constexpr size_t bytes_of_type(int datatype) {
  constexpr size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  constexpr int kCount = sizeof kBytes / sizeof *kBytes;
  return datatype >= 0 && datatype < kCount ? kBytes[datatype] : 0;
}

}  // namespace rcuda::nccl

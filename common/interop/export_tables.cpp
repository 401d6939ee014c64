#include "common/interop/export_tables.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <pthread.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/interop/compile_cache.h"
#include "common/interop/context_storage.h"
#include "common/interop/integrity.h"

namespace rcuda::interop {
namespace {

std::atomic<Provider*> the_provider{nullptr};
Provider& provider() { return *the_provider.load(std::memory_order_acquire); }

ContextStorage& storage() {
  static auto* instance = new ContextStorage;
  return *instance;
}

// Reports the call of a slot whose purpose is unknown. Each such slot has a function of its own,
// which knows the table and the slot.
void report_slot(const char* table, int slot) {
  RCUDA_WARN(
      "export table %s: unknown slot %d was called; the call returns "
      "CUDA_ERROR_NOT_SUPPORTED. Please report it",
      table, slot);
}

template <const char* Name, int Slot>
CUresult unknown_slot() {
  static std::atomic<bool> reported{false};
  if (!reported.exchange(true, std::memory_order_relaxed)) report_slot(Name, Slot);
  return CUDA_ERROR_NOT_SUPPORTED;
}

using Word = const void*;

template <typename Function>
Word slot(Function* function) {
  return reinterpret_cast<Word>(function);
}

// A table of `Words` words, with all slots unknown. Word 0 is the table's size in bytes.
template <const char* Name, int Words>
struct Table {
  std::array<Word, Words> words;
  Table() : Table(std::make_integer_sequence<int, Words>()) {
    words[0] = reinterpret_cast<Word>(sizeof(Word) * Words);
  }
  Table& with(int index, Word function) {
    words[static_cast<size_t>(index)] = function;
    return *this;
  }

 private:
  template <int... Slots>
  explicit Table(std::integer_sequence<int, Slots...>)
      : words{slot(&unknown_slot<Name, Slots>)...} {}
};

constexpr char kCudartName[] = "CUDART_INTERFACE";
constexpr char kHooksName[] = "CALLBACK_HOOKS";
constexpr char kToolsName[] = "TOOLS_TLS";
constexpr char kStorageName[] = "CONTEXT_LOCAL_STORAGE";
constexpr char kChecksName[] = "CONTEXT_CHECKS";
constexpr char kIntegrityName[] = "INTEGRITY_CHECK";
constexpr char kOptionalName[] = "F8CFF951";
constexpr char kLibrariesName[] = "21318C60";
constexpr char kTopologyName[] = "1734DC26";
constexpr char kModulesName[] = "6E163FBE";
constexpr char kCompiledName[] = "DA9151D3";

CUresult primary_context(CUcontext* context, CUdevice device) {
  return provider().primary_context(device, context);
}

// CUDA 11's runtime loads its modules here, from the fatbin wrapper that nvcc made. `names` and
// `addresses` are for variables in host memory, which nvcc does not generate since CUDA 5.
CUresult load_fatbin(CUmodule* module, const void* wrapper, const char** names, void** addresses,
                     uint32_t count) {
  if (count != 0 && names && addresses) {
    RCUDA_WARN(
        "cannot load a module with %u variables in host memory (the first is %s): rcuda does "
        "not support such variables",
        count, names[0]);
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return provider().load_module(module, wrapper);
}
CUresult unload_fatbin(CUmodule module) { return provider().unload_module(module); }

// CUDA 13.5's runtime calls this at its start, without arguments, and continues only after success.
CUresult may_start() { return CUDA_SUCCESS; }

// Tools put callbacks into the arrays that these two functions return; zeros mean that no tool is
// attached.
void first_hooks(void** buffer, size_t* words) {
  static uint32_t hooks[1024];
  *buffer = hooks;
  *words = std::size(hooks);
}
void second_hooks(void** buffer, size_t* words) {
  static uint32_t hooks[14];
  *buffer = hooks;
  *words = std::size(hooks);
}

CUresult tools_current_context(CUcontext* context) {
  *context = provider().current_context();
  return CUDA_SUCCESS;
}

CUcontext or_current(CUcontext context) { return context ? context : provider().current_context(); }

CUresult storage_put(CUcontext context, void* key, void* value,
                     ContextStorage::Destructor destructor) {
  context = or_current(context);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  storage().put(context, key, value, destructor);
  return CUDA_SUCCESS;
}

CUresult storage_delete(CUcontext context, void* key) {
  context = or_current(context);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  return storage().remove(context, key) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult storage_get(void** value, CUcontext context, void* key) {
  context = or_current(context);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  std::optional<void*> found = storage().get(context, key);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  *value = *found;
  return CUDA_SUCCESS;
}

CUresult context_check(CUcontext, uint32_t* result, void**) {
  *result = 0;
  return CUDA_SUCCESS;
}
uint32_t context_check_mode() { return 0; }

// cuBLAS and cuFFT read the values that the next three functions return. Both libraries behaved in
// the same way with every value that was tried.
CUresult library_context_flag(CUcontext, uint32_t* flag) {
  *flag = 1;
  return CUDA_SUCCESS;
}
CUresult library_stream_handle(CUcontext, CUstream, uint64_t* handle) {
  *handle = 0;
  return CUDA_SUCCESS;
}
CUresult library_stream_property(CUcontext, uint64_t, uint32_t* property) {
  *property = 0;
  return CUDA_SUCCESS;
}

// The topology map assigns pairs of multiprocessors to graphics clusters. cuBLASLt on sm_90 crashes
// without this map.
constexpr unsigned kClusters = 8;

CUresult topology_map(uint8_t** map, uint32_t* count) {
  const auto pairs = static_cast<uint32_t>(provider().multiprocessors(0) / 2);
  auto* clusters = static_cast<uint8_t*>(std::malloc(pairs + 1));
  if (!clusters) return CUDA_ERROR_OUT_OF_MEMORY;
  for (uint32_t i = 0; i < pairs; ++i) clusters[i] = static_cast<uint8_t>(i % kClusters);
  *map = clusters;
  *count = pairs;
  return CUDA_SUCCESS;
}
CUresult topology_release(uint8_t* map, uint32_t) {
  std::free(map);
  return CUDA_SUCCESS;
}

// Returns 1 for success.
uint32_t enumerate_functions(CUcontext, CUmodule module, void (*visit)(void*, CUfunction),
                             void* user) {
  std::vector<CUfunction> functions;
  if (provider().module_functions(module, &functions) != CUDA_SUCCESS) return 0;
  for (CUfunction function : functions) visit(user, function);
  return 1;
}

// For slots of optional features: the runtime works without them.
CUresult declined() { return CUDA_ERROR_NOT_SUPPORTED; }

CUresult integrity_check(uint32_t version, uint64_t seconds, uint8_t* answer);

// All tables, at the sizes of driver 580.
struct Tables {
  Table<kCudartName, 0x68 / 8> cudart;
  Table<kHooksName, 0x38 / 8> hooks;
  Table<kToolsName, 0x18 / 8> tools;
  Table<kStorageName, 4> storage;  // no size word; a null word ends the table
  Table<kChecksName, 0x78 / 8> checks;
  Table<kIntegrityName, 0x18 / 8> integrity;
  Table<kOptionalName, 0x18 / 8> optional;
  Table<kLibrariesName, 0x2e8 / 8> libraries;
  Table<kTopologyName, 0x88 / 8> topology;
  Table<kModulesName, 0x318 / 8> modules;
  Table<kCompiledName, 0x38 / 8> compiled;

  Tables() {
    cudart.with(2, slot(&primary_context)).with(6, slot(&load_fatbin));
    cudart.with(7, slot(&unload_fatbin)).with(12, slot(&may_start));
    hooks.with(2, slot(&first_hooks)).with(6, slot(&second_hooks));
    tools.with(2, slot(&tools_current_context));
    storage.with(0, slot(&storage_put)).with(1, slot(&storage_delete));
    storage.with(2, slot(&storage_get)).with(3, nullptr);
    checks.with(2, slot(&context_check)).with(3, slot(&context_check_mode));
    integrity.with(1, slot(&integrity_check));
    optional.with(1, slot(&declined)).with(2, slot(&declined));
    libraries.with(4, slot(&library_context_flag)).with(39, slot(&library_stream_property));
    libraries.with(51, slot(&library_stream_handle));
    topology.with(4, slot(&topology_map)).with(13, slot(&topology_release));
    modules.with(7, slot(&enumerate_functions));
    compiled.with(1, slot(&open_compile_entry)).with(2, slot(&close_compile_entry));
    compiled.with(3, slot(&find_compiled)).with(4, slot(&insert_compiled));
    compiled.with(6, slot(&release_compiled));
  }
};

const Tables& tables() {
  static const auto* instance = new Tables;
  return *instance;
}

CUresult integrity_check(uint32_t version, uint64_t seconds, uint8_t* answer) {
  IntegrityQuestion question;
  question.driver_version = static_cast<uint32_t>(provider().driver_version());
  question.version = version;
  question.process_id = static_cast<uint32_t>(::getpid());
  question.thread = static_cast<uint32_t>(::pthread_self());
  question.runtime_table = reinterpret_cast<uint64_t>(tables().cudart.words.data());
  question.integrity_table = reinterpret_cast<uint64_t>(tables().integrity.words.data());
  question.integrity_function = reinterpret_cast<uint64_t>(slot(&integrity_check));
  question.seconds = seconds;
  std::vector<DeviceIdentity> devices;
  for (int i = 0; i < provider().device_count(); ++i) {
    devices.push_back(provider().device_identity(i));
  }
  const std::array<uint8_t, 16> bytes = integrity_answer(question, devices);
  std::memcpy(answer, bytes.data(), bytes.size());
  return CUDA_SUCCESS;
}

using TableId = std::array<uint8_t, 16>;

struct KnownTable {
  TableId id;
  const Word* words;
};

const std::array<KnownTable, 11>& known_tables() {
  static const auto* known = new std::array<KnownTable, 11>{{
      {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d,
        0xf9},
       tables().cudart.words.data()},
      {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a,
        0x66},
       tables().hooks.words.data()},
      {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec,
        0xdc},
       tables().tools.words.data()},
      {{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95,
        0x93},
       tables().storage.words.data()},
      {{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa,
        0x7e},
       tables().checks.words.data()},
      {{0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1,
        0xf2},
       tables().integrity.words.data()},
      {{0xf8, 0xcf, 0xf9, 0x51, 0x21, 0x46, 0x8b, 0x4e, 0xb9, 0xe2, 0xfb, 0x46, 0x9e, 0x7c, 0x0d,
        0xd9},
       tables().optional.words.data()},
      {{0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8,
        0xf2},
       tables().libraries.words.data()},
      {{0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b,
        0xca},
       tables().topology.words.data()},
      {{0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99,
        0x1e},
       tables().modules.words.data()},
      {{0xda, 0x91, 0x51, 0xd3, 0x3a, 0xe6, 0xcc, 0x41, 0xa5, 0xc0, 0x4f, 0x26, 0xd5, 0x33, 0xe3,
        0x28},
       tables().compiled.words.data()},
  }};
  return *known;
}

}  // namespace

void set_provider(Provider* provider) { the_provider.store(provider, std::memory_order_release); }

CUresult get_export_table(const void** table, const CUuuid* id) {
  if (!table || !id) return CUDA_ERROR_INVALID_VALUE;
  *table = nullptr;
  for (const KnownTable& known : known_tables()) {
    if (std::memcmp(known.id.data(), id->bytes, known.id.size()) != 0) continue;
    *table = known.words;
    return CUDA_SUCCESS;
  }
  RCUDA_DEBUG(
      "export table %02X%02X%02X%02X... is not known: cuGetExportTable returns "
      "CUDA_ERROR_NOT_FOUND",
      id->bytes[0] & 0xff, id->bytes[1] & 0xff, id->bytes[2] & 0xff, id->bytes[3] & 0xff);
  return CUDA_ERROR_NOT_FOUND;
}

void context_destroyed(CUcontext context) { storage().destroy(context); }

void context_destroyed(CUcontext context, MutexLock& lock) {
  while (storage().has_values(context)) {
    lock.unlock();
    storage().destroy(context);
    lock.lock();
  }
}

}  // namespace rcuda::interop

// Runs the single-instruction kernels of tests/support/ptx_cases through a CUDA driver. Compares
// the result words with the CPU references of these cases, or with the results of another driver
// (--compare).
//
//   compare_ptx [--driver PATH] [--family NAME] [--write FILE] [--compare FILE] [--all]
//   compare_ptx --dump-ptx FILE
//
//   --driver PATH   the libcuda to load (default libcuda.so.1)
//   --family NAME   only the cases of this family ("f32", "cvt float", ...)
//   --write FILE    write every result word to FILE
//   --compare FILE  compare with the words in FILE instead of the references; cases that are not in
//                   FILE are skipped
//   --all           print every differing case, not only the first three of a family
//   --dump-ptx FILE write the PTX (for ptxas) and exit; needs no driver
//
// On softgpu:    compare_ptx --driver build/.../softgpu/lib/libcuda.so.1 --write softgpu.bin
// On hardware:   compare_ptx --compare softgpu.bin
//
// Results of integer and IEEE-exact operations must be equal bit for bit. (Two NaNs count as equal:
// different payloads are counted, but are not errors.) Results of approximate operations must be
// within the error that PTX documents. Exit status: 0 all are right, 1 some results differ, 2 no
// result (no driver, no device, wrong arguments). Takes some seconds.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <cuda.h>
#include <dlfcn.h>

#include "tests/support/ptx_cases.h"

namespace {

using softgpu::test::Comparison;
using softgpu::test::PtxCase;

struct Options {
  std::string driver = "libcuda.so.1";
  std::string family, write, compare, dump;
  bool all = false;
};

// The entry points that this program uses, from the driver that --driver names.
struct Driver {
#define COMPARE_PTX_FUNCTIONS(X)                                                         \
  X(cuInit)                                                                              \
  X(cuDriverGetVersion)                                                                  \
  X(cuDeviceGet)                                                                         \
  X(cuDeviceGetName)                                                                     \
  X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuModuleLoadDataEx) X(cuModuleUnload) \
      X(cuModuleGetFunction) X(cuMemAlloc_v2) X(cuMemFree_v2) X(cuMemcpyHtoD_v2)         \
          X(cuMemcpyDtoH_v2) X(cuMemsetD8_v2) X(cuLaunchKernel) X(cuCtxSynchronize)      \
              X(cuGetErrorName)
#define DECLARE(name) decltype(&::name) name = nullptr;
  COMPARE_PTX_FUNCTIONS(DECLARE)
#undef DECLARE

  bool load(const std::string& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      return false;
    }
    bool good = true;
#define RESOLVE(name)                                             \
  name = reinterpret_cast<decltype(name)>(dlsym(library, #name)); \
  if (name == nullptr) {                                          \
    std::fprintf(stderr, "%s lacks %s\n", path.c_str(), #name);   \
    good = false;                                                 \
  }
    COMPARE_PTX_FUNCTIONS(RESOLVE)
#undef RESOLVE
    return good;
  }

  bool check(CUresult result, const char* what) const {
    if (result == CUDA_SUCCESS) return true;
    const char* name = nullptr;
    cuGetErrorName(result, &name);
    std::fprintf(stderr, "%s: %s (%d)\n", what, name != nullptr ? name : "?",
                 static_cast<int>(result));
    return false;
  }
};

using Results = std::map<std::string, std::vector<uint64_t>>;  // by "family: name"

std::string key_of(const PtxCase& c) { return c.family + ": " + c.name; }

// FILE: "PTXCASES", then per case: length and text of the key, number of words, the words.
bool write_results(const std::string& path, const Results& results) {
  std::ofstream file(path, std::ios::binary);
  file.write("PTXCASES", 8);
  for (const auto& [key, words] : results) {
    const auto length = static_cast<uint32_t>(key.size());
    const auto count = static_cast<uint32_t>(words.size());
    file.write(reinterpret_cast<const char*>(&length), sizeof length);
    file.write(key.data(), length);
    file.write(reinterpret_cast<const char*>(&count), sizeof count);
    file.write(reinterpret_cast<const char*>(words.data()),
               static_cast<std::streamsize>(count * sizeof(uint64_t)));
  }
  return file.good();
}

bool read_results(const std::string& path, Results* results) {
  std::ifstream file(path, std::ios::binary);
  char magic[8];
  if (!file.read(magic, sizeof magic) || std::memcmp(magic, "PTXCASES", 8) != 0) return false;
  uint32_t length = 0;
  while (file.read(reinterpret_cast<char*>(&length), sizeof length)) {
    if (length > 1000) return false;
    std::string key(length, '\0');
    uint32_t count = 0;
    file.read(key.data(), length);
    if (!file.read(reinterpret_cast<char*>(&count), sizeof count) || count > (1u << 24))
      return false;
    std::vector<uint64_t> words(count);
    if (!file.read(reinterpret_cast<char*>(words.data()),
                   static_cast<std::streamsize>(count * sizeof(uint64_t))))
      return false;
    results->emplace(std::move(key), std::move(words));
  }
  return true;
}

class Runner {
 public:
  explicit Runner(const Driver& driver) : driver_(driver) {}

  bool start() {
    CUdevice device = 0;
    CUcontext context = nullptr;
    char name[128] = "";
    int version = 0;
    if (!driver_.check(driver_.cuInit(0), "cuInit") ||
        !driver_.check(driver_.cuDeviceGet(&device, 0), "cuDeviceGet") ||
        !driver_.check(driver_.cuDevicePrimaryCtxRetain(&context, device),
                       "cuDevicePrimaryCtxRetain") ||
        !driver_.check(driver_.cuCtxSetCurrent(context), "cuCtxSetCurrent")) {
      return false;
    }
    driver_.cuDeviceGetName(name, sizeof name, device);
    driver_.cuDriverGetVersion(&version);
    std::printf("device: %s, driver API %d.%d\n", name, version / 1000, version % 1000 / 10);
    return true;
  }

  // Loads the cases' kernels as one module. If that fails, loads them one by one. Reports the cases
  // whose kernels do not load; *functions does not have them.
  void load(const std::vector<const PtxCase*>& cases,
            std::map<const PtxCase*, CUfunction>* functions) {
    CUmodule module = nullptr;
    if (load_module(softgpu::test::ptx_module(cases), &module, nullptr)) {
      for (const PtxCase* c : cases) add(module, c, functions);
      return;
    }
    for (const PtxCase* c : cases) {
      std::string log;
      if (load_module(softgpu::test::ptx_module({c}), &module, &log)) {
        add(module, c, functions);
      } else {
        std::printf("  %s does not load: %s\n", key_of(*c).c_str(), log.c_str());
      }
    }
  }

  bool run(const PtxCase& c, CUfunction function, std::vector<uint64_t>* words) {
    const size_t in_bytes = c.input.size() * sizeof(uint64_t);
    const size_t out_bytes = c.expected.size() * sizeof(uint64_t);
    if (!reserve(&in_, &in_capacity_, in_bytes) || !reserve(&out_, &out_capacity_, out_bytes))
      return false;
    words->assign(c.expected.size(), 0);
    void* arguments[] = {&in_, &out_};
    return driver_.check(driver_.cuMemcpyHtoD_v2(in_, c.input.data(), in_bytes), "cuMemcpyHtoD") &&
           driver_.check(driver_.cuMemsetD8_v2(out_, 0xee, out_bytes), "cuMemsetD8") &&
           driver_.check(driver_.cuLaunchKernel(function, c.blocks, 1, 1, c.threads, 1, 1, 0,
                                                nullptr, arguments, nullptr),
                         key_of(c).c_str()) &&
           driver_.check(driver_.cuCtxSynchronize(), key_of(c).c_str()) &&
           driver_.check(driver_.cuMemcpyDtoH_v2(words->data(), out_, out_bytes), "cuMemcpyDtoH");
  }

 private:
  bool load_module(const std::string& ptx, CUmodule* module, std::string* log) {
    char text[2048] = "";
    CUjit_option names[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_OPTIMIZATION_LEVEL};
    void* values[] = {text, reinterpret_cast<void*>(sizeof text),
                      reinterpret_cast<void*>(uintptr_t{1})};
    const CUresult result = driver_.cuModuleLoadDataEx(module, ptx.c_str(), 3, names, values);
    if (log != nullptr)
      *log = text[0] != '\0' ? text : "error " + std::to_string(static_cast<int>(result));
    return result == CUDA_SUCCESS;
  }
  void add(CUmodule module, const PtxCase* c, std::map<const PtxCase*, CUfunction>* functions) {
    CUfunction function = nullptr;
    if (driver_.check(driver_.cuModuleGetFunction(&function, module, c->entry.c_str()),
                      key_of(*c).c_str())) {
      (*functions)[c] = function;
    }
  }
  bool reserve(CUdeviceptr* buffer, size_t* capacity, size_t bytes) {
    if (bytes <= *capacity) return true;
    if (*capacity != 0) driver_.cuMemFree_v2(*buffer);
    *capacity = bytes;
    return driver_.check(driver_.cuMemAlloc_v2(buffer, bytes), "cuMemAlloc");
  }

  const Driver& driver_;
  CUdeviceptr in_ = 0, out_ = 0;
  size_t in_capacity_ = 0, out_capacity_ = 0;
};

struct Row {
  size_t cases = 0, good = 0, missing = 0;
  Comparison total;
};

bool parse(int argc, char** argv, Options* options) {
  for (int k = 1; k < argc; ++k) {
    const std::string word = argv[k];
    std::string* value = word == "--driver"     ? &options->driver
                         : word == "--family"   ? &options->family
                         : word == "--write"    ? &options->write
                         : word == "--compare"  ? &options->compare
                         : word == "--dump-ptx" ? &options->dump
                                                : nullptr;
    if (value != nullptr && k + 1 < argc) {
      *value = argv[++k];
    } else if (word == "--all") {
      options->all = true;
    } else {
      std::fprintf(stderr,
                   "usage: compare_ptx [--driver PATH] [--family NAME] [--write FILE] [--compare "
                   "FILE] [--all]\n"
                   "       compare_ptx --dump-ptx FILE\n");
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, &options)) return 2;
  std::vector<std::string> families;
  std::map<std::string, std::vector<const PtxCase*>> by_family;
  for (const PtxCase& c : softgpu::test::ptx_cases()) {
    if (!options.family.empty() && c.family != options.family) continue;
    if (by_family[c.family].empty()) families.push_back(c.family);
    by_family[c.family].push_back(&c);
  }
  if (!options.dump.empty()) {
    std::vector<const PtxCase*> all;
    for (const std::string& family : families)
      all.insert(all.end(), by_family[family].begin(), by_family[family].end());
    std::ofstream file(options.dump);
    file << softgpu::test::ptx_module(all);
    return file.good() ? 0 : 2;
  }

  Results reference, results;
  if (!options.compare.empty() && !read_results(options.compare, &reference)) {
    std::fprintf(stderr, "%s is not a result file of compare_ptx --write\n",
                 options.compare.c_str());
    return 2;
  }
  Driver driver;
  if (!driver.load(options.driver)) return 2;
  Runner runner(driver);
  if (!runner.start()) return 2;

  const auto begin = std::chrono::steady_clock::now();
  std::printf("compared with %s\n\n",
              options.compare.empty() ? "the CPU references" : options.compare.c_str());
  std::printf("%-18s %6s %9s %9s %8s %8s %10s  %s\n", "family", "cases", "words", "exact",
              "NaN bits", "bad", "max ulp", "verdict");
  bool all_good = true;
  for (const std::string& family : families) {
    std::map<const PtxCase*, CUfunction> functions;
    runner.load(by_family[family], &functions);
    Row row;
    std::vector<std::string> complaints;
    for (const PtxCase* c : by_family[family]) {
      ++row.cases;
      const auto function = functions.find(c);
      std::vector<uint64_t> words;
      if (function == functions.end()) {
        ++row.missing;
        continue;
      }
      if (!runner.run(*c, function->second, &words)) return 2;  // the context may be lost
      const auto known = reference.find(key_of(*c));
      if (options.compare.empty() || known != reference.end()) {
        const auto& expected = options.compare.empty() ? c->expected : known->second;
        const Comparison comparison = softgpu::test::compare(*c, words, expected);
        row.good += comparison.bad == 0 ? 1 : 0;
        row.total.words += comparison.words;
        row.total.exact += comparison.exact;
        row.total.nan_bits += comparison.nan_bits;
        row.total.bad += comparison.bad;
        if (comparison.worst_ulp > row.total.worst_ulp) row.total.worst_ulp = comparison.worst_ulp;
        if (comparison.bad != 0) {
          complaints.push_back(c->name + ": " + std::to_string(comparison.bad) + " of " +
                               std::to_string(comparison.words) + " words; " +
                               comparison.first_bad);
        } else if (comparison.nan_bits != 0 && options.all) {
          complaints.push_back(c->name + ": " + std::to_string(comparison.nan_bits) +
                               " NaNs of other bits");
        }
      } else {
        ++row.missing;
      }
      results[key_of(*c)] = std::move(words);
    }
    const bool good = row.good + row.missing == row.cases && row.total.bad == 0 && row.missing == 0;
    all_good = all_good && good;
    std::printf("%-18s %6zu %9zu %9zu %8zu %8zu %10.3g  %s\n", family.c_str(), row.cases,
                row.total.words, row.total.exact, row.total.nan_bits, row.total.bad,
                row.total.worst_ulp,
                good                                     ? "good"
                : row.missing != 0 && row.total.bad == 0 ? "INCOMPLETE"
                                                         : "DIFFERENT");
    for (size_t k = 0; k < complaints.size() && (options.all || k < 3); ++k)
      std::printf("    %s\n", complaints[k].c_str());
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("\n%s in %.1f s\n", all_good ? "all good" : "differences found", seconds);
  if (!options.write.empty() && !write_results(options.write, results)) {
    std::fprintf(stderr, "cannot write %s\n", options.write.c_str());
    return 2;
  }
  return all_good ? 0 : 1;
}

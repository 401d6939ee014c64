#include "common/interop/compile_cache.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include "common/base/absolute_variable.h"
#include "common/base/cache_folder.h"
#include "common/base/file_cache.h"
#include "common/base/file_io.h"
#include "common/base/fnv1a.h"
#include "common/base/log.h"
#include "common/base/parse_number.h"

namespace rcuda::interop {
namespace {

constexpr uint64_t kDefaultMaxBytes = 1ull << 30;  // the driver's default
constexpr uint64_t kMagic = 0x3165646f63756372;    // "rcucode1"

struct FileHeader {
  uint64_t magic;
  uint64_t question_bytes;
  uint64_t answer_bytes;
};

FileCache open_cache() {
  const char* const disabled = ::secure_getenv("CUDA_CACHE_DISABLE");
  if (disabled && std::string_view(disabled) == "1") return {};
  std::string folder = absolute_variable("CUDA_CACHE_PATH");
  if (!folder.empty()) folder += "/rcuda";
  if (folder.empty() && !cache_folder().empty()) folder = cache_folder() + "/compiled";
  if (folder.empty()) return {};
  uint64_t most = kDefaultMaxBytes;
  if (const char* const given = ::secure_getenv("CUDA_CACHE_MAXSIZE")) {
    uint64_t read = 0;
    if (parse_number(given, &read)) most = read;
  }
  Result<UniqueFd> opened = open_cache_directory(folder);
  if (opened.ok()) return FileCache(std::move(opened).value(), most);
  RCUDA_DEBUG("output of NVRTC is not cached: %s", opened.status().message().c_str());
  return {};
}

const FileCache& cache() {
  static const auto* instance = new FileCache(open_cache());
  return *instance;
}

std::span<const std::byte> bytes_of(const void* data, size_t bytes) {
  return {static_cast<const std::byte*>(data), bytes};
}

}  // namespace

class CompileEntry {
 public:
  explicit CompileEntry(std::string question) : question_(std::move(question)) {
    char name[40];
    std::snprintf(name, sizeof name, "%016llx%016llx",
                  static_cast<unsigned long long>(fnv1a(question_)),
                  static_cast<unsigned long long>(fnv1a(question_, 0x9e3779b97f4a7c15)));
    name_ = name;
  }

  // Returns memory from malloc(), or null if the cache has no answer.
  void* find(uint32_t* bytes) const {
    const UniqueFd file = cache().open(name_);
    struct stat status;
    FileHeader header;
    if (!file || ::fstat(file.get(), &status) != 0 ||
        !read_all(file.get(), std::as_writable_bytes(std::span(&header, 1)))) {
      return nullptr;
    }
    const auto rest = static_cast<uint64_t>(status.st_size) - sizeof header - question_.size();
    std::string question(question_.size(), '\0');
    if (header.magic != kMagic || header.question_bytes != question_.size() ||
        header.answer_bytes != rest || rest > std::numeric_limits<uint32_t>::max() ||
        !read_all(file.get(), std::as_writable_bytes(std::span(question))) ||
        question != question_) {
      return nullptr;
    }
    void* const answer = std::malloc(rest);
    if (answer && !read_all(file.get(), {static_cast<std::byte*>(answer), rest})) {
      std::free(answer);
      return nullptr;
    }
    *bytes = static_cast<uint32_t>(rest);
    return answer;
  }

  void insert(const void* data, size_t bytes) const {
    if (!cache().keeps_files() || bytes + question_.size() > cache().max_bytes()) return;
    const FileHeader header{kMagic, question_.size(), bytes};
    const Status status = cache().insert(
        name_, {bytes_of(&header, sizeof header), bytes_of(question_.data(), question_.size()),
                bytes_of(data, bytes)});
    if (!status.ok()) RCUDA_DEBUG("cannot cache output of NVRTC: %s", status.message().c_str());
  }

  const std::string& name() const { return name_; }

 private:
  const std::string question_;
  std::string name_;
};

CUresult open_compile_entry(CompileEntry** entry, uint32_t kind, const void* input,
                            size_t input_bytes, const char* options, const char* host,
                            const char* build, uint32_t architecture) {
  if (!entry || !input || !options || !host || !build) return CUDA_ERROR_INVALID_VALUE;
  std::string question = std::to_string(kind) + " sm_" + std::to_string(architecture);
  for (const char* part : {options, host, build}) {
    question += part;
    question += '\0';
  }
  question.append(static_cast<const char*>(input), input_bytes);
  *entry = new CompileEntry(std::move(question));
  return CUDA_SUCCESS;
}

CUresult close_compile_entry(CompileEntry* entry) {
  delete entry;
  return CUDA_SUCCESS;
}

CUresult find_compiled(CompileEntry* entry, uint32_t reserved, void** data, uint32_t* bytes) {
  if (!entry || reserved != 0 || !data || !bytes) return CUDA_ERROR_INVALID_VALUE;
  *data = entry->find(bytes);
  RCUDA_DEBUG("compile cache: query %s: %s", entry->name().c_str(), *data ? "known" : "new");
  return *data ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult insert_compiled(CompileEntry* entry, uint32_t reserved, const void* data, size_t bytes) {
  if (!entry || reserved != 0 || (!data && bytes != 0)) return CUDA_ERROR_INVALID_VALUE;
  entry->insert(data, bytes);
  return CUDA_SUCCESS;
}

CUresult release_compiled(void* data) {
  std::free(data);
  return CUDA_SUCCESS;
}

}  // namespace rcuda::interop

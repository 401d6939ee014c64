#include "common/interop/compile_cache.h"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace rcuda::interop {
namespace {

// Sets the cache's variables before the cache reads them at its first use.
const std::string folder = [] {
  std::string made = testing::TempDir() + "compile_cache_XXXXXX";
  EXPECT_NE(::mkdtemp(made.data()), nullptr);
  ::setenv("CUDA_CACHE_PATH", made.c_str(), 1);
  return made;
}();

struct Question {
  uint32_t kind = 1;
  std::string input = "intermediate code";
  std::string options = "-ftz=0", host = "HOST64", build = "Aug 20 2025";
  uint32_t architecture = 90;
};

class Entry {
 public:
  explicit Entry(const Question& asked) {
    EXPECT_EQ(open_compile_entry(&entry_, asked.kind, asked.input.data(), asked.input.size(),
                                 asked.options.c_str(), asked.host.c_str(), asked.build.c_str(),
                                 asked.architecture),
              CUDA_SUCCESS);
  }
  ~Entry() { EXPECT_EQ(close_compile_entry(entry_), CUDA_SUCCESS); }
  CompileEntry* get() { return entry_; }

  void insert(const std::string& answer) {
    EXPECT_EQ(insert_compiled(entry_, 0, answer.data(), answer.size()), CUDA_SUCCESS);
  }
  std::string find() {
    void* data = nullptr;
    uint32_t bytes = 0;
    const CUresult result = find_compiled(entry_, 0, &data, &bytes);
    if (result == CUDA_ERROR_NOT_FOUND) return "not found";
    EXPECT_EQ(result, CUDA_SUCCESS);
    std::string answer(static_cast<const char*>(data), bytes);
    EXPECT_EQ(release_compiled(data), CUDA_SUCCESS);
    return answer;
  }

 private:
  CompileEntry* entry_ = nullptr;
};

TEST(CompileCache, FindsWhatWasInsertedForTheSameQuestionOnly) {
  const Question question;
  EXPECT_EQ(Entry(question).find(), "not found");
  Entry(question).insert(std::string("\0cubin\0", 7));
  EXPECT_EQ(Entry(question).find(), std::string("\0cubin\0", 7));
  std::vector<Question> others(6, question);
  others[0].kind = 2;
  others[1].input += " ";
  others[2].options = "-ftz=1";
  others[3].host = "HOST32";
  others[4].build = "Aug 21 2025";
  others[5].architecture = 80;
  for (const Question& other : others) EXPECT_EQ(Entry(other).find(), "not found");
}

TEST(CompileCache, ComparesTheWholeQuestionAndTheSize) {
  Question question;
  question.input = "code of a damaged file";
  Entry(question).insert("answer");
  std::filesystem::path newest;
  for (const auto& file : std::filesystem::directory_iterator(folder + "/rcuda")) {
    if (newest.empty() || file.last_write_time() > std::filesystem::last_write_time(newest)) {
      newest = file.path();
    }
  }
  const auto bytes = std::filesystem::file_size(newest);
  for (const uintmax_t kept : {bytes - 1, bytes - 6, bytes - 7, uintmax_t{24}, uintmax_t{0}}) {
    std::filesystem::resize_file(newest, kept);
    EXPECT_EQ(Entry(question).find(), "not found") << kept;
  }
  Entry(question).insert("answer");
  EXPECT_EQ(Entry(question).find(), "answer");
}

TEST(CompileCache, RefusesWhatItCannotUnderstand) {
  CompileEntry* none = nullptr;
  EXPECT_EQ(open_compile_entry(&none, 1, nullptr, 0, "", "", "", 90), CUDA_ERROR_INVALID_VALUE);
  Entry entry({});
  void* data = nullptr;
  uint32_t bytes = 0;
  EXPECT_EQ(find_compiled(entry.get(), 1, &data, &bytes), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(find_compiled(entry.get(), 0, nullptr, &bytes), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(insert_compiled(entry.get(), 0, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace rcuda::interop

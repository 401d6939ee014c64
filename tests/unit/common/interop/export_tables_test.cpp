#include "common/interop/export_tables.h"

#include <cstring>
#include <string>

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include "common/interop/integrity.h"

namespace rcuda::interop {
namespace {

CUcontext const kContext = reinterpret_cast<CUcontext>(0x1000);
CUcontext const kPrimary = reinterpret_cast<CUcontext>(0x2000);
CUmodule const kModule = reinterpret_cast<CUmodule>(0x3000);

class FakeProvider : public Provider {
 public:
  CUcontext current_context() override { return current; }
  CUresult primary_context(CUdevice device, CUcontext* context) override {
    if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
    *context = kPrimary;
    return CUDA_SUCCESS;
  }
  int driver_version() override { return 13000; }
  int device_count() override { return 1; }
  DeviceIdentity device_identity(int) override {
    DeviceIdentity identity;
    std::memcpy(identity.uuid.bytes, "0123456789abcdef", 16);
    identity.pci_bus = 0x10;
    return identity;
  }
  int multiprocessors(int) override { return 132; }
  CUresult load_module(CUmodule* module, const void* image) override {
    loaded = image;
    *module = kModule;
    return CUDA_SUCCESS;
  }
  CUresult unload_module(CUmodule module) override {
    return module == kModule ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  }
  CUresult module_functions(CUmodule module, std::vector<CUfunction>* functions) override {
    if (module != kModule) return CUDA_ERROR_INVALID_HANDLE;
    for (uintptr_t i = 1; i <= 3; ++i) functions->push_back(reinterpret_cast<CUfunction>(i));
    return CUDA_SUCCESS;
  }
  CUcontext current = kContext;
  const void* loaded = nullptr;
};

class ExportTables : public testing::Test {
 protected:
  void SetUp() override { set_provider(&provider_); }

  static void** table(const char* hex) {
    CUuuid id{};
    for (size_t i = 0; i < 16; ++i) {
      id.bytes[i] = static_cast<char>(std::stoi(std::string(hex + 2 * i, 2), nullptr, 16));
    }
    const void* found = nullptr;
    EXPECT_EQ(get_export_table(&found, &id), CUDA_SUCCESS) << hex;
    return static_cast<void**>(const_cast<void*>(found));
  }
  template <typename Function>
  static Function slot(void** table, int index) {
    return reinterpret_cast<Function>(table[index]);
  }

  FakeProvider provider_;
};

constexpr const char* kCudart = "6BD5FB6C5BF4E74A8987D93912FD9DF9";
constexpr const char* kTools = "42D85A8123F6CB478298F6E78A3AECDC";
constexpr const char* kStorage = "C693336E1121DF11A8C368F355D89593";
constexpr const char* kIntegrity = "D4082055BDE6704B8D34BA123C66E1F2";
constexpr const char* kTopology = "1734DC26800D47458726C0F1E7DD8BCA";
constexpr const char* kModules = "6E163FBEB958444D835CE182AFF1991E";

TEST_F(ExportTables, HaveTheSizesOfTheRealDriver) {
  const std::pair<const char*, size_t> sizes[] = {
      {kCudart, 0x68},    {"A094798C2E742E7493F20800200C0A66", 0x38},
      {kTools, 0x18},     {"263E88607CD2614392F6BBD5006DFA7E", 0x78},
      {kIntegrity, 0x18}, {"F8CFF95121468B4EB9E2FB469E7C0DD9", 0x18},
      {kTopology, 0x88},  {"21318C60971432488CA641FF7324C8F2", 0x2e8},
      {kModules, 0x318},  {"DA9151D33AE6CC41A5C04F26D533E328", 0x38},
  };
  for (const auto& [id, size] : sizes) {
    void** words = table(id);
    ASSERT_NE(words, nullptr);
    EXPECT_EQ(reinterpret_cast<size_t>(words[0]), size) << id;
    for (size_t i = 1; i < size / 8; ++i) EXPECT_NE(words[i], nullptr) << id << " slot " << i;
  }
}

TEST_F(ExportTables, AnswersNotFoundForUnknownTables) {
  CUuuid id{};
  const void* found = &id;
  EXPECT_EQ(get_export_table(&found, &id), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(found, nullptr);
  EXPECT_EQ(get_export_table(nullptr, &id), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(get_export_table(&found, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(ExportTables, UnknownSlotsSayNotSupported) {
  EXPECT_EQ(slot<CUresult (*)()>(table(kModules), 50)(), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(slot<CUresult (*)()>(table(kCudart), 11)(), CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(ExportTables, LoadCodeForCuda11) {
  auto load =
      slot<CUresult (*)(CUmodule*, const void*, const char**, void**, uint32_t)>(table(kCudart), 6);
  CUmodule module = nullptr;
  const int wrapper = 0;
  EXPECT_EQ(load(&module, &wrapper, nullptr, nullptr, 0), CUDA_SUCCESS);
  EXPECT_EQ(module, kModule);
  EXPECT_EQ(provider_.loaded, &wrapper);
  const char* names[] = {"variable"};
  void* addresses[] = {&module};
  EXPECT_EQ(load(&module, &wrapper, names, addresses, 1), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(slot<CUresult (*)(CUmodule)>(table(kCudart), 7)(module), CUDA_SUCCESS);
}

TEST_F(ExportTables, LetARuntimeOf13Point5Start) {
  EXPECT_EQ(slot<CUresult (*)()>(table(kCudart), 12)(), CUDA_SUCCESS);
}

TEST_F(ExportTables, NameContexts) {
  CUcontext context = nullptr;
  EXPECT_EQ((slot<CUresult (*)(CUcontext*)>(table(kTools), 2)(&context)), CUDA_SUCCESS);
  EXPECT_EQ(context, kContext);
  auto primary = slot<CUresult (*)(CUcontext*, CUdevice)>(table(kCudart), 2);
  EXPECT_EQ(primary(&context, 0), CUDA_SUCCESS);
  EXPECT_EQ(context, kPrimary);
  EXPECT_EQ(primary(&context, 1), CUDA_ERROR_INVALID_DEVICE);
}

int destructions = 0;
void count_destruction(CUcontext, void*, void*) { ++destructions; }

TEST_F(ExportTables, StoreValuesWithTheCurrentContext) {
  void** words = table(kStorage);
  auto put =
      slot<CUresult (*)(CUcontext, void*, void*, void (*)(CUcontext, void*, void*))>(words, 0);
  auto remove = slot<CUresult (*)(CUcontext, void*)>(words, 1);
  auto get = slot<CUresult (*)(void**, CUcontext, void*)>(words, 2);
  int key = 0, value = 0;
  void* found = nullptr;
  EXPECT_NE(get(&found, nullptr, &key), CUDA_SUCCESS);
  EXPECT_EQ(put(nullptr, &key, &value, count_destruction), CUDA_SUCCESS);
  EXPECT_EQ(get(&found, nullptr, &key), CUDA_SUCCESS);
  EXPECT_EQ(found, &value);
  EXPECT_EQ(get(&found, kContext, &key), CUDA_SUCCESS);
  EXPECT_NE(get(&found, kPrimary, &key), CUDA_SUCCESS);
  provider_.current = nullptr;
  EXPECT_EQ(get(&found, nullptr, &key), CUDA_ERROR_INVALID_CONTEXT);
  provider_.current = kContext;
  destructions = 0;
  context_destroyed(kContext);
  EXPECT_EQ(destructions, 1);
  EXPECT_NE(get(&found, kContext, &key), CUDA_SUCCESS);
  EXPECT_NE(remove(kContext, &key), CUDA_SUCCESS);
}

TEST_F(ExportTables, MapMultiprocessorsToClusters) {
  void** words = table(kTopology);
  uint8_t* map = nullptr;
  uint32_t count = 0;
  EXPECT_EQ((slot<CUresult (*)(uint8_t**, uint32_t*)>(words, 4)(&map, &count)), CUDA_SUCCESS);
  EXPECT_EQ(count, 66u);
  EXPECT_EQ((slot<CUresult (*)(uint8_t*, uint32_t)>(words, 13)(map, count)), CUDA_SUCCESS);
}

TEST_F(ExportTables, EnumerateAModulesFunctions) {
  auto enumerate = slot<uint32_t (*)(CUcontext, CUmodule, void (*)(void*, CUfunction), void*)>(
      table(kModules), 7);
  std::vector<CUfunction> seen;
  auto visit = [](void* user, CUfunction function) {
    static_cast<std::vector<CUfunction>*>(user)->push_back(function);
  };
  EXPECT_EQ(enumerate(kContext, kModule, visit, &seen), 1u);
  EXPECT_EQ(seen.size(), 3u);
  EXPECT_EQ(enumerate(kContext, nullptr, visit, &seen), 0u);
}

TEST_F(ExportTables, IntegrityAnswerSignsProcessTablesAndDevices) {
  auto check = slot<CUresult (*)(uint32_t, uint64_t, uint8_t*)>(table(kIntegrity), 1);
  std::array<uint8_t, 16> answer{};
  EXPECT_EQ(check(13000, 1234, answer.data()), CUDA_SUCCESS);
  const std::array<uint8_t, 16> constant = {0x5c, 0x67, 0xcb, 0x03, 0x1c, 0x18, 0x41, 0x33,
                                            0xe8, 0xd1, 0x4c, 0x1f, 0xaa, 0x83, 0xd3, 0x8e};
  EXPECT_EQ(answer, constant);
  EXPECT_EQ(check(13001, 1234, answer.data()), CUDA_SUCCESS);
  EXPECT_EQ(answer[7], 0x18);

  IntegrityQuestion question;
  question.driver_version = 13000;
  question.version = 13002;
  question.process_id = static_cast<uint32_t>(::getpid());
  question.thread = static_cast<uint32_t>(::pthread_self());
  question.runtime_table = reinterpret_cast<uint64_t>(table(kCudart));
  question.integrity_table = reinterpret_cast<uint64_t>(table(kIntegrity));
  question.integrity_function = reinterpret_cast<uint64_t>(table(kIntegrity)[1]);
  question.seconds = 1234;
  const DeviceIdentity device = provider_.device_identity(0);
  EXPECT_EQ(check(13002, 1234, answer.data()), CUDA_SUCCESS);
  EXPECT_EQ(answer, integrity_answer(question, {&device, 1}));
  question.seconds = 1235;
  EXPECT_NE(answer, integrity_answer(question, {&device, 1}));
}

}  // namespace
}  // namespace rcuda::interop

#include "client/code/functions.h"

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "api/opcodes.h"
#include "client/code/module_images.h"
#include "client/route/find_route.h"
#include "common/wire/codec.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

class FunctionsTest : public TwoPuppetsTest {
 protected:
  using Answer = test::PuppetServer::Answer;

  void SetUp() override {
    TwoPuppetsTest::SetUp();
    first().on(wire::Custom::kImageQuery, [](const auto&) {
      return Answer{CUDA_SUCCESS, bytes_of(std::array<uint32_t, 2>{1, 0})};  // the worker has it
    });
    first().on(wire::Custom::kLibraryLoad, [](const auto&) {
      return Answer{CUDA_SUCCESS, bytes_of(std::array<uint32_t, 2>{})};
    });
    answer_with({{0, 8}, {8, 4}});
    first().on(static_cast<uint16_t>(api::Opcode::cuKernelGetFunction), [this](const auto&) {
      wire::Encoder out;
      out.value(wire::kWorkerMinted | ++functions_);
      return Answer{CUDA_SUCCESS, {out.body().begin(), out.body().end()}};
    });
    library_ = make_library();
    route_.emplace(*find_current_route());
  }

  template <typename Body>
  static std::vector<std::byte> bytes_of(const Body& body) {
    const auto bytes = std::as_bytes(std::span(&body, 1));
    return {bytes.begin(), bytes.end()};
  }
  // Sets the worker's answer about every kernel. `count` may differ from the number of parameters.
  void answer_with(const std::vector<wire::ParameterInfo>& parameters, int64_t count = -1) {
    first().on(wire::Custom::kFunctionInfo, [=](const auto&) {
      struct {
        uint32_t count, reserved = 0;
        int32_t attributes[wire::kFunctionAttributeCount] = {7};
      } fixed;
      fixed.count = static_cast<uint32_t>(count < 0 ? parameters.size() : count);
      std::vector<std::byte> body = bytes_of(fixed);
      for (const auto& parameter : parameters) {
        const auto more = bytes_of(parameter);
        body.insert(body.end(), more.begin(), more.end());
      }
      return Answer{CUDA_SUCCESS, body};
    });
  }

  static Library* make_library() {
    ImageParts image;
    image.parts = {std::as_bytes(std::span("an image", 8))};
    image.hashes.resize(1);
    return create<Library>({}, std::move(image), JitOptions());
  }

  std::optional<Route> route_;
  Library* library_ = nullptr;
  uint32_t functions_ = 0;
};

TEST_F(FunctionsTest, AKernelIsAskedForOnce) {
  (void)sent(wire::Custom::kFunctionInfo);
  Kernel *one = nullptr, *again = nullptr;
  ASSERT_EQ(find_kernel(*library_, *route_, "climb", &one), CUDA_SUCCESS);
  ASSERT_EQ(find_kernel(*library_, *route_, "climb", &again), CUDA_SUCCESS);
  EXPECT_EQ(one, again);
  FunctionInfo* info = nullptr;
  ASSERT_EQ(info_on(*one, *route_, &info), CUDA_SUCCESS);
  EXPECT_EQ(info->parameter_bytes, 12u);
  EXPECT_EQ(info->attributes[0].load(), 7);
  EXPECT_EQ(sent(wire::Custom::kFunctionInfo).size(), 1u);
  unload(*library_);
}

TEST_F(FunctionsTest, ASettingIsOfOneDeviceAndOutlivesItsContexts) {
  constexpr int kWhich = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  Kernel* kernel = nullptr;
  Function* function = nullptr;
  ASSERT_EQ(find_kernel(*library_, *route_, "climb", &kernel), CUDA_SUCCESS);
  ASSERT_EQ(function_in(*kernel, *route_, &function), CUDA_SUCCESS);
  const Route other{route_->session, route_->context, route_->device + 1};
  FunctionInfo *here = nullptr, *there = nullptr;
  ASSERT_EQ(info_on(*kernel, *route_, &here), CUDA_SUCCESS);
  ASSERT_EQ(info_on(*kernel, other, &there), CUDA_SUCCESS);
  const int before = there->attributes[kWhich].load();
  note_attribute(*kernel, *route_, kWhich, 102400);
  EXPECT_EQ(here->attributes[kWhich].load(), 102400);
  EXPECT_EQ(function->info->attributes[kWhich].load(), 102400);
  EXPECT_EQ(there->attributes[kWhich].load(), before);
  forget_kernels_in(first_session(), route_->context);
  ASSERT_EQ(info_on(*kernel, *route_, &here), CUDA_SUCCESS);
  EXPECT_EQ(here->attributes[kWhich].load(), 102400);
  EXPECT_EQ(sent(wire::Custom::kFunctionInfo).size(), 2u);
  unload(*library_);
}

TEST_F(FunctionsTest, WithALibraryGoWhatItsKernelsWere) {
  Kernel* kernel = nullptr;
  Function* function = nullptr;
  ASSERT_EQ(find_kernel(*library_, *route_, "climb", &kernel), CUDA_SUCCESS);
  ASSERT_EQ(function_in(*kernel, *route_, &function), CUDA_SUCCESS);
  EXPECT_EQ(find<Function>(function), function);
  (void)sent(static_cast<uint16_t>(api::Opcode::cuLibraryUnload));
  unload(*library_);
  EXPECT_EQ(find<Kernel>(kernel), nullptr);
  EXPECT_EQ(find<Function>(function), nullptr);
  EXPECT_EQ(sent(static_cast<uint16_t>(api::Opcode::cuLibraryUnload)).size(), 1u);
}

// A thread looks for kernels, as for the nodes of a graph, while another thread unloads a library.
TEST_F(FunctionsTest, KernelsAreLookedForWhileOthersGo) {
  constexpr int kRounds = 100;
  Kernel* kernel = nullptr;
  ASSERT_EQ(find_kernel(*library_, *route_, "climb", &kernel), CUDA_SUCCESS);
  FunctionInfo* info = nullptr;
  ASSERT_EQ(info_on(*kernel, *route_, &info), CUDA_SUCCESS);
  std::atomic<bool> over{false};
  std::thread unloading([&] {
    for (int round = 0; round < kRounds; ++round) {
      Library* library = make_library();
      for (const char* name : {"rise", "fall"}) {
        Kernel* other = nullptr;
        EXPECT_EQ(find_kernel(*library, *route_, name, &other), CUDA_SUCCESS);
      }
      unload(*library);
    }
    over = true;
  });
  while (!over) {
    EXPECT_EQ(find_kernel(first_session(), info->id), kernel);
    forget_kernels_in(first_session(), wire::kFirstCreatedContext);
  }
  unloading.join();
  unload(*library_);
}

// A thread makes objects, for example streams, while another thread removes those of a context, as
// a reset of a device does.
TEST_F(FunctionsTest, ObjectsAreLookedForByContextWhileOthersComeAndGo) {
  constexpr int kRounds = 1000;
  constexpr wire::ObjectId kContext = wire::kFirstCreatedContext + 77;
  const Route elsewhere{route_->session, kContext, route_->device};
  wire::ObjectId id = 0;
  void* mine = nullptr;
  ASSERT_EQ(mint(elsewhere, wire::Kind::kEvent, &mine, &id), CUDA_SUCCESS);
  std::atomic<bool> over{false};
  std::thread making([&] {
    for (int round = 0; round < kRounds; ++round) {
      void* made = nullptr;
      wire::ObjectId number = 0;
      EXPECT_EQ(mint(*route_, wire::Kind::kEvent, &made, &number), CUDA_SUCCESS);
      retire(made, wire::Kind::kEvent);
    }
    over = true;
  });
  while (!over) {
    EXPECT_EQ(objects_in<Event>(&first_session(), kContext),
              std::vector<Event*>{find<Event>(mine)});
  }
  making.join();
  retire(mine, wire::Kind::kEvent);
}

TEST_F(FunctionsTest, ParametersThatCannotBeAreRefused) {
  Kernel* kernel = nullptr;
  const std::vector<std::pair<std::vector<wire::ParameterInfo>, int64_t>> lies{
      {{{0, 8}}, 2},  // a count above the number of parameters in the answer
      {{{0, 8}}, 0xffff'ffff},
      {{{wire::kMaxParameterBytes, 1}}, -1},
      {{{0xffff'ffff, 0xffff'ffff}}, -1},
  };
  Ids& ids = route_->session->ids();
  const wire::ObjectId next = ids.mint(wire::Kind::kKernel);
  ids.release(wire::Kind::kKernel, next);
  for (const auto& [parameters, count] : lies) {
    answer_with(parameters, count);
    EXPECT_EQ(find_kernel(*library_, *route_, "climb", &kernel), CUDA_ERROR_UNKNOWN);
  }
  EXPECT_EQ(ids.mint(wire::Kind::kKernel), next);
  unload(*library_);
}

TEST_F(FunctionsTest, ALaunchWithoutTheEventOfItsAttributeIsRefused) {
  Kernel* kernel = nullptr;
  ASSERT_EQ(find_kernel(*library_, *route_, "climb", &kernel), CUDA_SUCCESS);
  uint64_t first = 0;
  uint32_t second = 0;
  void* parameters[] = {&first, &second};
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT;
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const auto function = reinterpret_cast<CUfunction>(kernel);
  for (CUevent event : {CUevent{}, reinterpret_cast<CUevent>(&attribute)}) {
    attribute.value.programmaticEvent.event = event;
    EXPECT_EQ(cuLaunchKernelEx(&config, function, parameters, nullptr), CUDA_ERROR_INVALID_HANDLE);
  }
  unload(*library_);
}

TEST(LoadImage, AProgramOfTooManyPartsIsAnErrorAndNoLoss) {
  LoneSession lone;
  ImageParts image;
  image.parts.resize(2000);
  image.hashes.resize(2000);
  JitOptions none;
  EXPECT_EQ(load_image(*lone.session, 1, wire::Custom::kModuleLoad, 5, image, none, nullptr),
            CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(lone.ping(), CUDA_SUCCESS);
  EXPECT_TRUE(lone.puppet.taken(wire::Custom::kImageQuery).empty());
  EXPECT_TRUE(lone.puppet.taken(wire::Custom::kModuleLoad).empty());
}

}  // namespace
}  // namespace rcuda::client

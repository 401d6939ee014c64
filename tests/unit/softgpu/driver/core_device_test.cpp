#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/softgpu/driver/core_fixture.h"

namespace softgpu::driver {
namespace {

class DeviceTest : public CoreTest {};

TEST_F(DeviceTest, CountsAndNamesDevices) {
  int count = 0;
  CUDA_OK(cuDeviceGetCount(&count));
  EXPECT_EQ(count, 2);
  CUdevice device = 7;
  EXPECT_EQ(cuDeviceGet(&device, 1), CUDA_SUCCESS);
  EXPECT_EQ(device, 1);
  EXPECT_EQ(cuDeviceGet(&device, 2), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuDeviceGet(&device, -1), CUDA_ERROR_INVALID_DEVICE);
  char name[64] = {};
  EXPECT_EQ(cuDeviceGetName(name, sizeof name, 0), CUDA_SUCCESS);
  EXPECT_NE(std::string(name).find("H200"), std::string::npos);
  char cut[5] = {};
  EXPECT_EQ(cuDeviceGetName(cut, sizeof cut, 0), CUDA_SUCCESS);
  EXPECT_EQ(std::string(cut), std::string(name).substr(0, 4));
  size_t bytes = 0;
  EXPECT_EQ(cuDeviceTotalMem_v2(&bytes, 0), CUDA_SUCCESS);
  EXPECT_EQ(bytes, kDeviceBytes);
}

TEST_F(DeviceTest, AnswersEveryAttributeOfTheHeader) {
  for (int i = 1; i < CU_DEVICE_ATTRIBUTE_MAX; ++i) {
    int value = 0;
    EXPECT_EQ(cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(i), 0), CUDA_SUCCESS)
        << i;
  }
  int value = 0;
  EXPECT_EQ(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MAX, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceGetAttribute(nullptr, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 5),
            CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(value, 9);
  EXPECT_EQ(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(value, 132);
}

TEST_F(DeviceTest, IdentifiesDevicesDistinctly) {
  CUuuid first{}, second{};
  CUDA_OK(cuDeviceGetUuid_v2(&first, 0));
  CUDA_OK(cuDeviceGetUuid_v2(&second, 1));
  EXPECT_NE(std::memcmp(&first, &second, sizeof first), 0);
  for (CUdevice device = 0; device < 2; ++device) {
    char text[20] = {};
    CUDA_OK(cuDeviceGetPCIBusId(text, sizeof text, device));
    CUdevice found = -1;
    EXPECT_EQ(cuDeviceGetByPCIBusId(&found, text), CUDA_SUCCESS) << text;
    EXPECT_EQ(found, device);
  }
  CUdevice found = -1;
  EXPECT_EQ(cuDeviceGetByPCIBusId(&found, "0000:ff:1f.0"), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuDeviceGetByPCIBusId(&found, "nonsense"), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(DeviceTest, ReportsPeers) {
  int can = -1;
  EXPECT_EQ(cuDeviceCanAccessPeer(&can, 0, 1), CUDA_SUCCESS);
  EXPECT_EQ(can, 1);
  EXPECT_EQ(cuDeviceCanAccessPeer(&can, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(can, 0);
  EXPECT_EQ(cuDeviceCanAccessPeer(&can, 0, 2), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuDeviceGetP2PAttribute(&can, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1),
            CUDA_SUCCESS);
  EXPECT_EQ(can, 1);
  EXPECT_EQ(cuDeviceGetP2PAttribute(&can, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 1, 1),
            CUDA_ERROR_INVALID_DEVICE);
}

TEST_F(DeviceTest, OlderQueriesAgreeWithAttributes) {
  const auto attribute = [](CUdevice_attribute which) {
    int value = -1;
    EXPECT_EQ(cuDeviceGetAttribute(&value, which, 0), CUDA_SUCCESS);
    return value;
  };
  int major = 0, minor = -1;
  CUDA_OK(cuDeviceComputeCapability(&major, &minor, 0));
  EXPECT_EQ(major, attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
  EXPECT_EQ(minor, attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  CUdevprop properties{};
  CUDA_OK(cuDeviceGetProperties(&properties, 0));
  EXPECT_EQ(properties.maxThreadsPerBlock, attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
  EXPECT_EQ(properties.maxGridSize[2], attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z));
  EXPECT_EQ(properties.SIMDWidth, 32);
  EXPECT_EQ(properties.regsPerBlock, attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK));
  EXPECT_EQ(cuDeviceGetProperties(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  CUuuid old{}, current{};
  CUDA_OK(cuDeviceGetUuid(&old, 0));
  CUDA_OK(cuDeviceGetUuid_v2(&current, 0));
  EXPECT_EQ(std::memcmp(&old, &current, sizeof old), 0);
  char luid[8];
  unsigned mask = 0;
  EXPECT_EQ(cuDeviceGetLuid(luid, &mask, 0), CUDA_ERROR_NOT_SUPPORTED);  // exists on Windows only
  size_t elements = 0;
  CUDA_OK(cuDeviceGetTexture1DLinearMaxWidth(&elements, CU_AD_FORMAT_FLOAT, 1, 0));
  EXPECT_EQ(elements, size_t{1} << 30);
  CUDA_OK(cuDeviceGetTexture1DLinearMaxWidth(&elements, CU_AD_FORMAT_HALF, 4, 0));
  EXPECT_EQ(elements, size_t{1} << 29);
  EXPECT_EQ(cuDeviceGetTexture1DLinearMaxWidth(&elements, CU_AD_FORMAT_HALF, 3, 0),
            CUDA_ERROR_INVALID_VALUE);
  int supported = -1;
  CUDA_OK(cuDeviceGetExecAffinitySupport(&supported, CU_EXEC_AFFINITY_TYPE_SM_COUNT, 0));
  EXPECT_EQ(supported, 0);
  EXPECT_EQ(cuDeviceGetExecAffinitySupport(&supported, CU_EXEC_AFFINITY_TYPE_SM_COUNT, 99),
            CUDA_ERROR_INVALID_DEVICE);
}

TEST_F(DeviceTest, AtomicsOverLinks) {
  CUatomicOperation operations[] = {CU_ATOMIC_OPERATION_INTEGER_ADD, CU_ATOMIC_OPERATION_CAS};
  unsigned capabilities[2] = {9, 9};
  CUDA_OK(cuDeviceGetHostAtomicCapabilities(capabilities, operations, 2, 0));
  EXPECT_EQ(capabilities[0], 0u);
  EXPECT_EQ(capabilities[1], 0u);
  EXPECT_EQ(cuDeviceGetHostAtomicCapabilities(capabilities, operations, 0, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceGetHostAtomicCapabilities(nullptr, operations, 2, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceGetHostAtomicCapabilities(capabilities, operations, 2, 99),
            CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuDeviceGetP2PAtomicCapabilities(capabilities, operations, 2, 0, 0),
            CUDA_ERROR_INVALID_DEVICE);
  CUDA_OK(cuDeviceGetP2PAtomicCapabilities(capabilities, operations, 2, 0, 1));
  EXPECT_NE(capabilities[0] & CU_ATOMIC_CAPABILITY_SCALAR_32, 0u);
  operations[0] = CU_ATOMIC_OPERATION_MAX;
  EXPECT_EQ(cuDeviceGetHostAtomicCapabilities(capabilities, operations, 2, 0),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(DeviceTest, NamesErrors) {
  const char* text = nullptr;
  EXPECT_EQ(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_EQ(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "out of memory");
  EXPECT_EQ(cuGetErrorName(static_cast<CUresult>(12345), &text), CUDA_ERROR_INVALID_VALUE);
}

// A forked child has no driver threads: every call returns an error instead of hanging.
TEST_F(DeviceTest, IsNotInitializedInAForkedChild) {
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUDA_OK(cuGraphCreate(&graph, 0));
  CUDA_OK(cuGraphAddEmptyNode(&node, graph, nullptr, 0));
  const pid_t child = ::fork();
  if (child == 0) {
    CUdeviceptr address = 0;
    CUuserObject object = nullptr;
    size_t count = 0;
    CUgraphNodeType type{};
    const CUresult results[] = {
        cuMemAlloc_v2(&address, 4096),
        cuInit(0),
        cuGraphGetNodes(graph, nullptr, &count),
        cuGraphGetRootNodes(graph, nullptr, &count),
        cuGraphGetEdges_v2(graph, nullptr, nullptr, nullptr, &count),
        cuGraphNodeGetType(node, &type),
        cuGraphNodeGetDependencies_v2(node, nullptr, nullptr, &count),
        cuGraphNodeFindInClone(&node, node, graph),
        cuGraphAddDependencies_v2(graph, nullptr, nullptr, nullptr, 0),
        cuGraphDebugDotPrint(graph, "/dev/null", 0),
        cuGraphDestroyNode(node),
        cuUserObjectCreate(
            &object, nullptr, [](void*) {}, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
        cuUserObjectRetain(object, 1),
        cuUserObjectRelease(object, 1),
        cuGraphRetainUserObject(graph, object, 1, 0),
        cuGraphReleaseUserObject(graph, object, 1),
    };
    const bool right = std::all_of(std::begin(results), std::end(results), [](CUresult result) {
      return result == CUDA_ERROR_NOT_INITIALIZED;
    });
    ::_exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  CUDA_OK(cuGraphDestroy(graph));
}

}  // namespace
}  // namespace softgpu::driver

// Features that a GPU's driver may lack: the attributes report whether it has them, and it refuses
// the calls of a missing feature. It refuses invalid arguments in either case.
#include <cstdio>
#include <initializer_list>

#include <cuda.h>

#include "driver_checks.h"

namespace {

int attribute(CUdevice_attribute which) {
  int value = -1;
  CU(cuDeviceGetAttribute(&value, which, 0));
  return value;
}

void on_notification(CUasyncNotificationInfo*, void*, CUasyncCallbackHandle) {
  std::printf("a notification\n");
}

void notifications() {
  CUasyncCallbackHandle first = nullptr, second = nullptr;
  CU(cuDeviceRegisterAsyncNotification(0, on_notification, nullptr, &first));
  CU(cuDeviceRegisterAsyncNotification(0, on_notification, nullptr, &second));
  CHECK(first != nullptr && second != nullptr && first != second);
  CU(cuDeviceUnregisterAsyncNotification(0, first));
  EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceUnregisterAsyncNotification(99, second));
  CU(cuDeviceUnregisterAsyncNotification(0, second));
  EXPECT(CUDA_ERROR_INVALID_DEVICE,
         cuDeviceRegisterAsyncNotification(99, on_notification, nullptr, &first));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceRegisterAsyncNotification(0, nullptr, nullptr, &first));
  std::printf("notifications: registered and unregistered\n");
}

void external_memory() {
  CUexternalMemory memory = nullptr;
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc{};
  desc.size = 1 << 20;
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuImportExternalMemory(&memory, nullptr));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuImportExternalMemory(nullptr, &desc));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuImportExternalMemory(&memory, &desc));  // without a type
  desc.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  desc.handle.fd = -1;
  CHECK(cuImportExternalMemory(&memory, &desc) != CUDA_SUCCESS);
  desc.size = 0;
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuImportExternalMemory(&memory, &desc));
  desc.size = 1 << 20;
  desc.flags = 0x80;
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuImportExternalMemory(&memory, &desc));
  desc.flags = 0;
  desc.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32;
  EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuImportExternalMemory(&memory, &desc));
  CUdeviceptr address;
  CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer{};
  buffer.size = 4096;
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuExternalMemoryGetMappedBuffer(&address, nullptr, &buffer));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuDestroyExternalMemory(nullptr));
  std::printf("external memory: refused\n");
}

void external_semaphores() {
  CUexternalSemaphore semaphore = nullptr;
  CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC desc{};
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuImportExternalSemaphore(&semaphore, nullptr));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuImportExternalSemaphore(nullptr, &desc));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuImportExternalSemaphore(&semaphore, &desc));
  desc.type = CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD;
  desc.handle.fd = -1;
  CHECK(cuImportExternalSemaphore(&semaphore, &desc) != CUDA_SUCCESS);
  desc.type = CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_WIN32;
  EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuImportExternalSemaphore(&semaphore, &desc));
  CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS signal{};
  CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS wait{};
  EXPECT(CUDA_ERROR_INVALID_VALUE,
         cuSignalExternalSemaphoresAsync(&semaphore, &signal, 0, nullptr));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuSignalExternalSemaphoresAsync(nullptr, &signal, 1, nullptr));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuWaitExternalSemaphoresAsync(&semaphore, &wait, 0, nullptr));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuDestroyExternalSemaphore(nullptr));
  std::printf("external semaphores: refused\n");
}

void graphics() {
  CUgraphicsResource none = nullptr;
  CUdeviceptr address;
  size_t bytes;
  CUarray array;
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphicsMapResources(0, &none, nullptr));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphicsMapResources(1, nullptr, nullptr));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuGraphicsMapResources(1, &none, nullptr));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuGraphicsUnmapResources(1, &none, nullptr));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuGraphicsResourceGetMappedPointer(&address, &bytes, none));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuGraphicsSubResourceGetMappedArray(&array, none, 0, 0));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuGraphicsResourceSetMapFlags(none, 0));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuGraphicsUnregisterResource(none));
  std::printf("graphics: no resource\n");
}

// Works if and only if the attribute reports it.
void multicast() {
  CUmulticastObjectProp properties{};
  properties.numDevices = 1;
  properties.size = 2 << 20;
  properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  size_t bytes = 0;
  CUmemGenericAllocationHandle handle = 0;
  const bool is_there = attribute(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED) != 0;
  const CUresult result =
      cuMulticastGetGranularity(&bytes, &properties, CU_MULTICAST_GRANULARITY_MINIMUM);
  if (!is_there) {
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuMulticastCreate(&handle, nullptr));
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuMulticastAddDevice(0, 0));
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuMulticastUnbind(0, 99, 0, 2 << 20));
  }
  CHECK(is_there ? result == CUDA_SUCCESS : result == CUDA_ERROR_NOT_SUPPORTED);
  if (!is_there) EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuMulticastCreate(&handle, &properties));
  std::printf("multicast: as the attribute says\n");
}

void decompression() {
  CUdeviceptr memory;
  CU(cuMemAlloc(&memory, 8192));
  cuuint32_t actual = 0;
  CUmemDecompressParams operation{};
  operation.srcNumBytes = operation.dstNumBytes = 64;
  operation.dstActBytes = &actual;
  operation.src = reinterpret_cast<void*>(memory);
  operation.dst = reinterpret_cast<void*>(memory + 4096);
  operation.algo = CU_MEM_DECOMPRESS_ALGORITHM_DEFLATE;
  size_t index = 0;
  if (attribute(CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK) == 0) {
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_MAXIMUM_LENGTH) == 0);
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuMemBatchDecompressAsync(&operation, 1, 0, &index, nullptr));
  }
  CU(cuMemFree(memory));
  std::printf("decompression: as the attribute says\n");
}

// Ordinary code has no unified functions.
void unified_functions() {
  static const char kCode[] = R"(
.version 6.3
.target sm_75
.address_size 64
.visible .func (.param .b32 result) same (.param .b32 value) {
  .reg .b32 %value;
  ld.param.b32 %value, [value];
  st.param.b32 [result], %value;
  ret;
}
.visible .entry empty() { ret; }
)";
  CUlibrary library;
  CU(cuLibraryLoadData(&library, kCode, nullptr, nullptr, 0, nullptr, nullptr, 0));
  void* function = nullptr;
  for (const char* name : {"same", "empty", "missing"}) {
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLibraryGetUnifiedFunction(&function, library, name));
  }
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuLibraryGetUnifiedFunction(&function, nullptr, "same"));
  CU(cuLibraryUnload(library));
  std::printf("unified functions: none\n");
}

}  // namespace

int main() {
  CUcontext context;
  CUexternalMemory memory;
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc{};
  EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuImportExternalMemory(&memory, &desc));
  CU(cuInit(0));
  notifications();
  CU(cuDevicePrimaryCtxRetain(&context, 0));
  CU(cuCtxSetCurrent(context));
  external_memory();
  external_semaphores();
  graphics();
  multicast();
  decompression();
  unified_functions();
  CU(cuDevicePrimaryCtxRelease(0));
  return 0;
}

// Memory of one process that another process maps by file descriptor.
//
//   shared_descriptors [DEVICE [refused]]
//
// The other process uses DEVICE (by default 0). It can map the memory there; with `refused` it must
// get an error.
#include <cstring>

#include <cuda.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

#define CU(call) CHECK((call) == CUDA_SUCCESS)

constexpr int kCount = 5000;

__global__ void transform(int* values, int factor) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) values[i] = values[i] * factor + 1;
}

void send_descriptor(int socket, int descriptor) {
  char byte = 0;
  iovec part = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  CHECK(sendmsg(socket, &message, 0) == 1);
}

int receive_descriptor(int socket) {
  char byte;
  iovec part = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  CHECK(recvmsg(socket, &message, 0) == 1);
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
  return descriptor;
}

int device = 0;  // of this process

CUmemAllocationProp properties() {
  CUmemAllocationProp all = {};
  all.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  all.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  all.location.id = device;
  all.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return all;
}

// Maps an allocation. The mapping stays when the handle is released.
int* map(CUmemGenericAllocationHandle handle, size_t bytes) {
  CUdeviceptr address = 0;
  CU(cuMemAddressReserve(&address, bytes, 0, 0, 0));
  CU(cuMemMap(address, bytes, 0, handle, 0));
  CUmemAccessDesc access = {};
  access.location = properties().location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CU(cuMemSetAccess(address, bytes, &access, 1));
  return reinterpret_cast<int*>(address);
}

void unmap(int* mapped, size_t bytes) {
  const auto address = reinterpret_cast<CUdeviceptr>(mapped);
  CU(cuMemUnmap(address, bytes));
  CU(cuMemAddressFree(address, bytes));
}

size_t granularity() {
  size_t bytes = 0;
  const CUmemAllocationProp all = properties();
  CU(cuMemGetAllocationGranularity(&bytes, &all, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  return bytes;
}

// A pool of the other process, and memory of it.
void use_pool(int socket) {
  const int descriptor = receive_descriptor(socket);
  cudaMemPoolPtrExportData data;
  CHECK(read(socket, &data, sizeof data) == static_cast<ssize_t>(sizeof data));
  cudaMemPool_t pool;
  CUDA(cudaMemPoolImportFromShareableHandle(&pool, reinterpret_cast<void*>(intptr_t{descriptor}),
                                            cudaMemHandleTypePosixFileDescriptor, 0));
  close(descriptor);
  int* values;
  CUDA(cudaMemPoolImportPointer(reinterpret_cast<void**>(&values), pool, &data));
  transform<<<(kCount + 255) / 256, 256>>>(values, 5);
  FINISH();
  std::vector<int> result(kCount);
  CUDA(cudaMemcpy(result.data(), values, kCount * sizeof(int), cudaMemcpyDeviceToHost));
  for (int i = 0; i < kCount; ++i) CHECK(result[i] == 5 * i + 1);
  CUDA(cudaFree(values));
  CUDA(cudaMemPoolDestroy(pool));
}

void share_pool(int socket, const std::vector<int>& start) {
  cudaMemPoolProps wanted = {};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.handleTypes = cudaMemHandleTypePosixFileDescriptor;
  wanted.location.type = cudaMemLocationTypeDevice;
  wanted.location.id = device;
  cudaMemPool_t pool;
  CUDA(cudaMemPoolCreate(&pool, &wanted));
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  int* values;
  CUDA(cudaMallocFromPoolAsync(&values, kCount * sizeof(int), pool, stream));
  CUDA(cudaMemcpyAsync(values, start.data(), kCount * sizeof(int), cudaMemcpyHostToDevice, stream));
  CUDA(cudaStreamSynchronize(stream));
  int descriptor = -1;
  cudaMemPoolPtrExportData data;
  CUDA(cudaMemPoolExportToShareableHandle(&descriptor, pool, cudaMemHandleTypePosixFileDescriptor,
                                          0));
  CUDA(cudaMemPoolExportPointer(&data, values));
  send_descriptor(socket, descriptor);
  CHECK(write(socket, &data, sizeof data) == static_cast<ssize_t>(sizeof data));
  close(descriptor);
  char done = 0;
  CHECK(read(socket, &done, 1) == 1);
  std::vector<int> result(kCount);
  CUDA(cudaMemcpy(result.data(), values, kCount * sizeof(int), cudaMemcpyDeviceToHost));
  for (int i = 0; i < kCount; ++i) CHECK(result[i] == 5 * i + 1);
  print_digest("pool", result);
  CUDA(cudaFreeAsync(values, stream));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaMemPoolDestroy(pool));
}

int child(int socket, bool refused) {
  CUDA(cudaSetDevice(device));
  CUDA(cudaFree(nullptr));
  const size_t bytes = granularity();
  const int descriptor = receive_descriptor(socket);
  const char done = 1;
  CUmemGenericAllocationHandle handle, again;
  if (refused) {
    CHECK(cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(intptr_t{descriptor}),
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != CUDA_SUCCESS);
    CUDA(cudaDeviceSynchronize());
    std::printf("refused\n");
    CHECK(write(socket, &done, 1) == 1);
    return 0;
  }
  CU(cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(intptr_t{descriptor}),
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  CU(cuMemImportFromShareableHandle(&again, reinterpret_cast<void*>(intptr_t{descriptor}),
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(descriptor);
  int* values = map(handle, bytes);
  int* others = map(again, bytes);
  transform<<<(kCount + 255) / 256, 256>>>(values, 3);
  transform<<<(kCount + 255) / 256, 256>>>(others, 2);
  FINISH();
  unmap(others, bytes);
  unmap(values, bytes);
  CU(cuMemRelease(handle));
  CU(cuMemRelease(again));
  // A descriptor that is not an allocation's.
  CUmemGenericAllocationHandle none;
  CHECK(cuMemImportFromShareableHandle(&none, reinterpret_cast<void*>(intptr_t{socket}),
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != CUDA_SUCCESS);
  CHECK(write(socket, &done, 1) == 1);
  use_pool(socket);
  CHECK(write(socket, &done, 1) == 1);
  return 0;
}

int main(int count, char** arguments) {
  const bool refused = count > 2;
  // The child must be forked before CUDA is used.
  int sockets[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    if (count > 1) device = std::atoi(arguments[1]);
    const int code = child(sockets[1], refused);
    std::fflush(stdout);
    return code;
  }
  close(sockets[1]);
  CUDA(cudaFree(nullptr));
  const size_t bytes = granularity();
  const CUmemAllocationProp all = properties();
  CUmemGenericAllocationHandle handle;
  CU(cuMemCreate(&handle, bytes, &all, 0));
  int* values = map(handle, bytes);
  std::vector<int> start(kCount), result(kCount);
  for (int i = 0; i < kCount; ++i) start[i] = i;
  CUDA(cudaMemcpy(values, start.data(), kCount * sizeof(int), cudaMemcpyHostToDevice));
  CUDA(cudaDeviceSynchronize());
  int descriptor = -1;
  CU(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                  0));
  send_descriptor(sockets[0], descriptor);
  close(descriptor);
  char done = 0;
  CHECK(read(sockets[0], &done, 1) == 1);
  if (!refused) share_pool(sockets[0], start);
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CUDA(cudaMemcpy(result.data(), values, kCount * sizeof(int), cudaMemcpyDeviceToHost));
  for (int i = 0; i < kCount; ++i) CHECK(result[i] == (refused ? i : (3 * i + 1) * 2 + 1));
  print_digest("values", result);
  unmap(values, bytes);
  CU(cuMemRelease(handle));
}

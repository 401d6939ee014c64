#include <cstring>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/unique_fd.h"
#include "tests/unit/softgpu/driver/core_fixture.h"
#include "tests/unit/softgpu/driver/core_ipc_peer.h"

namespace softgpu::driver {

// The peer cannot use assertions, so it reports through its exit status.
#define PEER_CHECK(condition) \
  if (!(condition)) return __LINE__ % 250 + 1

namespace {

bool send_message(int socket, const PeerMessage& message, int file) {
  iovec part{const_cast<PeerMessage*>(&message), sizeof message};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof file)] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (file >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr* attached = CMSG_FIRSTHDR(&header);
    attached->cmsg_level = SOL_SOCKET;
    attached->cmsg_type = SCM_RIGHTS;
    attached->cmsg_len = CMSG_LEN(sizeof file);
    std::memcpy(CMSG_DATA(attached), &file, sizeof file);
  }
  return ::sendmsg(socket, &header, 0) == static_cast<ssize_t>(sizeof message);
}

bool receive_message(int socket, PeerMessage* message, int* file) {
  iovec part{message, sizeof *message};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof *file)] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  if (::recvmsg(socket, &header, 0) != static_cast<ssize_t>(sizeof *message)) return false;
  if (cmsghdr* attached = CMSG_FIRSTHDR(&header)) {
    std::memcpy(file, CMSG_DATA(attached), sizeof *file);
  }
  return true;
}

bool all_equal(CUdeviceptr address, uint8_t value) {
  std::vector<uint8_t> data(kPeerBytes);
  if (cuMemcpyDtoH_v2(data.data(), address, data.size()) != CUDA_SUCCESS) return false;
  return data == std::vector<uint8_t>(kPeerBytes, value);
}

int peer_memory(const PeerMessage& message) {
  CUdeviceptr address = 0, again = 0;
  PEER_CHECK(cuIpcOpenMemHandle_v2(&address, message.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) ==
             CUDA_SUCCESS);
  PEER_CHECK(cuIpcOpenMemHandle_v2(&again, message.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) ==
             CUDA_SUCCESS);
  PEER_CHECK(again == address);
  PEER_CHECK(all_equal(address, 0x11));
  size_t bytes = 0;
  PEER_CHECK(cuMemGetAddressRange_v2(nullptr, &bytes, address) == CUDA_SUCCESS);
  PEER_CHECK(bytes == kPeerBytes);
  PEER_CHECK(cuMemsetD8_v2(address, 0x22, kPeerBytes) == CUDA_SUCCESS);
  PEER_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  PEER_CHECK(cuMemFree_v2(address) == CUDA_ERROR_INVALID_VALUE);
  PEER_CHECK(cuIpcCloseMemHandle(address) == CUDA_SUCCESS);
  PEER_CHECK(all_equal(address, 0x22));
  PEER_CHECK(cuIpcCloseMemHandle(address) == CUDA_SUCCESS);
  PEER_CHECK(cuIpcCloseMemHandle(address) == CUDA_ERROR_INVALID_VALUE);
  return 0;
}

// Handles that a context has open are closed with it. Other memory may then get the same address.
int peer_contexts(const PeerMessage& message) {
  CUcontext first = nullptr, second = nullptr;
  CUdeviceptr address = 0, other = 0;
  PEER_CHECK(cuCtxCreate_v2(&first, 0, 0) == CUDA_SUCCESS);
  PEER_CHECK(cuIpcOpenMemHandle_v2(&address, message.memory, 1) == CUDA_SUCCESS);
  PEER_CHECK(cuCtxDestroy_v2(first) == CUDA_SUCCESS);
  PEER_CHECK(cuCtxCreate_v2(&second, 0, 0) == CUDA_SUCCESS);
  PEER_CHECK(cuIpcOpenMemHandle_v2(&other, message.other_memory, 1) == CUDA_SUCCESS);
  PEER_CHECK(cuIpcOpenMemHandle_v2(&address, message.memory, 1) == CUDA_SUCCESS);
  PEER_CHECK(all_equal(address, 0x11));
  PEER_CHECK(all_equal(other, 0x22));
  PEER_CHECK(cuCtxDestroy_v2(second) == CUDA_SUCCESS);
  return 0;
}

int peer_refused(const PeerMessage& message) {
  CUdeviceptr address = 0;
  CUevent event = nullptr;
  PEER_CHECK(cuIpcOpenMemHandle_v2(&address, message.memory, 1) == CUDA_ERROR_MAP_FAILED);
  PEER_CHECK(cuIpcOpenEventHandle(&event, message.event) == CUDA_ERROR_MAP_FAILED);
  return 0;
}

int peer_event(const PeerMessage& message) {
  CUevent event = nullptr;
  PEER_CHECK(cuIpcOpenEventHandle(&event, message.event) == CUDA_SUCCESS);
  PEER_CHECK(cuEventSynchronize(event) == CUDA_SUCCESS);
  PEER_CHECK(cuEventDestroy_v2(event) == CUDA_SUCCESS);
  return 0;
}

int peer_physical(int file) {
  constexpr size_t kPage = size_t{2} << 20;
  CUmemGenericAllocationHandle handle = 0;
  PEER_CHECK(cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(intptr_t{file}),
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
             CUDA_SUCCESS);
  CUdeviceptr base = 0;
  PEER_CHECK(cuMemAddressReserve(&base, kPage, 0, 0, 0) == CUDA_SUCCESS);
  PEER_CHECK(cuMemMap(base, kPage, 0, handle, 0) == CUDA_SUCCESS);
  CUmemAccessDesc desc{};
  desc.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  PEER_CHECK(cuMemSetAccess(base, kPage, &desc, 1) == CUDA_SUCCESS);
  PEER_CHECK(all_equal(base, 0x11));
  PEER_CHECK(cuMemsetD8_v2(base, 0x22, kPeerBytes) == CUDA_SUCCESS);
  PEER_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  return 0;
}

int peer_pool(const PeerMessage& message, int file) {
  CUmemoryPool pool = nullptr;
  PEER_CHECK(cuMemPoolImportFromShareableHandle(&pool, reinterpret_cast<void*>(intptr_t{file}),
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                                0) == CUDA_SUCCESS);
  CUmemPoolPtrExportData pointer = message.pointer;
  CUdeviceptr address = 0;
  PEER_CHECK(cuMemPoolImportPointer(&address, pool, &pointer) == CUDA_SUCCESS);
  PEER_CHECK(all_equal(address, 0x11));
  PEER_CHECK(cuMemsetD8_v2(address, 0x22, kPeerBytes) == CUDA_SUCCESS);
  PEER_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  return 0;
}

}  // namespace

int run_ipc_peer(const char* command) {
  PeerMessage message;
  int file = -1;
  PEER_CHECK(receive_message(kPeerSocket, &message, &file));
  CUcontext context = nullptr;
  PEER_CHECK(cuInit(0) == CUDA_SUCCESS);
  PEER_CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  PEER_CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  const std::string name = command;
  if (name == "memory") return peer_memory(message);
  if (name == "contexts") return peer_contexts(message);
  if (name == "refused") return peer_refused(message);
  if (name == "event") return peer_event(message);
  if (name == "physical") return peer_physical(file);
  if (name == "pool") return peer_pool(message, file);
  return 255;
}

namespace {

class IpcTest : public CoreTest {
 protected:
  // Starts the peer, sends it the message and returns its exit status.
  static int run_peer(const char* command, const PeerMessage& message, int file = -1) {
    int sockets[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) return -1;
    rcuda::UniqueFd ours(sockets[0]), theirs(sockets[1]);
    const pid_t child = ::fork();
    if (child == 0) {
      if (theirs.get() == kPeerSocket) {
        ::fcntl(kPeerSocket, F_SETFD, 0);
      } else {
        ::dup2(theirs.get(), kPeerSocket);
      }
      ::execl("/proc/self/exe", "driver_test", "--ipc-peer", command, nullptr);
      ::_exit(254);
    }
    EXPECT_TRUE(send_message(ours.get(), message, file));
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -status;
  }
};

TEST_F(IpcTest, MemoryHandlesOpenInAnotherProcess) {
  allocate(700);  // so that the exported block does not begin at a page
  const CUdeviceptr address = allocate(kPeerBytes);
  CUDA_OK(cuMemsetD8_v2(address, 0x11, kPeerBytes));
  CUDA_OK(cuCtxSynchronize());
  PeerMessage message;
  CUDA_OK(cuIpcGetMemHandle(&message.memory, address + 5));  // of the allocation that contains it
  EXPECT_EQ(run_peer("memory", message), 0);
  EXPECT_TRUE(all_equal(address, 0x22));
  CUdeviceptr opened = 0;
  EXPECT_EQ(cuIpcOpenMemHandle_v2(&opened, message.memory, 1), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(IpcTest, HandlesOpenAgainAfterTheContextThatHadThemOpen) {
  PeerMessage message;
  CUipcMemHandle* const handles[] = {&message.memory, &message.other_memory};
  for (int i = 0; i < 2; ++i) {
    const CUdeviceptr address = allocate(4 << 20);  // so large that it begins at a page
    CUDA_OK(cuMemsetD8_v2(address, static_cast<uint8_t>(0x11 * (i + 1)), kPeerBytes));
    CUDA_OK(cuIpcGetMemHandle(handles[i], address));
  }
  CUDA_OK(cuCtxSynchronize());
  EXPECT_EQ(run_peer("contexts", message), 0);
}

TEST_F(IpcTest, RefusesHandlesThatMeanNothing) {
  CUipcMemHandle handle{};
  CUdeviceptr address = 0;
  EXPECT_EQ(cuIpcOpenMemHandle_v2(&address, handle, 1), CUDA_ERROR_INVALID_VALUE);
  void* host = nullptr;
  CUDA_OK(cuMemHostAlloc(&host, 4096, 0));
  EXPECT_EQ(cuIpcGetMemHandle(&handle, reinterpret_cast<CUdeviceptr>(host)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuIpcCloseMemHandle(allocate(16)), CUDA_ERROR_INVALID_VALUE);
}

// An exported allocation and an exported event.
class ExportedTest : public IpcTest {
 protected:
  void SetUp() override {
    IpcTest::SetUp();
    address_ = allocate(kPeerBytes);
    CUDA_OK(cuMemsetD8_v2(address_, 0x11, kPeerBytes));
    CUDA_OK(cuEventCreate(&event_, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    CUDA_OK(cuEventRecord(event_, nullptr));
    CUDA_OK(cuCtxSynchronize());
    CUDA_OK(cuIpcGetMemHandle(&message_.memory, address_));
    CUDA_OK(cuIpcGetEventHandle(&message_.event, event_));
  }
  void TearDown() override {
    if (event_ != nullptr) {
      CUDA_OK(cuEventDestroy_v2(event_));
    }
    IpcTest::TearDown();
  }
  CUdeviceptr address_ = 0;
  CUevent event_ = nullptr;
  PeerMessage message_;
};

TEST_F(ExportedTest, TheSameObjectHasTheSameHandle) {
  PeerMessage again;
  CUDA_OK(cuIpcGetMemHandle(&again.memory, address_ + 1));
  CUDA_OK(cuIpcGetEventHandle(&again.event, event_));
  EXPECT_EQ(std::memcmp(&again.memory, &message_.memory, sizeof again.memory), 0);
  EXPECT_EQ(std::memcmp(&again.event, &message_.event, sizeof again.event), 0);
}

// A handle holds the numbers of the process and of the export; with any wrong bit it is unknown.
TEST_F(ExportedTest, AnAlteredHandleOpensNothing) {
  for (const size_t byte : {16, 31, 32, 47}) {
    PeerMessage altered = message_;
    altered.memory.reserved[byte] ^= 1;
    altered.event.reserved[byte] ^= 1;
    EXPECT_EQ(run_peer("refused", altered), 0) << byte;
  }
  PeerMessage exchanged;
  std::memcpy(&exchanged.memory, &message_.memory, sizeof exchanged.memory);
  std::memcpy(exchanged.memory.reserved + 32, message_.event.reserved + 32, 16);
  exchanged.event = message_.event;
  std::memcpy(exchanged.event.reserved + 32, message_.memory.reserved + 32, 16);
  EXPECT_EQ(run_peer("refused", exchanged), 0) << "the key of another kind of export";
}

// A handle of an older form, which named a process and one of its descriptors.
TEST_F(ExportedTest, AProcessAndADescriptorAreNoHandle) {
  const int file = static_cast<int>(::memfd_create("target", 0));
  struct {
    uint32_t magic = 0x31637069;
    int32_t process = ::getpid();
    int32_t file = 0;
    uint32_t reserved = 0;
    uint64_t words[4] = {0, 0, 4096, 0};
  } chosen;
  chosen.file = file;
  CUipcMemHandle handle{};
  std::memcpy(&handle, &chosen, sizeof chosen);
  CUdeviceptr address = 0;
  EXPECT_EQ(cuIpcOpenMemHandle_v2(&address, handle, 1), CUDA_ERROR_INVALID_VALUE);
  ::close(file);
}

TEST_F(ExportedTest, AnExportEndsWithItsObject) {
  CUDA_OK(cuMemFree_v2(address_));
  CUDA_OK(cuEventDestroy_v2(event_));
  event_ = nullptr;
  EXPECT_EQ(run_peer("refused", message_), 0);
}

// A server's workers are not dumpable: only root may open their files under /proc.
TEST_F(ExportedTest, AProcessThatIsNotDumpableExports) {
  ASSERT_EQ(::prctl(PR_SET_DUMPABLE, 0), 0);
  EXPECT_EQ(run_peer("memory", message_), 0);
  EXPECT_EQ(run_peer("event", message_), 0);
  ASSERT_EQ(::prctl(PR_SET_DUMPABLE, 1), 0);
}

TEST_F(IpcTest, PhysicalMemoryIsSharedByDescriptor) {
  constexpr size_t kPage = size_t{2} << 20;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  CUDA_OK(cuMemCreate(&handle, kPage, &prop, 0));
  CUdeviceptr base = 0;
  CUDA_OK(cuMemAddressReserve(&base, kPage, 0, 0, 0));
  CUDA_OK(cuMemMap(base, kPage, 0, handle, 0));
  CUmemAccessDesc desc{};
  desc.location = prop.location;
  desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUDA_OK(cuMemSetAccess(base, kPage, &desc, 1));
  CUDA_OK(cuMemsetD8_v2(base, 0x11, kPeerBytes));
  CUDA_OK(cuCtxSynchronize());
  int file = -1;
  CUDA_OK(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  EXPECT_EQ(run_peer("physical", {}, file), 0);
  EXPECT_TRUE(all_equal(base, 0x22));
  ::close(file);
  CUDA_OK(cuMemUnmap(base, kPage));
  CUDA_OK(cuMemRelease(handle));
  CUDA_OK(cuMemAddressFree(base, kPage));
}

TEST_F(IpcTest, PoolsAreSharedByDescriptor) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemoryPool pool = nullptr;
  CUDA_OK(cuMemPoolCreate(&pool, &props));
  CUdeviceptr address = 0;
  CUDA_OK(cuMemAllocFromPoolAsync(&address, kPeerBytes, pool, nullptr));
  CUDA_OK(cuMemsetD8_v2(address, 0x11, kPeerBytes));
  CUDA_OK(cuCtxSynchronize());
  PeerMessage message;
  int file = -1;
  CUDA_OK(
      cuMemPoolExportToShareableHandle(&file, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CUDA_OK(cuMemPoolExportPointer(&message.pointer, address));
  EXPECT_EQ(run_peer("pool", message, file), 0);
  EXPECT_TRUE(all_equal(address, 0x22));
  ::close(file);
  CUDA_OK(cuMemFree_v2(address));
  CUDA_OK(cuMemPoolDestroy(pool));
}

}  // namespace
}  // namespace softgpu::driver

// The memory of CudaDeviceOps: staging memory, and memory that peers and adapters access.
#include <algorithm>
#include <bit>
#include <string>

#include "common/base/populate.h"
#include "common/base/units.h"
#include "common/cuda/status_of.h"
#include "server/executor/host_memory/dma_buf.h"
#include "server/executor/host_memory/gpu_direct.h"
#include "server/executor/peers/cuda_device_ops.h"

namespace rcuda::server {
namespace {

using p2p::DeviceAddress;

// The most IPC handles that are kept. When this number is reached, all are dropped, because many
// may belong to freed memory.
constexpr size_t kMostExports = 4096;

}  // namespace

Status CudaDeviceOps::register_host(void* base, size_t bytes) {
  RCUDA_RETURN_IF_ERROR(make_current(0));
  populate_pages(static_cast<std::byte*>(base), bytes);
  const CUresult result = driver_.cuMemHostRegister_v2(base, bytes, CU_MEMHOSTREGISTER_PORTABLE);
  if (result == CUDA_SUCCESS) return {};
  return Status::from_cuda(result,
                           "cuMemHostRegister of " + exact_bytes_text(bytes) +
                               " of staging memory (raise the server's limit of locked memory, "
                               "ulimit -l)");
}

void CudaDeviceOps::unregister_host(void* base) {
  if (make_current(0).ok()) driver_.cuMemHostUnregister(base);
}

Result<DeviceAddress> CudaDeviceOps::allocate(int device, size_t bytes) {
  RCUDA_RETURN_IF_ERROR(make_current(device));
  CUdeviceptr address = 0;
  RCUDA_RETURN_IF_ERROR(
      status_of(driver_.cuMemAlloc_v2(&address, bytes), "cuMemAlloc of a staging buffer"));
  return static_cast<DeviceAddress>(address);
}

void CudaDeviceOps::free(int device, DeviceAddress address) {
  if (make_current(device).ok()) driver_.cuMemFree_v2(address);
}

Result<p2p::ExportedMemory> CudaDeviceOps::export_memory(int device, DeviceAddress address) {
  RCUDA_RETURN_IF_ERROR(make_current(device));
  if (!options_.names)
    return Status(Code::kUnsupported, "this worker cannot export memory to other workers");
  // The driver never uses a buffer id for another allocation, so a later allocation never finds an
  // old entry in exports_.
  unsigned long long id = 0;
  const bool has_id =
      driver_.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address) == CUDA_SUCCESS &&
      id != 0;
  auto known = has_id ? exports_.find(id) : exports_.end();
  if (known == exports_.end()) {
    Export made;
    size_t bytes = 0;
    CUipcMemHandle handle{};
    CUresult result = driver_.cuMemGetAddressRange_v2(&made.base, &bytes, address);
    if (result == CUDA_SUCCESS) result = driver_.cuIpcGetMemHandle(&handle, made.base);
    if (result != CUDA_SUCCESS) {
      // Memory of cuMemCreate and of pools has no such handle.
      return Status(Code::kUnsupported, "cuIpcGetMemHandle refused the memory (CUDA error " +
                                            std::to_string(result) + ")");
    }
    RCUDA_ASSIGN_OR_RETURN(
        made.name,
        options_.names->add(wire::ExportKind::kMemory, std::bit_cast<wire::HandleBytes>(handle), {},
                            ExportedNames::User::kPeers));
    if (exports_.size() >= kMostExports) exports_.clear();
    known = exports_.insert_or_assign(has_id ? id : 0, made).first;
  }
  p2p::ExportedMemory memory;
  const wire::HandleBytes named = wire::to_handle(known->second.name);
  static_assert(sizeof named <= p2p::ExportedMemory::kHandleBytes);
  std::copy(named.begin(), named.end(), memory.handle.begin());
  memory.offset = address - known->second.base;
  return memory;
}

Result<p2p::MappedMemory> CudaDeviceOps::open(int device, const p2p::ExportedMemory& memory) {
  RCUDA_RETURN_IF_ERROR(make_current(device));
  wire::HandleBytes named;
  std::copy_n(memory.handle.begin(), named.size(), named.begin());
  const auto name = wire::name_in(named, wire::ExportKind::kMemory);
  if (!options_.names || !name)
    return Status(Code::kNotFound, "the peer worker sent a malformed name of exported memory");
  RCUDA_ASSIGN_OR_RETURN(const wire::HandleBytes found,
                         options_.names->find_handle(*name, nullptr, ExportedNames::User::kPeers));
  const auto handle = std::bit_cast<CUipcMemHandle>(found);
  CUdeviceptr base = 0;
  RCUDA_RETURN_IF_ERROR(
      status_of(driver_.cuIpcOpenMemHandle_v2(&base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                "cuIpcOpenMemHandle"));
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  const CUresult result = driver_.cuMemGetAddressRange_v2(&begin, &bytes, base);
  if (result != CUDA_SUCCESS) {
    driver_.cuIpcCloseMemHandle(base);
    return Status::from_cuda(result, "cuMemGetAddressRange of a peer's memory");
  }
  return p2p::MappedMemory{base, begin + bytes - base};
}

void CudaDeviceOps::close(int device, DeviceAddress base) {
  if (make_current(device).ok()) driver_.cuIpcCloseMemHandle(base);
}

bool CudaDeviceOps::prove_gpudirect(int device, transport::Link& link) {
  const Device& own = options_.devices[static_cast<size_t>(device)];
  if (!own.gpudirect || !make_current(device).ok()) return false;
  Proof& proof = proofs_[static_cast<size_t>(device)];
  if (proof.adapters.contains(link.adapter())) return true;
  const auto how = server::prove_gpudirect(driver_, link, own.device, &proof.memory, proof.how);
  if (!how) return false;
  proof.how = how;
  proof.adapters.insert(link.adapter());
  return true;
}

Result<std::optional<p2p::DmaBuf>> CudaDeviceOps::dma_buf(int device, DeviceAddress address,
                                                          size_t bytes) {
  const Proof& proof = proofs_[static_cast<size_t>(device)];
  if (!proof.how) {
    return Status(Code::kUnsupported,
                  "no RDMA adapter has been proven to reach this device's memory");
  }
  if (*proof.how == Registered::kByAddress) return std::optional<p2p::DmaBuf>();
  RCUDA_RETURN_IF_ERROR(make_current(device));
  RCUDA_ASSIGN_OR_RETURN(p2p::DmaBuf dma_buf, export_dma_buf(driver_, address, bytes));
  return std::optional(std::move(dma_buf));
}

}  // namespace rcuda::server

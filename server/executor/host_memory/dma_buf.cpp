#include "server/executor/host_memory/dma_buf.h"

#include "common/base/pages.h"

namespace rcuda::server {

Result<p2p::DmaBuf> export_dma_buf(const api::DriverTable& driver, CUdeviceptr address,
                                   size_t bytes) {
  // The driver exports only ranges that begin and end at multiples of the host's page size.
  const CUdeviceptr first = page_of(address);
  const CUdeviceptr last = whole_pages(address + bytes);
  int file = -1;
  const CUresult result = driver.cuMemGetHandleForAddressRange(
      &file, first, last - first, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  if (result != CUDA_SUCCESS) {
    return Status(Code::kUnsupported,
                  "the driver cannot export this GPU memory as dma-buf (CUDA error " +
                      std::to_string(result) + ")");
  }
  return p2p::DmaBuf{UniqueFd(file), address - first};
}

bool orders_adapter_writes(const api::DriverTable& driver, CUdevice device) {
  int ordering = 0;
  return driver.cuDeviceGetAttribute(&ordering, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
                                     device) == CUDA_SUCCESS &&
         ordering >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
}

}  // namespace rcuda::server

// DeviceResources: the driver's CUdevResources, descriptors and green contexts of a session.
//
// A CUdevResource holds pointers of the driver, so the client never gets the driver's form. It gets
// a CUdevResource that has the public members and the number of the resource that is kept here.
// Resources and descriptors are small and live as long as the session: CUDA has no function that
// destroys them. Equal resources are kept once, and so are equal descriptors.
// Executor thread only. Nothing blocks. Numbers come from the wire, so every function accepts any.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include <cuda.h>

namespace rcuda::server {

class DeviceResources {
 public:
  // Replaces the driver's resource by the form that the client gets. Returns
  // CUDA_ERROR_OUT_OF_MEMORY if the session has too many resources.
  CUresult keep(CUdevResource* resource);
  // Finds the driver's resource for the client's form of it. Returns
  // CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION if the client has changed the resource.
  CUresult find(const CUdevResource& given, CUdevResource* resource) const;

  // `of`: the numbers of the descriptor's resources. Returns the number of the descriptor, or 0 if
  // the session has too many descriptors.
  unsigned keep_descriptor(std::vector<uint32_t> of, CUdevResourceDesc descriptor);
  unsigned find_descriptor(const std::vector<uint32_t>& of) const;  // 0: none
  // Returns false if there is no such descriptor. Number 0 gives a null descriptor.
  bool descriptor(unsigned number, CUdevResourceDesc* descriptor) const;
  static uint32_t number_of(const CUdevResource& given);

  void add_green(CUcontext context, CUgreenCtx green) { greens_[context] = green; }
  // Returns null if the context is not a green context.
  CUgreenCtx green(CUcontext context) const {
    const auto found = greens_.find(context);
    return found == greens_.end() ? nullptr : found->second;
  }
  void remove_green(CUcontext context) { greens_.erase(context); }

 private:
  static constexpr size_t kMost = 1u << 16;

  std::vector<CUdevResource> resources_;
  std::vector<CUdevResourceDesc> descriptors_;                // number n at n - 1
  std::map<std::vector<uint32_t>, unsigned> descriptors_of_;  // by resources
  std::unordered_map<CUcontext, CUgreenCtx> greens_;
};

}  // namespace rcuda::server

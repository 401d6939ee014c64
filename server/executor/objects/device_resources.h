// DeviceResources: the driver's CUdevResources, descriptors and green contexts of a session.
//
// A CUdevResource holds pointers of the driver, so the client never gets one: it gets the number of
// a resource that is kept here, with the visible members. Resources and descriptors are small and
// live as long as the session, as with a driver; equal ones are kept once.
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
  // Replaces the driver's resource by the form that the client gets. CUDA_ERROR_OUT_OF_MEMORY if
  // the session has too many.
  CUresult keep(CUdevResource* resource);
  // Returns the driver's resource for the client's form of it.
  // CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION if the client has changed it.
  CUresult find(const CUdevResource& given, CUdevResource* resource) const;

  // `of`: the resources as the client gave them.
  unsigned keep_descriptor(std::vector<uint32_t> of, CUdevResourceDesc descriptor);
  unsigned find_descriptor(const std::vector<uint32_t>& of) const;  // 0: none
  // Returns false if there is no such descriptor. Number 0 gives a null descriptor.
  bool descriptor(unsigned number, CUdevResourceDesc* descriptor) const;
  static uint32_t number_of(const CUdevResource& given);

  void add_green(CUcontext context, CUgreenCtx green) { greens_[context] = green; }
  // Null if the context is not a green one.
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

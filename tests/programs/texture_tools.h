// Shared by the programs about textures and surfaces: arrays with contents, and texture objects.
#pragma once

#include "program.h"

// A CUDA array, filled from host values, that is freed at the end of its scope.
template <typename T>
class Array {
 public:
  Array(cudaExtent extent, unsigned flags, const std::vector<T>& values) : extent_(extent) {
    const cudaChannelFormatDesc format = cudaCreateChannelDesc<T>();
    CUDA(cudaMalloc3DArray(&array_, &format, extent, flags));
    copy(const_cast<T*>(values.data()), cudaMemcpyHostToDevice);
  }
  Array(size_t width, size_t height, const std::vector<T>& values, unsigned flags = 0)
      : Array(make_cudaExtent(width, height, 0), flags, values) {}
  ~Array() { cudaFreeArray(array_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  cudaArray_t get() const { return array_; }
  std::vector<T> values() const {
    std::vector<T> result(extent_.width * rows() * slices());
    const_cast<Array*>(this)->copy(result.data(), cudaMemcpyDeviceToHost);
    return result;
  }
  cudaResourceDesc resource() const {
    cudaResourceDesc description{};
    description.resType = cudaResourceTypeArray;
    description.res.array.array = array_;
    return description;
  }

 private:
  size_t rows() const { return extent_.height ? extent_.height : 1; }
  size_t slices() const { return extent_.depth ? extent_.depth : 1; }
  void copy(T* values, cudaMemcpyKind kind) {
    cudaMemcpy3DParms copy{};
    const cudaPitchedPtr host =
        make_cudaPitchedPtr(values, extent_.width * sizeof(T), extent_.width, rows());
    copy.extent = make_cudaExtent(extent_.width, rows(), slices());
    copy.kind = kind;
    if (kind == cudaMemcpyHostToDevice) {
      copy.srcPtr = host;
      copy.dstArray = array_;
    } else {
      copy.srcArray = array_;
      copy.dstPtr = host;
    }
    CUDA(cudaMemcpy3D(&copy));
  }

  cudaArray_t array_ = nullptr;
  cudaExtent extent_;
};

// A texture object, destroyed at the end of its scope.
class Texture {
 public:
  Texture(const cudaResourceDesc& resource, const cudaTextureDesc& how,
          const cudaResourceViewDesc* view = nullptr) {
    CUDA(cudaCreateTextureObject(&object_, &resource, &how, view));
  }
  ~Texture() { cudaDestroyTextureObject(object_); }
  Texture(const Texture&) = delete;
  Texture& operator=(const Texture&) = delete;
  cudaTextureObject_t get() const { return object_; }

 private:
  cudaTextureObject_t object_ = 0;
};

inline cudaTextureDesc sampler(cudaTextureAddressMode mode, cudaTextureFilterMode filter,
                               bool normalised) {
  cudaTextureDesc how{};
  for (cudaTextureAddressMode& axis : how.addressMode) axis = mode;
  how.filterMode = how.mipmapFilterMode = filter;
  how.normalizedCoords = normalised;
  how.maxMipmapLevelClamp = 100;
  return how;
}

// Small whole numbers: their filtered values are exact in every arithmetic.
inline std::vector<float> small_numbers(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<float> numbers(count);
  for (float& number : numbers) number = static_cast<float>(random.below(200));
  return numbers;
}

inline void print_values(const char* name, const std::vector<float>& values) {
  std::printf("%s:", name);
  for (const float value : values) std::printf(" %.9g", value);
  std::printf("\n");
}

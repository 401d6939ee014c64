// Texture and surface references: module variables that the host binds to arrays or memory.
#include <cstdio>
#include <initializer_list>

#include <cuda.h>

#include "driver_checks.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

const char kCode[] = R"(
.version 6.3
.target sm_75
.address_size 64
.global .texref image;
.global .texref line;
.global .surfref target;
.visible .entry read_image(.param .u64 pointer, .param .f32 column) {
  .reg .b64 %address;
  .reg .f32 %x, %y, %r, %g, %b, %a;
  ld.param.u64 %address, [pointer];
  cvta.to.global.u64 %address, %address;
  ld.param.f32 %x, [column];
  mov.f32 %y, 0f3f000000;
  tex.2d.v4.f32.f32 {%r, %g, %b, %a}, [image, {%x, %y}];
  st.global.f32 [%address], %r;
  ret;
}
.visible .entry read_line(.param .u64 pointer, .param .u32 index) {
  .reg .b64 %address;
  .reg .b32 %index;
  .reg .f32 %r, %g, %b, %a;
  ld.param.u64 %address, [pointer];
  cvta.to.global.u64 %address, %address;
  ld.param.u32 %index, [index];
  tex.1d.v4.f32.s32 {%r, %g, %b, %a}, [line, {%index}];
  st.global.f32 [%address], %r;
  ret;
}
.visible .entry write_target(.param .u32 number) {
  .reg .b32 %number, %x, %y;
  ld.param.u32 %number, [number];
  mov.u32 %x, 4;
  mov.u32 %y, 1;
  sust.b.2d.b32.trap [target, {%x, %y}], {%number};
  ret;
}
)";

struct Program {
  CUmodule module;
  CUdeviceptr result;
  CUfunction read_image, read_line, write_target;
  CUtexref image, line;
  CUsurfref target;

  Program() {
    CU(cuModuleLoadData(&module, kCode));
    CU(cuModuleGetFunction(&read_image, module, "read_image"));
    CU(cuModuleGetFunction(&read_line, module, "read_line"));
    CU(cuModuleGetFunction(&write_target, module, "write_target"));
    CU(cuModuleGetTexRef(&image, module, "image"));
    CU(cuModuleGetTexRef(&line, module, "line"));
    CU(cuModuleGetSurfRef(&target, module, "target"));
    CU(cuMemAlloc(&result, 4096));
  }
  template <typename T>
  float read(CUfunction function, T where) {
    void* parameters[] = {&result, &where};
    CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
    float value = 0;
    CU(cuMemcpyDtoH(&value, result, sizeof value));
    return value;
  }
};

void names(const Program& program) {
  CUtexref again = nullptr;
  CUsurfref surface = nullptr;
  CU(cuModuleGetTexRef(&again, program.module, "image"));
  CHECK(again == program.image && again != program.line);
  CU(cuModuleGetSurfRef(&surface, program.module, "target"));
  CHECK(surface == program.target);
  for (const char* name : {"none", "target", "read_image"}) {
    EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetTexRef(&again, program.module, name));
  }
  EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetSurfRef(&surface, program.module, "image"));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuModuleGetTexRef(nullptr, program.module, "image"));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuModuleGetTexRef(&again, program.module, nullptr));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuModuleGetTexRef(&again, nullptr, "image"));
  std::printf("names: found in the module\n");
}

void defaults(const Program& program) {
  CUarray array;
  CUmipmappedArray mipmaps;
  CUdeviceptr address;
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuTexRefGetArray(&array, program.image));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuTexRefGetMipmappedArray(&mipmaps, program.image));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuTexRefGetAddress(&address, program.image));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuSurfRefGetArray(&array, program.target));
  CUaddress_mode mode;
  for (int dimension = 0; dimension < 3; ++dimension) {
    CU(cuTexRefGetAddressMode(&mode, program.image, dimension));
    CHECK(mode == CU_TR_ADDRESS_MODE_CLAMP);
  }
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuTexRefGetAddressMode(&mode, program.image, 3));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuTexRefGetAddressMode(nullptr, program.image, 0));
  CUfilter_mode filter;
  CUarray_format format;
  int channels = 0;
  unsigned flags = 7;
  CU(cuTexRefGetFilterMode(&filter, program.image));
  CU(cuTexRefGetFormat(&format, &channels, program.image));
  CU(cuTexRefGetFlags(&flags, program.image));
  CHECK(filter == CU_TR_FILTER_MODE_POINT && format == CU_AD_FORMAT_FLOAT && channels == 1);
  CHECK(flags == 0);
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuTexRefGetFlags(&flags, nullptr));
  std::printf("defaults: point, clamp, no flags\n");
}

void settings(const Program& program) {
  const CUtexref line = program.line;
  float first = 0, second = 0, colour[4] = {1, 2, 3, 4}, read[4] = {};
  int anisotropy = 0;
  CU(cuTexRefSetMipmapLevelBias(line, 1.5f));
  CU(cuTexRefGetMipmapLevelBias(&first, line));
  CHECK(first == 1.5f);
  CU(cuTexRefSetMipmapLevelClamp(line, 1, 2));
  CU(cuTexRefGetMipmapLevelClamp(&first, &second, line));
  CHECK(first == 1 && second == 2);
  CU(cuTexRefSetMaxAnisotropy(line, 4));
  CU(cuTexRefGetMaxAnisotropy(&anisotropy, line));
  CHECK(anisotropy == 4);
  CU(cuTexRefSetBorderColor(line, colour));
  CU(cuTexRefGetBorderColor(read, line));
  CHECK(read[0] == 1 && read[3] == 4);
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuTexRefSetBorderColor(line, nullptr));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuTexRefSetAddressMode(line, 3, CU_TR_ADDRESS_MODE_WRAP));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuTexRefSetFormat(line, CU_AD_FORMAT_FLOAT, 3));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuTexRefSetFlags(line, 0x80));
  std::printf("settings: read back\n");
}

void arrays(Program& program) {
  CUDA_ARRAY_DESCRIPTOR descriptor{4, 4, CU_AD_FORMAT_FLOAT, 1};
  CUarray array, bound;
  CU(cuArrayCreate(&array, &descriptor));
  float data[16];
  for (int i = 0; i < 16; ++i) data[i] = static_cast<float>(i);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = data;
  copy.srcPitch = 16;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.WidthInBytes = 16;
  copy.Height = 4;
  CU(cuMemcpy2D(&copy));
  const CUtexref image = program.image;
  CU(cuTexRefSetArray(image, array, CU_TRSA_OVERRIDE_FORMAT));
  CU(cuTexRefGetArray(&bound, image));
  CHECK(bound == array);
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuTexRefSetArray(image, nullptr, CU_TRSA_OVERRIDE_FORMAT));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuTexRefSetArray(nullptr, array, CU_TRSA_OVERRIDE_FORMAT));
  std::printf("array: point %g", static_cast<double>(program.read(program.read_image, 1.5f)));
  CU(cuTexRefSetFilterMode(image, CU_TR_FILTER_MODE_LINEAR));
  std::printf(", linear %g", static_cast<double>(program.read(program.read_image, 1.25f)));
  CU(cuTexRefSetFilterMode(image, CU_TR_FILTER_MODE_POINT));
  std::printf(", clamped %g", static_cast<double>(program.read(program.read_image, 17.5f)));
  CU(cuTexRefSetAddressMode(image, 0, CU_TR_ADDRESS_MODE_WRAP));
  CU(cuTexRefSetFlags(image, CU_TRSF_NORMALIZED_COORDINATES));
  // Row 0.5 of the whole height, column 0.375 of the next period.
  std::printf(", wrapped %g\n", static_cast<double>(program.read(program.read_image, 1.375f)));
  CU(cuParamSetTexRef(program.read_image, CU_PARAM_TR_DEFAULT, image));
  EXPECT(CUDA_ERROR_INVALID_HANDLE,
         cuParamSetTexRef(program.read_image, CU_PARAM_TR_DEFAULT, nullptr));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuParamSetTexRef(nullptr, CU_PARAM_TR_DEFAULT, image));
  CU(cuArrayDestroy(array));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuTexRefGetArray(&bound, image));
}

void memory(Program& program) {
  const CUdeviceptr data = program.result + 512;
  const float numbers[4] = {10, 11, 12, 13};
  CU(cuMemcpyHtoD(data, numbers, sizeof numbers));
  size_t offset = 77;
  CU(cuTexRefSetAddress(&offset, program.line, data, sizeof numbers));
  CHECK(offset == 0);
  CUdeviceptr bound;
  CU(cuTexRefGetAddress(&bound, program.line));
  CHECK(bound == data);
  std::printf("memory: %g\n", static_cast<double>(program.read(program.read_line, 2)));
  CU(cuTexRefSetAddress(&offset, program.line, data + 4, sizeof numbers));
  CHECK(offset == 4);
  EXPECT(CUDA_ERROR_INVALID_VALUE,
         cuTexRefSetAddress(nullptr, program.line, data + 4, sizeof numbers));
  CUDA_ARRAY_DESCRIPTOR descriptor{4, 4, CU_AD_FORMAT_FLOAT, 1};
  CU(cuTexRefSetAddress2D(program.line, &descriptor, data, 512));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuTexRefSetAddress2D(program.line, &descriptor, data, 16));
}

void surfaces(const Program& program) {
  CUDA_ARRAY3D_DESCRIPTOR descriptor{};
  descriptor.Width = descriptor.Height = 8;
  descriptor.Format = CU_AD_FORMAT_UNSIGNED_INT32;
  descriptor.NumChannels = 1;
  CUarray plain, array, bound;
  CU(cuArray3DCreate(&plain, &descriptor));
  descriptor.Flags = CUDA_ARRAY3D_SURFACE_LDST;
  CU(cuArray3DCreate(&array, &descriptor));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuSurfRefSetArray(program.target, plain, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuSurfRefSetArray(program.target, array, 1));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuSurfRefSetArray(program.target, nullptr, 0));
  CU(cuSurfRefSetArray(program.target, array, 0));
  CU(cuSurfRefGetArray(&bound, program.target));
  CHECK(bound == array);
  unsigned number = 42, row[8] = {};
  void* parameters[] = {&number};
  CU(cuLaunchKernel(program.write_target, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = array;
  copy.srcY = 1;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = row;
  copy.dstPitch = copy.WidthInBytes = sizeof row;
  copy.Height = 1;
  CU(cuMemcpy2D(&copy));
  std::printf("surface: %u %u %u\n", row[0], row[1], row[2]);
  CU(cuArrayDestroy(plain));
}

void created() {
  CUtexref reference;
  unsigned flags;
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuTexRefCreate(nullptr));
  CU(cuTexRefCreate(&reference));
  CU(cuTexRefGetFlags(&flags, reference));
  CU(cuTexRefDestroy(reference));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuTexRefDestroy(nullptr));
  std::printf("created and destroyed\n");
}

}  // namespace

int main() {
  CUcontext context;
  CU(cuInit(0));
  CU(cuDevicePrimaryCtxRetain(&context, 0));
  CU(cuCtxSetCurrent(context));
  Program program;
  names(program);
  defaults(program);
  settings(program);
  arrays(program);
  surfaces(program);
  created();
  memory(program);
  CU(cuModuleUnload(program.module));
  CU(cuDevicePrimaryCtxRelease(0));
  return 0;
}

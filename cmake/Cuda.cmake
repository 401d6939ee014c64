# Where the CUDA toolkit is. Only its headers are needed to build; nvcc builds the test programs.

find_path(RCUDA_CUDA_INCLUDE_DIR cuda.h
  HINTS $ENV{CUDA_HOME}/include /usr/local/cuda/include /usr/local/cuda/targets/x86_64-linux/include)
if(NOT RCUDA_CUDA_INCLUDE_DIR)
  message(FATAL_ERROR "cuda.h was not found: install the CUDA Toolkit (13.0 or later) or set CUDA_HOME")
endif()
find_program(RCUDA_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)

add_library(rcuda_cuda_headers INTERFACE)
target_include_directories(rcuda_cuda_headers SYSTEM INTERFACE "${RCUDA_CUDA_INCLUDE_DIR}")
# All versions of every function are declared under their own names (cuMemAlloc_v2, ...): this
# project defines and calls symbols, so the header's renaming macros would only mislead.
# Definitions of driver functions are exported although everything else is compiled hidden.
target_compile_definitions(rcuda_cuda_headers INTERFACE
  __CUDA_API_VERSION_INTERNAL __CUDA_API_PUSH_VISIBILITY_DEFAULT)
find_file(RCUDA_CUDA_STUB libcuda.so NO_DEFAULT_PATH
  HINTS "${RCUDA_CUDA_INCLUDE_DIR}/../lib64/stubs" "${RCUDA_CUDA_INCLUDE_DIR}/../lib/stubs"
        /usr/local/cuda/lib64/stubs)
find_package(Python3 3.11 REQUIRED COMPONENTS Interpreter)

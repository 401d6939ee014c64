# Finds the CUDA toolkit. rcuda itself needs only its headers; the test programs also need nvcc. A cross build uses the
# headers of the build machine, and a stub generated from them.
#
# RCUDA_NVCC              nvcc of CUDA_HOME, /usr/local/cuda, PATH, or the toolkit that scripts/setup installed
# RCUDA_CUDA_INCLUDE_DIR  the folder of the toolkit's headers
# RCUDA_CUDA_STUB         libcuda.so to link against: the toolkit's stub, or a stub generated from the headers

find_package(Python3 3.11 REQUIRED COMPONENTS Interpreter)
# Resolves a script that starts Python, such as pyenv's in PATH. Each test would wait for that script as well.
execute_process(COMMAND "${Python3_EXECUTABLE}" -c "import sys; print(sys.executable)"
  OUTPUT_VARIABLE interpreter OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
set(Python3_EXECUTABLE "${interpreter}")
# For scripts that need no installed packages. Python starts twice as fast without site-packages (-S), and hundreds of
# tests start such scripts.
set(RCUDA_QUICK_PYTHON "${interpreter}" -S)

set(toolkit_of_setup "${CMAKE_CURRENT_SOURCE_DIR}/build/wheels/toolkit")
find_program(RCUDA_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin PATHS "${toolkit_of_setup}/bin")
if(RCUDA_NVCC STREQUAL "${toolkit_of_setup}/bin/nvcc")
  # Uses only the headers that belong to this nvcc, not those of an incomplete toolkit in /usr/local/cuda.
  find_path(RCUDA_CUDA_INCLUDE_DIR cuda.h PATHS "${toolkit_of_setup}/include"
    NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
else()
  find_path(RCUDA_CUDA_INCLUDE_DIR cuda.h
    HINTS $ENV{CUDA_HOME}/include /usr/local/cuda/include /usr/local/cuda/targets/x86_64-linux/include
    NO_CMAKE_FIND_ROOT_PATH)
endif()
if(NOT RCUDA_CUDA_INCLUDE_DIR)
  message(FATAL_ERROR "cuda.h was not found: run scripts/setup, or install the CUDA Toolkit (13.0 or later) and set CUDA_HOME")
endif()
file(STRINGS "${RCUDA_CUDA_INCLUDE_DIR}/cuda.h" cuda_version REGEX "^#define CUDA_VERSION ")
string(REGEX MATCH "[0-9]+" cuda_version "${cuda_version}")
if(cuda_version LESS 13000)
  message(FATAL_ERROR "${RCUDA_CUDA_INCLUDE_DIR}/cuda.h is version ${cuda_version}, older than CUDA 13.0: "
    "set CUDA_HOME to a newer toolkit (scripts/wheels toolkit installs one as ${toolkit_of_setup}) and build in a fresh folder")
endif()

add_library(rcuda_cuda_headers INTERFACE)
target_include_directories(rcuda_cuda_headers SYSTEM INTERFACE "${RCUDA_CUDA_INCLUDE_DIR}")
# The first macro makes cuda.h declare all versions of every function under their own names (cuMemAlloc_v2, ...).
# This project defines and calls the symbols themselves, so macros that rename functions would mislead. The second
# macro exports the definitions of driver functions; everything else is compiled with hidden visibility.
target_compile_definitions(rcuda_cuda_headers INTERFACE
  __CUDA_API_VERSION_INTERNAL __CUDA_API_PUSH_VISIBILITY_DEFAULT)

find_file(RCUDA_CUDA_STUB libcuda.so NO_DEFAULT_PATH
  HINTS "${RCUDA_CUDA_INCLUDE_DIR}/../lib64/stubs" "${RCUDA_CUDA_INCLUDE_DIR}/../lib/stubs")
set(own_stub "${CMAKE_BINARY_DIR}/stubs/libcuda.so")
if(NOT RCUDA_CUDA_STUB)
  set(RCUDA_CUDA_STUB "${own_stub}" CACHE FILEPATH "" FORCE)
endif()
if(RCUDA_CUDA_STUB STREQUAL own_stub AND "${RCUDA_CUDA_INCLUDE_DIR}/cuda.h" IS_NEWER_THAN "${own_stub}")
  execute_process(
    COMMAND "${Python3_EXECUTABLE}" "${CMAKE_CURRENT_SOURCE_DIR}/api/gen/stub_library.py"
            --compiler "${CMAKE_C_COMPILER}" --include "${RCUDA_CUDA_INCLUDE_DIR}" --output "${own_stub}"
    COMMAND_ERROR_IS_FATAL ANY)
endif()

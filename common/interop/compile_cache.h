// The compile cache: the output of NVRTC, kept on disk between runs.
//
// A local driver has this cache, too. NVRTC (12.8 and later) uses it through an export table.
// Each compilation makes two queries with its intermediate code: for the PTX and for the cubin.
// Without the cache, NVRTC compiles the same code again in each run: cuDNN's attention takes 300 ms
// longer at the first use of each sequence length.
//
// The files are the user's own, in $CUDA_CACHE_PATH/rcuda, or else in "compiled" in the folder for
// caches (common/base/cache_folder.h). CUDA_CACHE_DISABLE=1 and CUDA_CACHE_MAXSIZE (bytes) mean the
// same as with a local driver. A file's name is a hash of the query; the file contains the whole
// query, which is compared. Without a usable folder, nothing is found or stored. Threads: any; one
// thread at a time uses an entry. Blocking: for the file system.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda.h>

namespace rcuda::interop {

class CompileEntry;  // one query: for the output that an input and its options give

// The functions of the table. All strings and `input` are copied. `kind` is 1 for a cubin and 2 for
// PTX; `host` and `build` name the compiler; `architecture` is 90 for sm_90.
CUresult open_compile_entry(CompileEntry** entry, uint32_t kind, const void* input,
                            size_t input_bytes, const char* options, const char* host,
                            const char* build, uint32_t architecture);
CUresult close_compile_entry(CompileEntry* entry);
// CUDA_ERROR_NOT_FOUND if the cache has no answer. The caller passes *data to release_compiled().
CUresult find_compiled(CompileEntry* entry, uint32_t reserved, void** data, uint32_t* bytes);
CUresult insert_compiled(CompileEntry* entry, uint32_t reserved, const void* data, size_t bytes);
CUresult release_compiled(void* data);

}  // namespace rcuda::interop

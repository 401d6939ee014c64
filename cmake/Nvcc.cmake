# Functions that compile and link the CUDA sources of the tests and benchmarks with nvcc, which needs no GPU. Call them
# only if nvcc was found (RCUDA_NVCC).

# rcuda_nvcc_file(OUTPUT SOURCE [FLAG ...])
# Compiles one source to OUTPUT (an absolute path): an object file, or the kind of file that a flag selects (-fatbin,
# -cubin, -ptx). Passes -c with those flags, too: it does not change their output, but ccache caches only with -c.
function(rcuda_nvcc_file output source)
  get_filename_component(folder "${output}" DIRECTORY)
  get_filename_component(source "${source}" ABSOLUTE)
  file(RELATIVE_PATH comment "${CMAKE_BINARY_DIR}" "${output}")
  add_custom_command(
    OUTPUT "${output}"
    COMMAND ${CMAKE_COMMAND} -E make_directory "${folder}"
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} "${RCUDA_NVCC}" ${ARGN} -MD -MF "${output}.d" -c -o "${output}" "${source}"
    DEPENDS "${source}"
    DEPFILE "${output}.d"
    COMMENT "nvcc ${comment}"
    VERBATIM)
endfunction()

# rcuda_nvcc_link(OUTPUT FLAGS OBJECTS [LIBRARY ...])
function(rcuda_nvcc_link output flags objects)
  file(RELATIVE_PATH comment "${CMAKE_BINARY_DIR}" "${output}")
  add_custom_command(
    OUTPUT "${output}"
    COMMAND "${RCUDA_NVCC}" ${flags} -o "${output}" ${objects} ${ARGN}
    DEPENDS ${objects}
    COMMENT "nvcc ${comment}"
    VERBATIM)
endfunction()

# rcuda_nvcc_program(OUTPUT SOURCE FLAGS [LIBRARY ...])
# An executable of one source.
function(rcuda_nvcc_program output source flags)
  rcuda_nvcc_file("${output}.o" "${source}" ${flags})
  rcuda_nvcc_link("${output}" "${flags}" "${output}.o" ${ARGN})
endfunction()

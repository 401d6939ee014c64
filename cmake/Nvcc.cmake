# Test inputs compiled by nvcc while the tests are built: device code needs no GPU to compile.

# rcuda_nvcc_file(OUTPUT SOURCE FLAG...)
# Runs nvcc on one source and writes OUTPUT (absolute); without nvcc it is an error to call this.
function(rcuda_nvcc_file output source)
  get_filename_component(folder "${output}" DIRECTORY)
  get_filename_component(source "${source}" ABSOLUTE)
  add_custom_command(
    OUTPUT "${output}"
    COMMAND ${CMAKE_COMMAND} -E make_directory "${folder}"
    COMMAND "${RCUDA_NVCC}" -MD -MT "${output}" -MF "${output}.d" -o "${output}" "${source}" ${ARGN}
    DEPENDS "${source}"
    DEPFILE "${output}.d"
    COMMENT "nvcc ${output}"
    VERBATIM)
endfunction()

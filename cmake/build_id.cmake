# Writes OUTPUT, a source file with the id of the build. The id is the first 12 digits of a SHA-256. It covers the paths and
# contents of all sources of the programs in SOURCE, and CUDA_HEADER, from which the API is generated. It does not cover
# compilers and their options. The file does not change if the id is the same.
cmake_minimum_required(VERSION 3.25)

set(patterns CMakeLists.txt)
foreach(folder api client cmake common p2p server softgpu tools)
  list(APPEND patterns "${folder}/*")
endforeach()
list(TRANSFORM patterns PREPEND "${SOURCE}/")
file(GLOB_RECURSE files LIST_DIRECTORIES false RELATIVE "${SOURCE}" ${patterns})
list(FILTER files EXCLUDE REGEX "__pycache__|/[.]|~$")
list(SORT files)
set(all "")
foreach(name ${files})
  file(SHA256 "${SOURCE}/${name}" digest)
  string(APPEND all "${digest} ${name}\n")
endforeach()
file(SHA256 "${CUDA_HEADER}" header)
string(SHA256 digest "${all}${header}")
string(SUBSTRING "${digest}" 0 12 id)
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT "// Made by cmake/build_id.cmake.
extern \"C\" {
extern const char rcuda_build_id[];
const char rcuda_build_id[] = \"@id@\";
}
" @ONLY)

# Compiler options (warnings, sanitizers), and the functions that declare the libraries and tests of this repository.

find_package(Threads REQUIRED)

# Multiplies the time limits of tests. ThreadSanitizer makes tests with many threads twenty times slower.
set(RCUDA_TIMEOUT_FACTOR 1)
if(RCUDA_SANITIZE MATCHES "thread")
  set(RCUDA_TIMEOUT_FACTOR 5)
endif()

add_library(rcuda_options INTERFACE)
target_include_directories(rcuda_options INTERFACE "${CMAKE_SOURCE_DIR}" "${CMAKE_BINARY_DIR}/generated")
target_compile_options(rcuda_options INTERFACE
  -Wall -Wextra -Wno-missing-field-initializers $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
target_link_libraries(rcuda_options INTERFACE Threads::Threads)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC collects garbage only when its heap exceeds this many KB, which is rare for the files here. Saves 6 % of the
  # compile time.
  target_compile_options(rcuda_options INTERFACE --param=ggc-min-heapsize=524288)
endif()
if(RCUDA_SANITIZE)
  target_compile_options(rcuda_options INTERFACE -fsanitize=${RCUDA_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(rcuda_options INTERFACE -fsanitize=${RCUDA_SANITIZE})
  if(RCUDA_SANITIZE MATCHES "undefined")
    # A newer program, driver or peer may use values that the enumerations of this cuda.h lack. That is not an error.
    target_compile_options(rcuda_options INTERFACE -fno-sanitize-recover=undefined -fno-sanitize=enum)
  endif()
  # A program without a sanitizer can load rcuda's libraries that are built with one, if the sanitizer's runtime is
  # loaded first. Such a program may exit with memory that it has not freed, and a worker with running threads. So the
  # environment below turns the checks for leaks of memory and threads off.
  set(runtime asan)
  if(RCUDA_SANITIZE MATCHES "thread")
    set(runtime tsan)
  endif()
  execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -print-file-name=lib${runtime}.so
    OUTPUT_VARIABLE runtime_path OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(RCUDA_FOREIGN_PROGRAM_PRELOAD "${runtime_path}" CACHE INTERNAL
    "The library that a program not built by CMake must load before rcuda's libraries")
  set(RCUDA_FOREIGN_PROGRAM_ENVIRONMENT
    "ASAN_OPTIONS=detect_leaks=0"
    "TSAN_OPTIONS=report_thread_leaks=0:suppressions=${CMAKE_SOURCE_DIR}/cmake/tsan_suppressions.txt"
    CACHE INTERNAL
    "The environment variables of such a program")
  # rcuda's own tests must free their memory and end their threads, except for tests with KEEPS_THREADS.
  set(RCUDA_TEST_ENVIRONMENT
    "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/cmake/tsan_suppressions.txt"
    CACHE INTERNAL "The environment variables of a test")
endif()

# Parsing the standard library takes at least a third of a file's compile time. With this option, GCC parses it once
# for libraries and once, with GoogleTest, for tests. Each source must still include the headers that it uses: other
# compilers (wheels, scripts/fuzz) and debian/rules build without precompiled headers.
option(RCUDA_PRECOMPILE "Precompile the standard library's headers" OFF)
set(RCUDA_STANDARD_HEADERS
  <algorithm> <array> <atomic> <chrono> <condition_variable> <cstring> <deque> <functional> <map> <memory> <mutex>
  <optional> <span> <string> <string_view> <thread> <unordered_map> <utility> <vector>)
if(RCUDA_PRECOMPILE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/precompiled.cpp" CONTENT "")
  function(rcuda_precompile name)
    cmake_parse_arguments(ARG "" "" "HEADERS;DEPS" ${ARGN})
    add_library(${name} OBJECT "${CMAKE_BINARY_DIR}/precompiled.cpp")
    target_link_libraries(${name} PRIVATE rcuda_options ${ARG_DEPS})
    list(TRANSFORM ARG_HEADERS REPLACE "(.+)" "$<$<COMPILE_LANGUAGE:CXX>:\\1>")
    target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
    if(CMAKE_CXX_COMPILER_LAUNCHER)
      set_target_properties(${name} PROPERTIES
        CXX_COMPILER_LAUNCHER "${CMAKE_SOURCE_DIR}/cmake/with_checksum;${CMAKE_CXX_COMPILER_LAUNCHER}")
    endif()
  endfunction()
  # With precompiled headers, GCC 12 reports false warnings about the standard library's code as if it were ours.
  target_compile_options(rcuda_options INTERFACE -Wno-array-bounds -Wno-stringop-overflow)
  # ccache caches compilations with precompiled headers only with -fpch-preprocess and this CCACHE_SLOPPINESS.
  target_compile_options(rcuda_options INTERFACE -fpch-preprocess)
  if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache$")
    set(CMAKE_CXX_COMPILER_LAUNCHER
      env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_PCH_EXTSUM=1 ${CMAKE_CXX_COMPILER_LAUNCHER})
  endif()
  rcuda_precompile(rcuda_precompiled HEADERS ${RCUDA_STANDARD_HEADERS})
endif()

# rcuda_use_precompiled(TARGET): compiles TARGET with the precompiled headers of libraries. Does nothing without
# RCUDA_PRECOMPILE.
function(rcuda_use_precompiled target)
  if(TARGET rcuda_precompiled)
    target_precompile_headers(${target} REUSE_FROM rcuda_precompiled)
  endif()
endfunction()

# rcuda_include_first(TARGET HEADER): includes HEADER before the first line of each source of TARGET. Call this after
# rcuda_use_precompiled(). GCC accepts a precompiled header only as the first include, but CMake would put it after
# HEADER, and ccache caches no command that names the precompiled header twice. So this function turns CMake's option
# for the precompiled header off, and passes its own.
function(rcuda_include_first target header)
  get_target_property(precompiled ${target} PRECOMPILE_HEADERS_REUSE_FROM)
  if(precompiled)
    set_target_properties(${target} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
    add_dependencies(${target} ${precompiled})
    get_target_property(folder ${precompiled} BINARY_DIR)
    set(header_file "${folder}/CMakeFiles/${precompiled}.dir/cmake_pch.hxx")
    target_compile_options(${target} PRIVATE -Winvalid-pch "SHELL:-include \"${header_file}\"")
    get_target_property(sources ${target} SOURCES)
    list(FILTER sources INCLUDE REGEX "[.]cpp$")
    set_property(SOURCE ${sources} TARGET_DIRECTORY ${target} APPEND PROPERTY OBJECT_DEPENDS "${header_file}.gch")
  endif()
  target_compile_options(${target} PRIVATE "SHELL:-include \"${header}\"")
endfunction()

# rcuda_library(NAME SOURCES a.cpp ... [DEPS target ...] [PUBLIC_DEPS target ...])
# A static library. Code that defines exported cu* symbols goes into an OBJECT library of its own
# instead: a strong definition inside an archive would lose against the generated weak one.
function(rcuda_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PUBLIC_DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC rcuda_options ${ARG_PUBLIC_DEPS} PRIVATE ${ARG_DEPS})
  rcuda_use_precompiled(${name})
endfunction()

find_program(RCUDA_LLD ld.lld)

# rcuda_test(NAME SOURCES a_test.cpp ... [DEPS target ...] [LABELS unit] [TIMEOUT seconds]
#            [KEEPS_THREADS] [EACH_ALONE])
# Declares a GoogleTest binary and registers it as one CTest test with the label gtest. The target rcuda_unit_tests
# builds all such binaries. EACH_ALONE: registers each test of the binary as a CTest test, which runs in its own
# process. KEEPS_THREADS: threads of the tests may still run when the process ends.
function(rcuda_test name)
  cmake_parse_arguments(ARG "EACH_ALONE;KEEPS_THREADS" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  find_package(GTest REQUIRED)
  include(GoogleTest)
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE rcuda_options ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  # Full optimisation would take a third of a test's compile time, for code that runs once. Debug information is left
  # out because only sanitizers read it.
  set(options $<$<CONFIG:Release>:-O1> $<$<CONFIG:Release>:-g0>)
  target_compile_options(${name} PRIVATE ${options})
  if(TARGET rcuda_precompiled AND NOT TARGET rcuda_precompiled_tests)
    rcuda_precompile(rcuda_precompiled_tests DEPS GTest::gmock
      HEADERS ${RCUDA_STANDARD_HEADERS} <gmock/gmock.h> <gtest/gtest.h>)
    set_target_properties(rcuda_precompiled_tests PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(rcuda_precompiled_tests PRIVATE -fPIE ${options})
  endif()
  if(TARGET rcuda_precompiled_tests)
    target_precompile_headers(${name} REUSE_FROM rcuda_precompiled_tests)
  endif()
  if(RCUDA_LLD)  # links faster: each test program contains most of the code
    target_link_options(${name} PRIVATE -fuse-ld=lld)
  endif()
  if(NOT TARGET rcuda_unit_tests)
    add_custom_target(rcuda_unit_tests)
  endif()
  add_dependencies(rcuda_unit_tests ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * ${RCUDA_TIMEOUT_FACTOR}")
  list(APPEND ARG_LABELS gtest)
  set(environment ${RCUDA_TEST_ENVIRONMENT})
  if(ARG_KEEPS_THREADS)
    list(TRANSFORM environment APPEND ":report_thread_leaks=0")
  endif()
  if(ARG_EACH_ALONE)
    gtest_discover_tests(${name} TEST_PREFIX "${name}." DISCOVERY_MODE PRE_TEST PROPERTIES
      TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}" ENVIRONMENT "${environment}")
  else()
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES
      TIMEOUT ${ARG_TIMEOUT} COST ${ARG_TIMEOUT} LABELS "${ARG_LABELS}" ENVIRONMENT "${environment}")
  endif()
endfunction()

# rcuda_left_out(NAME REASON)
# Adds a CTest test left_out.NAME, which is reported as skipped with REASON. Call it for tests that this build cannot
# contain.
function(rcuda_left_out name reason)
  message(STATUS "${name}: ${reason}: left out of the tests")
  add_test(NAME left_out.${name} COMMAND ${CMAKE_COMMAND} -E echo "SKIPPED ${name}: ${reason}")
  set_tests_properties(left_out.${name} PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED")
endfunction()

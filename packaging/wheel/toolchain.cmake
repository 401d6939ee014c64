# Builds with zig for an old glibc and for RCUDA_WHEEL_ARCHITECTURE, which may differ from this machine's architecture.
# scripts/make_wheel sets this variable and RCUDA_WHEEL_FOLDER. The folder contains bin/{cc,c++,ar,ranlib} (scripts that
# run zig for the target) and sysroot/ (headers and static libraries of Debian's packages).

list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES RCUDA_WHEEL_ARCHITECTURE RCUDA_WHEEL_FOLDER)

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR "${RCUDA_WHEEL_ARCHITECTURE}")
set(CMAKE_LIBRARY_ARCHITECTURE "${RCUDA_WHEEL_ARCHITECTURE}-linux-gnu")
set(CMAKE_C_COMPILER "${RCUDA_WHEEL_FOLDER}/bin/cc")
set(CMAKE_CXX_COMPILER "${RCUDA_WHEEL_FOLDER}/bin/c++")
set(CMAKE_AR "${RCUDA_WHEEL_FOLDER}/bin/ar")
set(CMAKE_RANLIB "${RCUDA_WHEEL_FOLDER}/bin/ranlib")
set(CMAKE_C_FLAGS_INIT "-isystem ${RCUDA_WHEEL_FOLDER}/sysroot/usr/include/${CMAKE_LIBRARY_ARCHITECTURE} \
-isystem ${RCUDA_WHEEL_FOLDER}/sysroot/usr/include")
if(RCUDA_WHEEL_ARCHITECTURE STREQUAL "aarch64")
  string(APPEND CMAKE_C_FLAGS_INIT " -fsigned-char")  # as on x86-64
endif()
set(CMAKE_CXX_FLAGS_INIT "${CMAKE_C_FLAGS_INIT} -include ${CMAKE_CURRENT_LIST_DIR}/old_glibc.h")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-s")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-s")
set(CMAKE_INSTALL_LIBDIR lib CACHE STRING "")

set(CMAKE_FIND_ROOT_PATH "${RCUDA_WHEEL_FOLDER}/sysroot")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

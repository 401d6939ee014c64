// Environment variables that the driver reads when it starts, each value in its own process.
// CUDA_VISIBLE_DEVICES: which values make only the first device visible.
// CUDA_MODULE_LOADING: the mode that the driver reports, and which functions it has loaded.
#include <cctype>
#include <cstring>
#include <initializer_list>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include "driver_checks.h"

namespace {

// "GPU-00112233-...", as nvidia-smi -L prints it.
std::string uuid_of_first() {
  CUdevice device;
  CUuuid uuid;
  CU(cuDeviceGet(&device, 0));
  CU(cuDeviceGetUuid(&uuid, device));
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

// Runs `child` in a process. Returns the text that it writes to the descriptor.
template <typename Child>
std::string in_child(const Child& child) {
  std::fflush(stdout);
  int ends[2];
  CHECK(pipe(ends) == 0);
  const pid_t pid = fork();
  if (pid == 0) {
    const std::string text = child();
    CHECK(write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    _exit(0);
  }
  close(ends[1]);
  char text[256];
  const ssize_t bytes = read(ends[0], text, sizeof text);
  close(ends[0]);
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return std::string(text, bytes > 0 ? static_cast<size_t>(bytes) : 0);
}

const char* name_of(CUresult result) {
  const char* name = "?";
  cuGetErrorName(result, &name);
  return name;
}

// ---- CUDA_VISIBLE_DEVICES ----------------------------------------------------------------------

std::string first;  // the UUID

// The devices that a process with this variable sees.
std::string seen(const std::string& visible) {
  return in_child([&]() -> std::string {
    setenv("CUDA_VISIBLE_DEVICES", visible.c_str(), 1);
    const CUresult result = cuInit(0);
    if (result != CUDA_SUCCESS) return name_of(result);
    int count = -1;
    CU(cuDeviceGetCount(&count));
    const std::string same = uuid_of_first() == first ? ", the first" : ", another";
    return std::to_string(count) + (count == 1 ? " device" : " devices") + same;
  });
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

void show(const char* what, const std::string& visible) {
  std::printf("%-36s %s\n", what, seen(visible).c_str());
}

void visible_devices() {
  unsetenv("CUDA_VISIBLE_DEVICES");
  first = in_child([]() -> std::string {
    CU(cuInit(0));
    return uuid_of_first();
  });
  for (const char* list : {"0",
                           "+0",
                           "-0",
                           "00",
                           "0x0",
                           " 0",
                           "\t0",
                           "0 ",
                           "0abc",
                           "0gpu1",
                           "0,",
                           "0,,0",
                           "0,-1",
                           "0,abc",
                           "0,64",
                           "0,-1,0",
                           "0,64,0",
                           "0,0",
                           "0, 0",
                           "0,+0",
                           "",
                           " ",
                           ",0",
                           "-1",
                           "64",
                           "abc",
                           "all",
                           "none",
                           "NoDevFiles",
                           "4294967296",
                           "18446744073709551616",
                           "gpu-0",
                           "MIG-0"}) {
    std::string name = std::string("\"") + list + "\"";
    if (name[1] == '\t') name.replace(1, 1, "\\t");
    show(name.c_str(), list);
  }
  show("UUID", first);
  show("12 digits", first.substr(0, 17));
  show("8 digits", first.substr(0, 12));
  show("7 digits", first.substr(0, 11));
  show("UUID and a digit", first + "0");
  show("UUID and a space", first + " ");
  show("a space and UUID", " " + first);
  show("UUID in capitals", "GPU-" + upper(first.substr(4)));
  show("gpu- and the digits", "gpu-" + first.substr(4));
  show("MIG- and the digits", "MIG-" + first.substr(4));
  show("MIG-, UUID and instances", "MIG-" + first + "/0/0");
  show("UUID, a comma", first + ",");
  show("UUID, 64", first + ",64");
  show("UUID, 0", first + ",0");
  show("0, UUID", "0," + first);
  show("UUID twice", first + "," + first);
  show("UUID and its beginning", first + "," + first.substr(0, 12));
  show("UUID, an unknown one", first + ",GPU-00000000-0000-0000-0000-000000000000");
  show("UUID, an unknown one, UUID", first + ",GPU-00000000-0000-0000-0000-000000000000," + first);
}

// ---- CUDA_MODULE_LOADING -----------------------------------------------------------------------

const char kPtx[] = R"(
.version 7.0
.target sm_52
.address_size 64
.visible .entry first() { ret; }
.visible .entry second() { ret; }
)";

std::string state_of(CUfunction function) {
  CUfunctionLoadingState state{};
  const CUresult result = cuFuncIsLoaded(&state, function);
  if (result != CUDA_SUCCESS) return std::string(" ") + name_of(result);
  return state == CU_FUNCTION_LOADING_STATE_LOADED ? " loaded" : " unloaded";
}

std::string loading() {
  CUmoduleLoadingMode mode{};
  std::string text = name_of(cuModuleGetLoadingMode(&mode));
  CU(cuInit(0));
  CU(cuModuleGetLoadingMode(&mode));
  text += mode == CU_MODULE_EAGER_LOADING ? " eager;" : " lazy;";
  CUdevice device;
  CUcontext context;
  CUmodule module;
  CUlibrary library;
  CUfunction function;
  CUkernel kernel;
  CU(cuDeviceGet(&device, 0));
  CU(cuDevicePrimaryCtxRetain(&context, device));
  CU(cuCtxSetCurrent(context));
  CU(cuModuleLoadData(&module, kPtx));
  CU(cuModuleGetFunction(&function, module, "first"));
  text += state_of(function);
  CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  text += state_of(function) + ";";
  CU(cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CU(cuLibraryGetKernel(&kernel, library, "first"));
  text += state_of(reinterpret_cast<CUfunction>(kernel));
  CU(cuKernelGetFunction(&function, kernel));
  text += state_of(function);
  CU(cuFuncLoad(function));
  text += state_of(function);
  CU(cuCtxSynchronize());
  return text;
}

void module_loading() {
  for (const char* mode : {"", "LAZY", "EAGER", "DEFAULT", "eager", "1"}) {
    const std::string told = in_child([=]() -> std::string {
      unsetenv("CUDA_MODULE_LOADING");
      if (*mode) setenv("CUDA_MODULE_LOADING", mode, 1);
      return loading();
    });
    std::printf("%-36s %s\n", *mode ? mode : "not set", told.c_str());
  }
}

}  // namespace

int main() {
  std::puts("CUDA_VISIBLE_DEVICES");
  visible_devices();
  std::puts("CUDA_MODULE_LOADING");
  module_loading();
}

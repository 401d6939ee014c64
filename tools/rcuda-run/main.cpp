// rcuda-run: starts a program with the client library preloaded and the remote GPUs selected.
//
//   rcuda-run --devices node1:0,node2:0 -- ./app arguments
//
// Sets LD_PRELOAD, RCUDA_DEVICES and the variables of its other options, puts the folder with
// libcuda.so first in LD_LIBRARY_PATH, for programs that search it there, and executes the program.

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <unistd.h>

#include "common/transport/media.h"

namespace {

namespace fs = std::filesystem;

// The client library, relative to this binary: in a build folder and in an installed tree.
fs::path find_library() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* candidate : {"../lib/librcuda.so", "../lib64/librcuda.so",
                                "../lib/x86_64-linux-gnu/librcuda.so", "librcuda.so"}) {
    const fs::path library = fs::weakly_canonical(self / candidate, error);
    if (!error && fs::exists(library, error)) return library;
  }
  return {};
}

std::string value_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value ? value : "";
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Runs a CUDA program on remote GPUs: rcuda-run [OPTIONS] -- PROGRAM [ARGUMENTS]");
  std::string devices, transport, wait, log, trace, library;
  bool synchronous = false;
  app.add_option("-d,--devices", devices, "the pool, host[@port]:gpu,... (default: RCUDA_DEVICES)");
  std::vector<std::string> transports = {"auto"};
  for (const auto& medium : rcuda::transport::media()) transports.push_back(medium.name());
  app.add_option("-t,--transport", transport, "auto, " + rcuda::transport::medium_names())
      ->check(CLI::IsMember(transports));
  app.add_option("--wait", wait,
                 "how long to wait for a turn at a busy server, such as 60s (RCUDA_WAIT)");
  app.add_option("--log", log,
                 "trace, debug, info, warn, error or off; LEVEL:FILE writes to a file");
  app.add_option("--trace", trace,
                 "write a timeline of the calls for Perfetto; %p in the name is the process's id");
  app.add_flag("--sync", synchronous, "make every call a round trip, for debugging");
  app.add_option("--library", library,
                 "librcuda.so to preload, if not the one next to this program");
  // The program and its arguments are not a positional option, because CLI11 splits arguments in
  // brackets.
  app.prefix_command();
  CLI11_PARSE(app, argc, argv);
  std::vector<std::string> program = app.remaining();
  if (!program.empty() && program[0] == "--") {
    program.erase(program.begin());
  } else if (!program.empty() && program[0].starts_with("-")) {
    std::cerr << "rcuda-run: unknown option " << program[0] << "; see --help\n";
    return 2;
  }
  if (program.empty()) {
    std::cerr << "rcuda-run: no program is named; write it and its arguments after --\n";
    return 2;
  }

  std::error_code error;
  const fs::path client = library.empty() ? find_library() : fs::absolute(library, error);
  if (client.empty() || !fs::exists(client, error)) {
    std::cerr
        << "rcuda-run: librcuda.so was not found next to this program; name it with --library\n";
    return 127;
  }
  if (!devices.empty()) setenv("RCUDA_DEVICES", devices.c_str(), 1);
  if (!std::getenv("RCUDA_DEVICES") && !std::getenv("RCUDA_DEVICE_COUNT")) {
    std::cerr
        << "rcuda-run: no GPUs are named; write --devices host:gpu,... or set RCUDA_DEVICES\n";
    return 2;
  }
  if (!transport.empty()) setenv("RCUDA_TRANSPORT", transport.c_str(), 1);
  if (!wait.empty()) setenv("RCUDA_WAIT", wait.c_str(), 1);
  if (!log.empty()) setenv("RCUDA_LOG", log.c_str(), 1);
  if (!trace.empty()) setenv("RCUDA_TRACE", trace.c_str(), 1);
  if (synchronous) setenv("RCUDA_SYNC", "1", 1);
  // After the user's preloads: a sanitizer's runtime must come first.
  const std::string preloads = value_of("LD_PRELOAD");
  setenv("LD_PRELOAD",
         (preloads.empty() ? client.string() : preloads + ":" + client.string()).c_str(), 1);
  if (const fs::path links = client.parent_path() / "rcuda"; fs::exists(links, error)) {
    const std::string folders = value_of("LD_LIBRARY_PATH");
    setenv("LD_LIBRARY_PATH",
           (folders.empty() ? links.string() : links.string() + ":" + folders).c_str(), 1);
  }

  std::vector<char*> arguments;
  for (std::string& argument : program) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  std::cerr << "rcuda-run: cannot run " << program[0] << ": " << std::strerror(errno) << "\n";
  return errno == ENOENT ? 127 : 126;
}

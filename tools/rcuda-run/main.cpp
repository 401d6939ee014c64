// rcuda-run: starts a program with the client library preloaded and the remote GPUs selected.
//
//   rcuda-run --devices node1:0,node2:0 -- ./app arguments
//   rcuda-run --demo
//   rcuda-run --devices node1:0,node2:0 --cdi > /etc/cdi/rcuda.json
//
// Sets LD_PRELOAD, RCUDA_DEVICES, ASAN_OPTIONS and the variables of its options, and executes the
// program. Also puts the folder with libcuda.so first in LD_LIBRARY_PATH, for programs that look
// for libcuda.so there.
// --demo: the program is tools/demo; if no GPUs are named, it runs on a server that rcuda-run
// starts on this machine.
// --cdi: prints a specification with which container tools do the same for a container (cdi.h), and
// executes nothing.

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/pool/device_list.h"
#include "common/base/units.h"
#include "common/base/version.h"
#include "common/config/command_line.h"
#include "common/transport/media.h"
#include "tools/rcuda-run/cdi.h"
#include "tools/rcuda-run/demo_server.h"

namespace rcuda::tools {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string devices, transport, wait, log, trace, library;
  bool synchronous = false;
  bool demo = false;
  bool cdi = false;
  std::vector<std::string> program;
};

fs::path own_folder() {
  std::error_code error;
  const fs::path own = fs::read_symlink("/proc/self/exe", error);
  if (!error) return own.parent_path();
  // Without /proc, uses the path with which this program was executed.
  return fs::weakly_canonical(reinterpret_cast<const char*>(::getauxval(AT_EXECFN))).parent_path();
}

// Finds the client library, relative to this binary: in a build folder, in an installed tree, or in
// a wheel. A wheel has no links, so the file there has the name that programs search for.
fs::path find_library() {
  std::error_code error;
  for (const char* candidate :
       {"../lib/librcuda.so", "../lib64/librcuda.so", "../lib/x86_64-linux-gnu/librcuda.so",
        "../lib/aarch64-linux-gnu/librcuda.so", "librcuda.so", "../lib/rcuda/libcuda.so.1"}) {
    const fs::path library = fs::weakly_canonical(own_folder() / candidate, error);
    if (!error && fs::exists(library, error)) return library;
  }
  return {};
}

// The folder with the libraries under their usual names, and with the demonstration.
fs::path names_folder(const fs::path& client) {
  const fs::path folder = client.parent_path();
  return client.filename() == "libcuda.so.1" ? folder : folder / "rcuda";
}

std::string value_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value ? value : "";
}

int fail(const std::string& message, int status) {
  std::cerr << "rcuda-run: " << message << "\n";
  return status;
}

// Returns the exit status if the arguments do not request a run.
std::optional<int> parse(int argc, char** argv, Options* options) {
  config::CommandLine line(
      "rcuda-run", "Runs a CUDA program on remote GPUs: rcuda-run [OPTIONS] -- PROGRAM [ARGUMENTS]",
      version_of("rcuda-run"));
  line.option("-d,--devices", &options->devices,
              "the pool, host[@port]:gpu,... (default: RCUDA_DEVICES)");
  std::vector<std::string> transports = {"auto"};
  for (const auto& medium : transport::media()) transports.push_back(medium.name());
  line.option("-t,--transport", &options->transport, "auto, " + transport::medium_names())
      .one_of(transports);
  line.option("--wait", &options->wait,
              "how long to wait for a server that is busy, restarts or drains, such as 60s "
              "(RCUDA_WAIT)")
      .check([](const std::string& text) {
        if (parse_time(text)) return Status();
        return Status(Code::kInvalidArgument,
                      "\"" + text + "\" is not a time: write for example 60s or 10m");
      });
  line.option("--log", &options->log,
              "trace, debug, info, warn, error or off; LEVEL:FILE writes to a file");
  line.option("--trace", &options->trace,
              "write a timeline of the calls for Perfetto; %p in the name becomes the process id");
  line.flag("--sync", &options->synchronous, "make every call a round trip, for debugging");
  line.option("--library", &options->library,
              "the librcuda.so to preload (default: the one next to this program)");
  line.flag("--demo", &options->demo,
            "run a small program that comes with rcuda; if no GPUs are named, start a server");
  line.flag("--cdi", &options->cdi,
            "print a CDI specification, with which podman, Docker and others give containers these "
            "GPUs: rcuda/gpu=all, rcuda/gpu=0, ...");
  // The program and its arguments are not a positional option, because CLI11 splits arguments in
  // brackets.
  line.leave_rest();
  if (const std::optional<int> status = line.parse(argc, argv)) return status;
  std::vector<std::string>& program = options->program;
  program = line.rest();
  if (!program.empty() && program[0] == "--") {
    program.erase(program.begin());
  } else if (!program.empty() && program[0].starts_with("-")) {
    return fail(line.unknown_option(program[0]) + "; rcuda-run --help lists the options", 2);
  }
  if ((options->demo || options->cdi) && !program.empty()) {
    return fail(options->demo ? "--demo runs its own program; name no other program"
                              : "--cdi only prints a specification; name no program",
                2);
  }
  if (!options->demo && !options->cdi && program.empty()) {
    return fail("no program is named; write it and its arguments after --", 2);
  }
  return std::nullopt;
}

bool has_pool() {
  const auto pool = client::devices_from([](const char* name) { return std::getenv(name); });
  return pool.status().code() != Code::kNotFound;
}

void set_settings(const Options& options) {
  if (!options.transport.empty()) setenv("RCUDA_TRANSPORT", options.transport.c_str(), 1);
  if (!options.wait.empty()) setenv("RCUDA_WAIT", options.wait.c_str(), 1);
  if (!options.log.empty()) setenv("RCUDA_LOG", options.log.c_str(), 1);
  if (!options.trace.empty()) setenv("RCUDA_TRACE", options.trace.c_str(), 1);
  if (options.synchronous) setenv("RCUDA_SYNC", "1", 1);
}

void set_libraries(const fs::path& client) {
  // Appends to the user's preloads, because a sanitizer's runtime must come first. NCCL is
  // preloaded as well, because PyTorch looks for it in a folder of its own (RPATH) before it looks
  // in LD_LIBRARY_PATH.
  std::error_code error;
  std::string preloads = value_of("LD_PRELOAD");
  preloads += (preloads.empty() ? "" : ":") + client.string();
  if (const fs::path nccl = names_folder(client) / kNcclName; fs::exists(nccl, error)) {
    preloads += ":" + nccl.string();
  }
  setenv("LD_PRELOAD", preloads.c_str(), 1);
  // By default AddressSanitizer's runtime ends a program if another library precedes it. The client
  // library sets the same option, by a function that a program may replace (docs/sanitizers.md).
  const std::string asan = value_of("ASAN_OPTIONS");
  setenv("ASAN_OPTIONS", ("verify_asan_link_order=0" + (asan.empty() ? "" : ":" + asan)).c_str(),
         1);
  if (const fs::path links = names_folder(client); fs::exists(links, error)) {
    const std::string folders = value_of("LD_LIBRARY_PATH");
    setenv("LD_LIBRARY_PATH",
           (folders.empty() ? links.string() : links.string() + ":" + folders).c_str(), 1);
  }
}

// Returns the exit status if the program cannot be executed.
int execute(std::vector<std::string> program) {
  std::vector<char*> arguments;
  for (std::string& argument : program) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  const int error = errno;
  return fail("cannot run " + program[0] + ": " + std::strerror(error),
              error == ENOENT ? 127 : 126);
}

int print_cdi(const fs::path& client) {
  const Result<std::string> text = cdi_specification(client, names_folder(client));
  if (!text.ok()) return fail(text.status().context(), 2);
  std::cout << *text << std::flush;
  return std::cout ? 0 : fail("cannot write the specification to stdout", 1);
}

// Prints the lines of the server's log about ended sessions.
void print_sessions(const std::string& log) {
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    const size_t place = line.find("session of ");
    if (place != std::string::npos && line.find(" over after ") != std::string::npos) {
      std::cout << "demo: the server reports: " << line.substr(place) << std::endl;
    }
  }
}

// Starts a server, runs the program on it, and stops the server.
int run_on_own_server(const Options& options, const fs::path& client) {
  const fs::path binary = own_folder() / "rcuda-server";
  std::error_code error;
  if (!fs::exists(binary, error)) {
    return fail("no GPUs are named, and there is no " + binary.string() +
                    " that could serve the demonstration; write --devices host:gpu,..., or install "
                    "rcuda-server and, where there is no GPU, rcuda-softgpu",
                2);
  }
  auto server = DemoServer::start(binary.string());
  if (!server.ok()) return fail(server.status().context(), 1);
  const std::string pool = "127.0.0.1@" + server->port() + ":0";
  std::cout << "demo: started " << binary.string() << " on port " << server->port()
            << "\ndemo: rcuda-run --devices " << pool << " -- " << options.program[0] << std::endl;
  const pid_t child = ::fork();
  if (child < 0) return fail(std::string("cannot start the program: ") + std::strerror(errno), 1);
  if (child == 0) {
    setenv("RCUDA_DEVICES", pool.c_str(), 1);
    set_settings(options);
    set_libraries(client);
    ::_exit(execute(options.program));
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  server->stop();
  print_sessions(server->log());
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
  std::cerr << server->log();
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int run(int argc, char** argv) {
  Options options;
  if (const std::optional<int> status = parse(argc, argv, &options)) return *status;
  std::error_code error;
  const fs::path client =
      options.library.empty() ? find_library() : fs::absolute(options.library, error);
  if (client.empty() || !fs::exists(client, error)) {
    return fail(options.library.empty()
                    ? "librcuda.so was not found next to this program; name it with --library"
                    : "--library names " + options.library + ", which does not exist",
                127);
  }
  if (!options.cdi && client.string().find_first_of(" :") != std::string::npos) {
    return fail("LD_PRELOAD cannot name " + client.string() +
                    ", because the path has a space or a colon; move rcuda, or name a link to it "
                    "with --library",
                2);
  }
  if (options.demo) options.program = {(names_folder(client) / "demo").string()};
  if (!options.devices.empty()) setenv("RCUDA_DEVICES", options.devices.c_str(), 1);
  if (!has_pool()) {
    if (options.demo) return run_on_own_server(options, client);
    // No program is executed, so no client library reports unknown variables.
    config::report_unknown_variables("rcuda-run");
    return fail("no GPUs are named; write --devices host:gpu,... or set RCUDA_DEVICES", 2);
  }
  set_settings(options);
  if (options.cdi) {
    config::report_unknown_variables("rcuda-run");
    return print_cdi(client);
  }
  set_libraries(client);
  return execute(options.program);
}

}  // namespace
}  // namespace rcuda::tools

int main(int argc, char** argv) { return rcuda::tools::run(argc, argv); }

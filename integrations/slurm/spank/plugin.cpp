// spank_rcuda.so: the options --rcuda, --rcuda-mem and --rcuda-bind of srun, sbatch and salloc, and
// the environment of a job's tasks (docs/slurm.md).
//
//   plugstack.conf:  required /usr/lib/rcuda/lib/slurm/spank_rcuda.so [library=/path/librcuda.so]
//
// In srun, sbatch and salloc, the plug-in checks the options. job_submit.lua of the controller
// turns the options into licences. The controller's prolog (rcuda-slurm) takes the devices and
// writes them into the job's AdminComment. In slurmstepd, the plug-in sets the variables of each
// task. For a batch script, slurmstepd queries the controller for the AdminComment. Otherwise srun
// queries the controller, and passes the answer on to all nodes. Later steps of a job find the
// answer in their environment.
//
// Threads: those of Slurm, which calls one function at a time. Blocking: the query to the
// controller, at most MessageTimeout. Errors: one line for the user, and the task does not start.
// The start of the step does not fail, because Slurm drains a node on which a batch job cannot
// start, and the node is not at fault.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>

#include <dlfcn.h>

#include "integrations/slurm/spank/request.h"

extern "C" {
#include <slurm/slurm.h>
#include <slurm/spank.h>
}

extern "C" {
// Slurm loads only plug-ins that define these names.
[[gnu::visibility("default")]] extern const char plugin_name[] = "rcuda";
[[gnu::visibility("default")]] extern const char plugin_type[] = "spank";
[[gnu::visibility("default")]] extern const unsigned int plugin_version = SLURM_VERSION_NUMBER;
[[gnu::visibility("default")]] extern const unsigned int spank_plugin_version = 1;
#define RCUDA_SPANK [[gnu::visibility("default")]]
RCUDA_SPANK int slurm_spank_init(spank_t spank, int count, char** arguments);
RCUDA_SPANK int slurm_spank_init_post_opt(spank_t spank, int count, char** arguments);
RCUDA_SPANK int slurm_spank_local_user_init(spank_t spank, int count, char** arguments);
RCUDA_SPANK int slurm_spank_user_init(spank_t spank, int count, char** arguments);
RCUDA_SPANK int slurm_spank_task_init(spank_t spank, int count, char** arguments);
}

namespace rcuda::slurm {
namespace {

// Variables in the environment of a job's later steps: the job's number, and the devices and the
// lease that it was given (Grant::text).
constexpr const char* kJobVariable = "RCUDA_SLURM_JOB";
constexpr const char* kGrantVariable = "RCUDA_SLURM_GRANT";
constexpr size_t kMostText = 1 << 20;

struct Options {
  std::optional<Request> request;
  std::optional<uint64_t> memory_mib;
  std::optional<Bind> bind;
} options;
std::optional<Grant> grant;
std::string refusal;  // why the step's tasks do not start

int fail(const std::string& message) {
  slurm_spank_log("rcuda: %s", message.c_str());
  return -1;
}

template <typename Value>
int keep(std::optional<Value> value, const std::string& error, std::optional<Value>* option) {
  if (!value) return fail(error);
  *option = std::move(value);
  return 0;
}

int take_request(int, const char* text, int) {
  std::string error;
  return keep(parse_request(text ? text : "", &error), error, &options.request);
}

int take_memory(int, const char* text, int) {
  std::string error;
  return keep(parse_memory(text ? text : "", &error), error, &options.memory_mib);
}

int take_bind(int, const char* text, int) {
  std::string error;
  return keep(parse_bind(text ? text : "", &error), error, &options.bind);
}

template <size_t kBytes>
char* text(const char (&constant)[kBytes]) {
  return const_cast<char*>(constant);  // Slurm's structure has char*, but Slurm only reads the text
}

spank_option option_table[] = {
    {text("rcuda"), text("N[:type]"),
     text("number of the job's remote GPUs, of any type or of one type of the pool"), 1, 0,
     take_request},
    {text("rcuda-mem"), text("size"), text("memory that each remote GPU must have, such as 20G"), 1,
     0, take_memory},
    {text("rcuda-bind"), text("node|task|job"),
     text("how a step divides the job's remote GPUs (default: node)"), 1, 0, take_bind},
};

std::string environment(spank_t spank, const char* name) {
  std::string value(kMostText, '\0');
  if (spank_getenv(spank, name, value.data(), static_cast<int>(value.size())) != ESPANK_SUCCESS) {
    return {};
  }
  value.resize(std::strlen(value.c_str()));
  return value;
}

void set(spank_t spank, const char* name, const std::string& value) {
  spank_setenv(spank, name, value.c_str(), 1);
}

// Queries the controller for the job's AdminComment.
std::optional<Grant> ask_controller(uint32_t job, std::string* error) {
  job_info_msg_t* answer = nullptr;
  if (slurm_load_job(&answer, job, SHOW_DETAIL) != SLURM_SUCCESS) {
    *error =
        std::string("cannot query Slurm's controller for the job's GPUs: ") + slurm_strerror(errno);
    return std::nullopt;
  }
  std::optional<Grant> found;
  for (uint32_t i = 0; i < answer->record_count && !found; ++i) {
    const job_info_t& info = answer->job_array[i];
    if (info.job_id == job && info.admin_comment) found = parse_grant(info.admin_comment);
  }
  slurm_free_job_info_msg(answer);
  if (!found) {
    *error =
        "the job has no remote GPUs: submit the job with --rcuda=N (sbatch, salloc or srun); if "
        "the job was submitted with --rcuda, make rcuda-slurmctld the PrologSlurmctld of "
        "slurm.conf";
  }
  return found;
}

// Returns the path of librcuda.so: the path in plugstack.conf, or else the library in the tree
// where this plug-in is installed.
std::string library_path(int count, char** arguments) {
  constexpr std::string_view kOption = "library=";
  for (int i = 0; i < count; ++i) {
    const std::string_view argument = arguments[i];
    if (argument.starts_with(kOption)) return std::string(argument.substr(kOption.size()));
  }
  Dl_info own{};
  if (::dladdr(&options, &own) == 0 || !own.dli_fname) return {};
  std::error_code error;
  const auto folder = std::filesystem::canonical(own.dli_fname, error).parent_path();
  return (folder.parent_path() / "librcuda.so").string();
}

// Sets LD_PRELOAD and LD_LIBRARY_PATH, as rcuda-run does.
void set_libraries(spank_t spank, const std::string& library) {
  const std::string links = (std::filesystem::path(library).parent_path() / "rcuda").string();
  const std::string nccl = links + "/libnccl.so.2";
  std::error_code error;
  const std::string own = std::filesystem::exists(nccl, error) ? library + ":" + nccl : library;
  const std::string preloads = environment(spank, "LD_PRELOAD");
  if (preloads.find(library) == std::string::npos) {
    set(spank, "LD_PRELOAD", preloads.empty() ? own : preloads + ":" + own);
  }
  const std::string folders = environment(spank, "LD_LIBRARY_PATH");
  if (folders != links && !folders.starts_with(links + ":")) {
    set(spank, "LD_LIBRARY_PATH", folders.empty() ? links : links + ":" + folders);
  }
}

// Whether this is the script of a batch job or the shell of salloc. The script and the shell see
// all devices of the job.
bool is_whole_job(spank_t spank) {
  uint32_t step = 0;
  spank_get_item(spank, S_JOB_STEPID, &step);
  return step == SLURM_BATCH_SCRIPT || step == SLURM_INTERACTIVE_STEP;
}

bool is_relevant(spank_t spank) {
  uint32_t step = 0;
  spank_get_item(spank, S_JOB_STEPID, &step);
  return options.request && step != SLURM_EXTERN_CONT;
}

}  // namespace
}  // namespace rcuda::slurm

using namespace rcuda::slurm;

int slurm_spank_init(spank_t spank, int, char**) {
  for (spank_option& option : option_table) {
    if (spank_option_register(spank, &option) != ESPANK_SUCCESS) return -1;
  }
  return 0;
}

int slurm_spank_init_post_opt(spank_t, int, char**) {
  if (options.memory_mib && !options.request) {
    return fail("--rcuda-mem needs --rcuda=N: write how many GPUs the job needs");
  }
  return 0;
}

// Slurm calls this in srun when srun has an allocation. Queries the controller once for all nodes
// of the step. srun passes its environment, with the variables that this function sets, to the
// tasks.
int slurm_spank_local_user_init(spank_t spank, int, char**) {
  uint32_t job = 0;
  if (!options.request || spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS) return 0;
  const char* const known = std::getenv(kJobVariable);
  if (known && known == std::to_string(job)) return 0;
  std::string error;
  const std::optional<Grant> found = ask_controller(job, &error);
  if (!found) return 0;  // the nodes query again, and report the error
  ::setenv(kJobVariable, std::to_string(job).c_str(), 1);
  ::setenv(kGrantVariable, found->text.c_str(), 1);
  return 0;
}

// Slurm calls this in slurmstepd, as the user, before it makes the tasks.
int slurm_spank_user_init(spank_t spank, int, char**) {
  if (!is_relevant(spank)) return 0;
  uint32_t job = 0;
  spank_get_item(spank, S_JOB_ID, &job);
  if (environment(spank, kJobVariable) == std::to_string(job)) {
    grant = parse_grant(environment(spank, kGrantVariable));
  }
  if (!grant) grant = ask_controller(job, &refusal);
  if (grant && options.request->count != grant->count) {
    refusal = "the step asks for " + std::to_string(options.request->count) +
              " remote GPUs, and the job has " + std::to_string(grant->count) +
              ": leave --rcuda out for steps, and let --rcuda-bind divide the job's GPUs";
  }
  return 0;
}

// Slurm calls this as the user, in the process of a task.
int slurm_spank_task_init(spank_t spank, int count, char** arguments) {
  if (!refusal.empty()) return fail(refusal);
  if (!grant) return 0;
  uint32_t job = 0;
  Place place;
  spank_get_item(spank, S_JOB_ID, &job);
  spank_get_item(spank, S_JOB_NODEID, &place.node);
  spank_get_item(spank, S_JOB_NNODES, &place.nodes);
  spank_get_item(spank, S_TASK_GLOBAL_ID, &place.task);
  spank_get_item(spank, S_JOB_TOTAL_TASK_COUNT, &place.tasks);
  const Bind bind = is_whole_job(spank) ? Bind::kJob : options.bind.value_or(Bind::kNode);
  set(spank, kJobVariable, std::to_string(job));
  set(spank, kGrantVariable, grant->text);
  set(spank, "RCUDA_DEVICES", grant->devices);
  set(spank, "RCUDA_LEASE", grant->lease);
  set(spank, "CUDA_VISIBLE_DEVICES", visible_devices(share(grant->count, bind, place)));
  const std::string library = library_path(count, arguments);
  if (library.empty())
    return fail("librcuda.so was not found: name it in plugstack.conf (library=)");
  set_libraries(spank, library);
  return 0;
}

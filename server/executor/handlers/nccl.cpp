// Handlers of NCCL's calls. server/executor/nccl/nccl.h says on which threads NCCL's functions run.
#include "server/executor/nccl/nccl.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/server_commands.h"
#include "common/base/first_report.h"
#include "common/base/log.h"
#include "common/cuda/return_if_error.h"
#include "server/executor/answers/answers.h"
#include "server/executor/core/custom.h"
#include "server/executor/objects/objects.h"
#include "server/executor/streams/completions.h"

namespace rcuda::server {
namespace {

using nccl::Verb;

// The most unique ids of one call; more make the command malformed.
constexpr size_t kMostIds = 4096;

std::vector<std::string> lines_of(std::span<const std::byte> bytes) {
  std::vector<std::string> lines(1);
  for (const std::byte byte : bytes) {
    if (byte == std::byte{0}) {
      lines.emplace_back();
    } else {
      lines.back().push_back(static_cast<char>(byte));
    }
  }
  lines.pop_back();
  return lines;
}

bool read_text(BodyReader& in, size_t bytes, std::string* text) {
  std::span<const std::byte> read;
  if (bytes > nccl::kMostNameBytes || !in.bytes(bytes, &read)) return false;
  text->assign(reinterpret_cast<const char*>(read.data()), read.size());
  return true;
}

// Reads as many whole elements as the bytes hold.
template <typename Element>
std::vector<Element> elements_of(std::span<const std::byte> bytes) {
  std::vector<Element> elements(bytes.size() / sizeof(Element));
  if (!elements.empty()) {
    std::memcpy(elements.data(), bytes.data(), elements.size() * sizeof(Element));
  }
  return elements;
}

// Reads the tail of a call that creates a communicator.
bool read_creation(std::span<const std::byte> tail, NcclStep* step) {
  BodyReader in(tail);
  nccl::CreateTail create;
  std::span<const std::byte> list;
  if (!in.read(&create) || !in.bytes(create.list_bytes, &list) ||
      !read_text(in, create.net_name_bytes, &step->net_name) ||
      !read_text(in, create.comm_name_bytes, &step->comm_name)) {
    return false;
  }
  step->config = create.config;
  step->config.size = sizeof step->config;
  step->has_config = create.has_config != 0;
  const Verb verb = step->call.verb;
  if (verb == Verb::kInit || verb == Verb::kGrow) {
    step->ids = elements_of<nccl::UniqueId>(list);
    if (step->ids.size() > kMostIds) return false;
    if (verb == Verb::kInit && (step->ids.empty() || !step->has_config)) return false;
  } else if (verb == Verb::kShrink) {
    step->excluded = elements_of<int>(list);
  }
  return true;
}

bool is_blocking(const NcclStep& step) {
  if (step.has_config) return step.config.blocking != 0;
  return !step.communicator || step.communicator->blocking;
}

// Reads the tail of a call that queues work in a stream. Sets *malformed for bytes that no correct
// client sends.
CUresult read_operation(NcclServices& services, std::span<const std::byte> tail, NcclStep* step,
                        bool* malformed) {
  BodyReader in(tail);
  const Verb verb = step->call.verb;
  if (verb == Verb::kPutSignal || verb == Verb::kSignal) {
    *malformed = !in.read(&step->put);
  } else if (verb == Verb::kWaitSignal) {
    step->waits = elements_of<nccl::SignalWait>(tail);
  } else if (!tail.empty()) {
    nccl::OperationTail more;
    *malformed = !in.read(&more) || !read_text(in, more.algorithm_bytes, &step->algorithms);
    if (*malformed) return CUDA_SUCCESS;
    step->has_operation_config = true;
    step->operation_config = more.config;
    step->operation_config.size = sizeof step->operation_config;
    step->operation_config.extensions = nullptr;
    CUevent event = nullptr;
    if (more.event) {
      RCUDA_RETURN_IF_CUDA_ERROR(services.completions.event_for_command(more.event, &event));
    }
    step->operation_config.launch_event = event;
  }
  return CUDA_SUCCESS;
}

// Reads one call. Returns an error if an id of the call names no object. Sets *malformed for bytes
// that no correct client sends.
CUresult read_step(NcclServices& services, BodyReader& in, NcclStep* step, bool* malformed) {
  std::span<const std::byte> tail, padding;
  *malformed = !in.read(&step->call) || !in.bytes(step->call.tail_bytes, &tail) ||
               !in.bytes(-step->call.tail_bytes & 7u, &padding);
  if (*malformed) return CUDA_SUCCESS;
  const nccl::Call& call = step->call;
  ContextState* const context = services.objects.find_context(call.context);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  step->context = context->handle;
  if (call.communicator) step->communicator = services.nccl.find(call.communicator);
  if (nccl::is_operation(call.verb)) {
    RCUDA_RETURN_IF_CUDA_ERROR(services.objects.make_current(call.context));
    SessionStream stream;
    RCUDA_RETURN_IF_CUDA_ERROR(services.objects.use_stream(call.stream, &stream));
    step->stream = stream.handle;
    return read_operation(services, tail, step, malformed);
  }
  if (nccl::creates(call.verb)) {
    *malformed = !read_creation(tail, step);
  } else if (call.verb == Verb::kCreateDevice) {
    step->device = DeviceCommunicator::read(tail);
    *malformed = !step->device;
  } else if (call.verb == Verb::kPreMulSum) {
    std::memcpy(step->scalar, tail.data(), std::min(tail.size(), sizeof step->scalar));
  }
  return CUDA_SUCCESS;
}

HandlerResult read_steps(NcclServices& services, std::span<const std::byte> bytes, uint32_t count,
                         std::vector<NcclStep>* steps) {
  if (count > bytes.size() / sizeof(nccl::Call)) return kMalformed;
  BodyReader in(bytes);
  for (uint32_t i = 0; i < count; ++i) {
    bool malformed = false;
    const CUresult result = read_step(services, in, &steps->emplace_back(), &malformed);
    if (malformed) return kMalformed;
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

// Registers the ids of new communicators.
CUresult create_communicators(NcclServices& services, NcclBatch& batch) {
  for (NcclStep& step : batch.steps) {
    if (!nccl::creates(step.call.verb)) continue;
    step.created = services.nccl.create(step, is_blocking(step));
    if (!step.created) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

void report_refusal(NcclServices& services, const std::string& refusal) {
  if (refusal.empty() || !first_report("nccl: " + refusal)) return;
  RCUDA_WARN("NCCL (%s): %s", services.nccl.library()->path.c_str(), refusal.c_str());
  (void)services.answers.events().output(true, "rcuda: " + refusal + "\n");
}

}  // namespace

HandlerResult nccl_open(NcclServices& services, const Command& command,
                        const wire::NcclOpenBody& body, std::vector<std::byte>*) {
  BodyReader in(command.tail);
  std::span<const std::byte> variables, secret;
  if (!in.bytes(body.variable_bytes, &variables) || body.psk_bytes > nccl::kMostPskBytes ||
      !in.bytes(body.psk_bytes, &secret)) {
    return kMalformed;
  }
  std::optional<std::string> psk;
  if (body.sets_encryption) {
    psk.emplace(reinterpret_cast<const char*>(secret.data()), secret.size());
  }
  const bool started = services.nccl.open(
      lines_of(variables), std::move(psk), body.must_encrypt != 0,
      [&services, target = command.target](const Result<const NcclLibrary*>& library,
                                           int encryption) {
        if (library.ok() && encryption != nccl::kSuccess &&
            !(*library)->functions.ncclSetEncryption) {
          report_refusal(services, lacking_text("ncclSetEncryption"));
        }
        std::vector<std::byte> reply;
        append(&reply, int32_t{library.ok() ? (*library)->version : 0});
        append(&reply, static_cast<uint32_t>(services.nccl.operations_wait()));
        append(&reply, int32_t{encryption});
        append(&reply, uint32_t{0});
        const std::string text = library.ok() ? (*library)->path : library.status().context();
        for (const char letter : text.substr(0, nccl::kMostNameBytes)) append(&reply, letter);
        services.answers.reply(target, CUDA_SUCCESS, reply);
      });
  return started ? kDeferred : HandlerResult(CUDA_ERROR_OPERATING_SYSTEM);
}

namespace {

// Writes the mark into the last bytes of the id, unless NCCL itself uses these bytes.
void mark_id(nccl::UniqueId* id, const nccl::IdMark& mark) {
  char* const end = id->bytes + nccl::kIdMarkOffset;
  if (std::any_of(end, id->bytes + sizeof id->bytes, [](char byte) { return byte != 0; })) return;
  std::memcpy(end, &mark, sizeof mark);
}

}  // namespace

HandlerResult nccl_unique_id(NcclServices& services, const Command& command,
                             std::vector<std::byte>*) {
  const NcclLibrary* const library = services.nccl.library();
  const ContextState* const context = services.objects.current_context();
  if (!library || !context) return CUDA_ERROR_INVALID_VALUE;
  const auto made = std::make_shared<std::pair<int, nccl::UniqueId>>();
  const bool started = services.nccl.run(
      context->handle,
      [library, made] {
        made->first = library->functions.ncclGetUniqueId(&made->second);
        mark_id(&made->second, {.version = library->version});
      },
      [&answers = services.answers, target = command.target, made] {
        std::vector<std::byte> reply;
        append(&reply, int32_t{made->first});
        append(&reply, uint32_t{0});
        append(&reply, made->second);
        answers.reply(target, CUDA_SUCCESS, reply);
      });
  return started ? kDeferred : HandlerResult(CUDA_ERROR_OPERATING_SYSTEM);
}

namespace {

void report_apart(NcclServices& services, const NcclBatch& batch) {
  const std::string& line = services.nccl.apart();
  if (line.empty()) return;
  const bool has_others = std::ranges::any_of(batch.steps, [&](const NcclStep& step) {
    return step.call.verb == Verb::kInit && step.call.count > batch.steps.size();
  });
  if (!has_others || !first_report("nccl apart")) return;
  (void)services.answers.events().output(true, "rcuda: " + line + "\n");
}

void check_ids(NcclServices& services, NcclBatch& batch) {
  for (const NcclStep& step : batch.steps) {
    for (const nccl::UniqueId& id : step.ids) {
      if (batch.refusal.empty()) batch.refusal = services.nccl.check_id(id);
    }
  }
}

// Refuses requirements of a device communicator that this NCCL would read in the wrong layout.
void check_requirements(NcclServices& services, NcclBatch& batch) {
  constexpr int kVersionedFrom = 22900;
  const int version = services.nccl.library()->version;
  const auto is_too_new = [&](const NcclStep& step) {
    return step.device && step.device->is_versioned() && version < kVersionedFrom;
  };
  if (!batch.refusal.empty() || !std::ranges::any_of(batch.steps, is_too_new)) return;
  batch.refusal = "the program was compiled for NCCL 2.29 or later, and the server has NCCL " +
                  nccl::version_text(version) + ", whose ncclDevCommCreate takes another struct: " +
                  "install a newer NCCL there, or set `nccl` in its server.toml";
}

}  // namespace

// Returns true if a call creates a communicator or device communicator: NCCL then allocates memory,
// and the driver may wait for the device. Also returns true for malformed calls.
bool nccl_calls_may_wait(NcclServices&, const Command& command, const wire::NcclCallsBody& body) {
  BodyReader in(command.tail);
  nccl::Call call;
  for (uint32_t i = 0; i < body.count && in.read(&call); ++i) {
    std::span<const std::byte> tail;
    const bool allocates = nccl::creates(call.verb) || call.verb == Verb::kCreateDevice;
    if (allocates || !in.bytes((call.tail_bytes + 7u) & ~7u, &tail)) return true;
  }
  return false;
}

HandlerResult nccl_calls(NcclServices& services, const Command& command,
                         const wire::NcclCallsBody& body, std::vector<std::byte>*) {
  if (body.grouped > static_cast<uint32_t>(nccl::Grouping::kSimulated)) return kMalformed;
  auto batch = std::make_shared<NcclBatch>();
  batch->grouping = static_cast<nccl::Grouping>(body.grouped);
  if (body.batch) batch->steps = services.nccl.take_parts(body.batch);
  if (batch->steps.size() + body.count != body.total) return CUDA_ERROR_INVALID_VALUE;
  if (!services.nccl.library()) return CUDA_ERROR_INVALID_VALUE;
  const HandlerResult read = read_steps(services, command.tail, body.count, &batch->steps);
  if (read.malformed || read.result != CUDA_SUCCESS) return read;
  const auto executes = [](const NcclStep& step) { return !nccl::is_operation(step.call.verb); };
  if (batch->grouping == nccl::Grouping::kSimulated &&
      std::ranges::any_of(batch->steps, executes)) {
    return kMalformed;
  }
  if (const CUresult created = create_communicators(services, *batch); created != CUDA_SUCCESS) {
    services.nccl.forget_created(*batch);
    return created;
  }
  check_ids(services, *batch);
  check_requirements(services, *batch);
  report_apart(services, *batch);
  const auto then = [&services, batch, target = command.target](nccl::ResultCode result) {
    report_refusal(services, batch->refusal);
    std::vector<std::byte> reply;
    append(&reply, int32_t{result});
    append(&reply, batch->microseconds);
    for (const NcclStep& step : batch->steps) {
      if (nccl::is_answered(step.call.verb)) append(&reply, step.answer);
    }
    services.answers.reply(target, CUDA_SUCCESS, reply);
  };
  return services.nccl.start(batch, then) ? kDeferred : HandlerResult(CUDA_ERROR_OPERATING_SYSTEM);
}

HandlerResult nccl_part(NcclServices& services, const Command& command,
                        const wire::NcclCallsBody& body) {
  std::vector<NcclStep> steps;
  const HandlerResult read = read_steps(services, command.tail, body.count, &steps);
  if (read.malformed || read.result != CUDA_SUCCESS) return read;
  return services.nccl.keep_part(body.batch, std::move(steps), command.tail.size())
             ? CUDA_SUCCESS
             : CUDA_ERROR_OUT_OF_MEMORY;
}

namespace {

// No call waits for a posted operation, so the communicator keeps the operation's error. The first
// error of a communicator also becomes the session's error.
void note_error(NcclServices& services, const NcclBatch& batch, nccl::ResultCode result) {
  std::vector<NcclCommunicator*> first;
  for (const NcclStep& step : batch.steps) {
    if (step.communicator && step.communicator->posted_error.exchange(result) == 0) {
      first.push_back(step.communicator.get());
    }
  }
  if (first.empty()) return;
  const uint64_t number = services.answers.latch(CUDA_ERROR_UNKNOWN);
  for (NcclCommunicator* const communicator : first) communicator->error_number = number;
  const char* const text = services.nccl.library()->functions.ncclGetErrorString(result);
  RCUDA_WARN("an NCCL operation failed: %s (for details, set NCCL_DEBUG=WARN for the server)",
             text);
  (void)services.answers.events().output(
      true, std::string("rcuda: an NCCL operation failed in the worker: ") + text + "\n");
}

}  // namespace

HandlerResult nccl_post(NcclServices& services, const Command& command,
                        const wire::NcclCallsBody& body) {
  NcclBatch batch;
  batch.grouping = static_cast<nccl::Grouping>(body.grouped);
  if (body.grouped >= static_cast<uint32_t>(nccl::Grouping::kSimulated)) return kMalformed;
  if (!services.nccl.library()) return CUDA_ERROR_INVALID_VALUE;
  const HandlerResult read = read_steps(services, command.tail, body.count, &batch.steps);
  if (read.malformed || read.result != CUDA_SUCCESS) return read;
  for (const NcclStep& step : batch.steps) {
    if (!nccl::is_operation(step.call.verb)) return kMalformed;
  }
  const nccl::ResultCode result = services.nccl.make_here(batch);
  services.objects.forget_current();
  if (result != nccl::kSuccess) note_error(services, batch, result);
  return CUDA_SUCCESS;
}

namespace {

// Writes the communicator's error, which the program has asked for, to *error. From then on, later
// posted operations do not report this error again, and no CUDA call returns it.
int tell_error(NcclServices& services, const nccl::Functions& functions, void* handle,
               NcclCommunicator& communicator, int* error) {
  int result = nccl::kSuccess;
  if (handle) result = functions.ncclCommGetAsyncError(handle, error);
  if (*error == nccl::kSuccess) *error = communicator.posted_error;
  // The worker has revoked the lost communicator, so NCCL reports the revocation. The program must
  // get the loss instead.
  if (communicator.is_lost && *error != nccl::kInProgress) *error = nccl::kRemoteError;
  if (*error == nccl::kSuccess || *error == nccl::kInProgress) return result;
  communicator.posted_error = *error;
  services.answers.withdraw(std::exchange(communicator.error_number, 0));
  return result;
}

void append_answer(std::vector<std::byte>* reply, const NcclAnswer& answer) {
  append(reply, int32_t{answer.result});
  append(reply, int32_t{answer.error});
  append(reply, answer.value);
  const auto text = std::as_bytes(std::span(answer.text));
  reply->insert(reply->end(), text.begin(), text.end());
}

HandlerResult describe_device(NcclCommunicator* communicator, const wire::NcclAskBody& body,
                              std::vector<std::byte>* reply) {
  NcclAnswer answer;
  if (communicator) {
    MutexLock lock(communicator->mutex);
    const auto found = communicator->device_communicators.find(static_cast<uint64_t>(body.value));
    if (found != communicator->device_communicators.end()) {
      answer.result = nccl::kSuccess;
      answer.text = found->second->describe();
    }
  }
  append_answer(reply, answer);
  return CUDA_SUCCESS;
}

// NCCL may call the driver for the answer, and the executor thread must not wait in the driver. So
// a thread of NcclCallers asks.
HandlerResult ask_library(NcclServices& services, const Command& command,
                          const wire::NcclAskBody& body,
                          std::shared_ptr<NcclCommunicator> communicator) {
  BodyReader in(command.tail);
  std::span<const std::byte> tail;
  if (body.tail_bytes > nccl::kMostStructBytes || !in.bytes(body.tail_bytes, &tail)) {
    return kMalformed;
  }
  if (body.window) communicator = services.nccl.find_by_window(body.window);
  const auto answer = std::make_shared<NcclAnswer>();
  const bool started = services.nccl.run(
      communicator ? communicator->context : nullptr,
      [&functions = services.nccl.library()->functions, body, communicator, answer,
       tail = std::vector(tail.begin(), tail.end())] {
        std::optional<NcclUse> use;
        if (communicator) use.emplace(*communicator);
        *answer = answer_of_library(functions, use ? use->handle() : nullptr, body, tail);
      },
      [&services, answer, target = command.target] {
        if (answer->lacking) report_refusal(services, lacking_text(answer->lacking));
        std::vector<std::byte> reply;
        append_answer(&reply, *answer);
        services.answers.reply(target, CUDA_SUCCESS, reply);
      });
  return started ? kDeferred : HandlerResult(CUDA_ERROR_OPERATING_SYSTEM);
}

}  // namespace

HandlerResult nccl_ask(NcclServices& services, const Command& command,
                       const wire::NcclAskBody& body, std::vector<std::byte>* reply) {
  const NcclLibrary* const library = services.nccl.library();
  if (!library) return CUDA_ERROR_INVALID_VALUE;
  const nccl::Functions& functions = library->functions;
  const auto communicator = services.nccl.find(body.communicator);
  if (body.question == static_cast<uint32_t>(nccl::Question::kDeviceCommunicator)) {
    return describe_device(communicator.get(), body, reply);
  }
  if (body.question >= static_cast<uint32_t>(nccl::Question::kFirstOfThreads)) {
    return ask_library(services, command, body, communicator);
  }
  std::optional<NcclUse> use;
  if (communicator) use.emplace(*communicator);
  void* const handle = use ? use->handle() : nullptr;
  NcclAnswer answer;
  switch (static_cast<nccl::Question>(body.question)) {
    case nccl::Question::kAsyncError:
      if (handle || (communicator && communicator->is_lost)) {
        answer.result = tell_error(services, functions, handle, *communicator, &answer.error);
      }
      break;
    case nccl::Question::kLastError:
      answer.result = nccl::kSuccess;
      if (functions.ncclGetLastError) answer.text = functions.ncclGetLastError(handle);
      if (communicator && communicator->is_lost) {
        answer.text = "the worker of another rank has died";
      }
      break;
    case nccl::Question::kMemory:
      answer.result = nccl::kInvalidUsage;
      if (handle && functions.ncclCommMemStats) {
        answer.result = functions.ncclCommMemStats(handle, body.value, &answer.value);
      }
      break;
    case nccl::Question::kUniqueId:
      answer.result = nccl::kInvalidUsage;
      if (handle && functions.ncclCommGetUniqueId) {
        nccl::UniqueId id{};
        answer.result = functions.ncclCommGetUniqueId(handle, &id);
        mark_id(&id, {.tag = Nccl::next_grown_tag(*communicator),
                      .parent_tag = communicator->tag,
                      .version = library->version});
        answer.text.assign(id.bytes, sizeof id.bytes);
      }
      break;
    default:
      return kMalformed;
  }
  answer.text.resize(std::min(answer.text.size(), nccl::kMostNameBytes));
  append_answer(reply, answer);
  return CUDA_SUCCESS;
}

}  // namespace rcuda::server

#include "server/executor/nccl/device_api.h"

#include <algorithm>
#include <cstring>
#include <optional>

namespace rcuda::server {
namespace {

using nccl::Functions;

// The pattern of a FilledStruct. It is never 0x00 or 0xff, because these are the most frequent
// values of the last byte that NCCL writes.
std::byte pattern_at(size_t index) { return static_cast<std::byte>(index * 167 % 254 + 1); }

template <typename T>
void append(std::string* text, const T& value) {
  text->append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Takes a T from the front of the bytes. Returns false if they are too short.
template <typename T>
bool take(std::span<const std::byte>* bytes, T* value) {
  if (bytes->size() < sizeof *value) return false;
  std::memcpy(static_cast<void*>(value), bytes->data(), sizeof *value);
  *bytes = bytes->subspan(sizeof *value);
  return true;
}

// Returns none if the tail has another size.
template <typename T>
std::optional<T> tail_as(std::span<const std::byte> tail) {
  T value;
  if (tail.size() != sizeof value) return std::nullopt;
  std::memcpy(&value, tail.data(), sizeof value);
  return value;
}

NcclAnswer lacks(const char* function) {
  NcclAnswer answer;
  answer.result = nccl::kInvalidUsage;
  answer.lacking = function;
  return answer;
}

// NCCL reads and writes as many bytes as the struct's own `size` says. The client has set `size`,
// so it is checked first.
NcclAnswer properties(const Functions& f, void* communicator, std::span<const std::byte> tail) {
  if (!f.ncclCommQueryProperties) return lacks("ncclCommQueryProperties");
  std::vector<uint64_t> memory(nccl::kMostStructBytes / sizeof(uint64_t));
  nccl::DeviceRequirements head;
  NcclAnswer answer;
  if (!communicator || tail.size() < sizeof head || tail.size() > nccl::kMostStructBytes) {
    return answer;
  }
  std::memcpy(&head, tail.data(), sizeof head);
  if (head.size != tail.size()) return answer;
  std::memcpy(memory.data(), tail.data(), tail.size());
  answer.result = f.ncclCommQueryProperties(communicator, memory.data());
  answer.text.assign(reinterpret_cast<const char*>(memory.data()), tail.size());
  return answer;
}

NcclAnswer team(const Functions& f, void* communicator, const wire::NcclAskBody& body) {
  NcclAnswer answer;
  if (!communicator) return answer;
  nccl::Team made{};
  switch (static_cast<nccl::TeamOf>(body.value)) {
    case nccl::TeamOf::kLsa:
      if (!f.ncclTeamLsa) return lacks("ncclTeamLsa");
      made = f.ncclTeamLsa(communicator);
      break;
    case nccl::TeamOf::kRail:
      if (!f.ncclTeamRail) return lacks("ncclTeamRail");
      made = f.ncclTeamRail(communicator);
      break;
    case nccl::TeamOf::kCft:
      if (!f.ncclTeamCft) return lacks("ncclTeamCft");
      made = f.ncclTeamCft(communicator, body.other);
      break;
    case nccl::TeamOf::kCftMultimem:
      if (!f.ncclTeamCftMultimem) return lacks("ncclTeamCftMultimem");
      made = f.ncclTeamCftMultimem(communicator);
      break;
    default:
      return answer;
  }
  answer.result = nccl::kSuccess;
  append(&answer.text, made);
  return answer;
}

NcclAnswer window_address(const Functions& f, void* communicator, const wire::NcclAskBody& body,
                          std::span<const std::byte> tail) {
  NcclAnswer answer;
  const auto more = tail_as<nccl::WindowTail>(tail);
  if (!more || !communicator) return answer;
  void* const window = reinterpret_cast<void*>(body.window);
  const size_t offset = body.offset;
  void* address = nullptr;
  uint32_t element = 0;
  size_t element_offset = 0;
  const auto is_element =
      static_cast<nccl::AddressOf>(body.value) >= nccl::AddressOf::kMultimemElement;
  switch (static_cast<nccl::AddressOf>(body.value)) {
    case nccl::AddressOf::kLsaMultimem:
      if (!f.ncclGetLsaMultimemDevicePointer) return lacks("ncclGetLsaMultimemDevicePointer");
      answer.result = f.ncclGetLsaMultimemDevicePointer(window, offset, &address);
      break;
    case nccl::AddressOf::kMultimem:
      if (!f.ncclGetMultimemDevicePointer) return lacks("ncclGetMultimemDevicePointer");
      answer.result = f.ncclGetMultimemDevicePointer(window, offset, more->multimem, &address);
      break;
    case nccl::AddressOf::kLsa:
      if (!f.ncclGetLsaDevicePointer) return lacks("ncclGetLsaDevicePointer");
      answer.result = f.ncclGetLsaDevicePointer(window, offset, more->peer, &address);
      break;
    case nccl::AddressOf::kPeer:
      if (!f.ncclGetPeerDevicePointer) return lacks("ncclGetPeerDevicePointer");
      answer.result = f.ncclGetPeerDevicePointer(window, offset, more->peer, &address);
      break;
    case nccl::AddressOf::kMultimemElement:
      if (!f.ncclGetMultimemDeviceLeInfo) return lacks("ncclGetMultimemDeviceLeInfo");
      answer.result = f.ncclGetMultimemDeviceLeInfo(window, offset, &element, &element_offset);
      break;
    case nccl::AddressOf::kCftElement:
      if (!f.ncclGetCftDeviceLeInfo) return lacks("ncclGetCftDeviceLeInfo");
      answer.result = f.ncclGetCftDeviceLeInfo(window, offset, more->peer, more->team, &element,
                                               &element_offset);
      break;
    case nccl::AddressOf::kPeerElement:
      if (!f.ncclGetPeerDeviceLeInfo) return lacks("ncclGetPeerDeviceLeInfo");
      answer.result =
          f.ncclGetPeerDeviceLeInfo(window, offset, more->peer, &element, &element_offset);
      break;
    default:
      return answer;
  }
  answer.error = static_cast<int>(element);
  answer.value = is_element ? element_offset : reinterpret_cast<uint64_t>(address);
  return answer;
}

// NCCL fills in the program's handle and the resource that belongs to the handle. Only kGinBarrier
// needs a communicator.
NcclAnswer requirement(const Functions& f, void* communicator, const wire::NcclAskBody& body,
                       std::span<const std::byte> tail) {
  NcclAnswer answer;
  const auto asked = tail_as<nccl::RequirementTail>(tail);
  if (!asked) return answer;
  const auto handle = std::make_unique<FilledStruct>();
  nccl::MadeRequirement made;
  void* const to = handle->data();
  const int first = asked->numbers[0], second = asked->numbers[1];
  switch (static_cast<nccl::RequirementOf>(body.value)) {
    case nccl::RequirementOf::kLsaBarrier:
      if (!f.ncclLsaBarrierCreateRequirement) return lacks("ncclLsaBarrierCreateRequirement");
      answer.result = f.ncclLsaBarrierCreateRequirement(asked->team, first, to, &made.resource);
      break;
    case nccl::RequirementOf::kCftBarrier:
      if (!f.ncclCftBarrierCreateRequirement) return lacks("ncclCftBarrierCreateRequirement");
      answer.result = f.ncclCftBarrierCreateRequirement(asked->team, first, to, &made.resource);
      break;
    case nccl::RequirementOf::kGinBarrier:
      if (!f.ncclGinBarrierCreateRequirement) return lacks("ncclGinBarrierCreateRequirement");
      if (!communicator) return answer;
      answer.result =
          f.ncclGinBarrierCreateRequirement(communicator, asked->team, first, to, &made.resource);
      break;
    case nccl::RequirementOf::kGinInbox:
      if (!f.ncclGinInboxA2ACreateRequirement) return lacks("ncclGinInboxA2ACreateRequirement");
      answer.result =
          f.ncclGinInboxA2ACreateRequirement(asked->team, first, second, to, &made.resource);
      break;
    case nccl::RequirementOf::kGinOutbox:
      if (!f.ncclGinOutboxCreateRequirement) return lacks("ncclGinOutboxCreateRequirement");
      answer.result = f.ncclGinOutboxCreateRequirement(first, second, to, &made.resource);
      break;
    case nccl::RequirementOf::kLowLatency:
      if (!f.ncclLLA2ACreateRequirement) return lacks("ncclLLA2ACreateRequirement");
      answer.result = f.ncclLLA2ACreateRequirement(first, second, to, &made.resource);
      break;
    default:
      return answer;
  }
  const auto take_offset = [&](uint32_t*& pointer, uint64_t* offset) {
    const auto at = reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(to);
    if (pointer && at < nccl::kMostStructBytes) *offset = at;
    pointer = nullptr;
  };
  take_offset(made.resource.buffer, &made.buffer_at);
  take_offset(made.resource.first_signal, &made.first_signal_at);
  take_offset(made.resource.first_counter, &made.first_counter_at);
  made.resource.next = nullptr;
  append(&answer.text, made);
  const std::span<const std::byte> written = handle->written();
  answer.text.append(reinterpret_cast<const char*>(written.data()), written.size());
  return answer;
}

template <typename T>
int get_number(int (*get)(void*, T*), void* handle, std::string* text) {
  T value{};
  const int result = get(handle, &value);
  append(text, value);
  return result;
}

NcclAnswer parameter(const Functions& f, const wire::NcclAskBody& body, const std::string& key) {
  using Type = nccl::ParameterType;
  if (!f.ncclParamBind || !f.ncclParamGet || !f.ncclParamGetParameter) {
    return lacks("ncclParamBind");
  }
  NcclAnswer answer;
  void* handle = nullptr;
  answer.result = f.ncclParamBind(&handle, key.c_str());
  if (answer.result != nccl::kSuccess) return answer;
  const char* text = nullptr;
  int bytes = 0;
  switch (static_cast<Type>(body.value)) {
    case Type::kNone:
      break;
    case Type::kI8:
      answer.result = get_number(f.ncclParamGetI8, handle, &answer.text);
      break;
    case Type::kI16:
      answer.result = get_number(f.ncclParamGetI16, handle, &answer.text);
      break;
    case Type::kI32:
      answer.result = get_number(f.ncclParamGetI32, handle, &answer.text);
      break;
    case Type::kI64:
      answer.result = get_number(f.ncclParamGetI64, handle, &answer.text);
      break;
    case Type::kU8:
      answer.result = get_number(f.ncclParamGetU8, handle, &answer.text);
      break;
    case Type::kU16:
      answer.result = get_number(f.ncclParamGetU16, handle, &answer.text);
      break;
    case Type::kU32:
      answer.result = get_number(f.ncclParamGetU32, handle, &answer.text);
      break;
    case Type::kU64:
      answer.result = get_number(f.ncclParamGetU64, handle, &answer.text);
      break;
    case Type::kString:
      answer.result = f.ncclParamGetStr(handle, &text);
      if (answer.result == nccl::kSuccess && text) answer.text = text;
      break;
    case Type::kBytes: {
      const int most = std::clamp<int>(body.other, 0, nccl::kMostStructBytes);
      answer.text.resize(nccl::kMostStructBytes);
      answer.result = f.ncclParamGet(handle, answer.text.data(), most, &bytes);
      answer.text.resize(static_cast<size_t>(std::clamp(bytes, 0, most)));
      answer.value = static_cast<uint64_t>(std::max(bytes, 0));
      break;
    }
    case Type::kText:
      answer.result = f.ncclParamGetParameter(key.c_str(), &text, &bytes);
      if (answer.result == nccl::kSuccess && text) answer.text = text;
      answer.value = static_cast<uint64_t>(std::max(bytes, 0));
      break;
    default:
      answer.result = nccl::kInvalidArgument;
  }
  return answer;
}

NcclAnswer parameter_keys(const Functions& f) {
  if (!f.ncclParamGetAllParameterKeys) return lacks("ncclParamGetAllParameterKeys");
  NcclAnswer answer;
  const char** keys = nullptr;
  int count = 0;
  answer.result = f.ncclParamGetAllParameterKeys(&keys, &count);
  for (int i = 0; answer.result == nccl::kSuccess && i < count; ++i) {
    answer.text.append(keys[i]).push_back('\0');
  }
  return answer;
}

}  // namespace

std::string lacking_text(const char* function) {
  return std::string("the server's NCCL lacks ") + function +
         ": install a newer NCCL there, or set `nccl` in its server.toml";
}

FilledStruct::FilledStruct() {
  for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = pattern_at(i);
}

std::span<const std::byte> FilledStruct::written() const {
  size_t end = bytes_.size();
  while (end > 0 && bytes_[end - 1] == pattern_at(end - 1)) --end;
  return std::span(bytes_).first(end);
}

// Whether the requirements are as long as their own `size` says: NCCL reads `size` bytes.
// `lists_at`: the offset of their two lists; 0: the layout of NCCL 2.28, without `size`.
static bool are_whole(std::span<const std::byte> requirements, uint32_t lists_at) {
  if (lists_at == 0) return requirements.size() == nccl::kRequirementsOf228;
  nccl::DeviceRequirements versioned;
  if (lists_at != sizeof versioned || requirements.size() < lists_at + 2 * sizeof(void*)) {
    return false;
  }
  std::memcpy(&versioned, requirements.data(), sizeof versioned);
  return versioned.size == requirements.size();
}

std::shared_ptr<DeviceCommunicator> DeviceCommunicator::read(std::span<const std::byte> tail) {
  nccl::DeviceTail head;
  if (!take(&tail, &head) || head.requirement_bytes > nccl::kMostStructBytes ||
      head.resources > nccl::kMostListItems || head.teams > nccl::kMostListItems) {
    return nullptr;
  }
  const size_t padded = (head.requirement_bytes + 7u) & ~size_t{7};
  if (tail.size() < padded) return nullptr;
  const std::span<const std::byte> given = tail.first(head.requirement_bytes);
  if (!are_whole(given, head.lists_at)) return nullptr;
  tail = tail.subspan(padded);
  auto made = std::make_shared<DeviceCommunicator>();
  made->is_versioned_ = head.lists_at != 0;
  made->requirements_.resize(nccl::kMostStructBytes / sizeof(uint64_t));
  std::memcpy(made->requirements_.data(), given.data(), given.size());
  made->resources_.resize(head.resources);
  made->teams_.resize(head.teams);
  made->made_resources_.resize(head.resources);
  made->made_teams_.resize(head.teams);
  for (size_t i = 0; i < head.resources; ++i) {
    nccl::DeviceResource& resource = made->resources_[i];
    nccl::MadeResource& result = made->made_resources_[i];
    if (!take(&tail, &resource)) return nullptr;
    resource.next = i + 1 < head.resources ? &made->resources_[i + 1] : nullptr;
    resource.buffer = &result.buffer;
    resource.first_signal = &result.first_signal;
    resource.first_counter = &result.first_counter;
  }
  for (size_t i = 0; i < head.teams; ++i) {
    nccl::DeviceTeam& team = made->teams_[i];
    if (!take(&tail, &team)) return nullptr;
    team.multimem = team.multimem != 0;
    team.next = i + 1 < head.teams ? &made->teams_[i + 1] : nullptr;
    team.made = &made->made_teams_[i];
  }
  const void* const lists[] = {head.resources ? made->resources_.data() : nullptr,
                               head.teams ? made->teams_.data() : nullptr};
  std::memcpy(reinterpret_cast<std::byte*>(made->requirements_.data()) + head.lists_at, lists,
              sizeof lists);
  return made;
}

std::string DeviceCommunicator::describe() const {
  const std::span<const std::byte> written = made_.written();
  std::string text;
  append(&text, uint64_t{written.size()});
  text.append(reinterpret_cast<const char*>(written.data()), written.size());
  text.resize((text.size() + 7) & ~size_t{7});
  for (const nccl::MadeResource& resource : made_resources_) append(&text, resource);
  for (const nccl::Multimem& multimem : made_teams_) append(&text, multimem);
  return text;
}

NcclAnswer answer_of_library(const Functions& functions, void* communicator,
                             const wire::NcclAskBody& body, std::span<const std::byte> tail) {
  switch (static_cast<nccl::Question>(body.question)) {
    case nccl::Question::kProperties:
      return properties(functions, communicator, tail);
    case nccl::Question::kTeam:
      return team(functions, communicator, body);
    case nccl::Question::kWindowAddress:
      return window_address(functions, communicator, body, tail);
    case nccl::Question::kRequirement:
      return requirement(functions, communicator, body, tail);
    case nccl::Question::kParameter:
      return parameter(functions, body, {reinterpret_cast<const char*>(tail.data()), tail.size()});
    case nccl::Question::kParameterKeys:
      return parameter_keys(functions);
    case nccl::Question::kSlots: {
      if (!functions.ncclLLA2ACalcSlots) return lacks("ncclLLA2ACalcSlots");
      NcclAnswer answer;
      answer.result = nccl::kSuccess;
      answer.error = functions.ncclLLA2ACalcSlots(body.value, body.other);
      return answer;
    }
    case nccl::Question::kDumpParameters: {
      if (!functions.ncclParamDumpAll) return lacks("ncclParamDumpAll");
      NcclAnswer answer;
      answer.result = nccl::kSuccess;
      functions.ncclParamDumpAll();
      return answer;
    }
    default:
      return {};
  }
}

}  // namespace rcuda::server

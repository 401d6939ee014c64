// The reply fuzzer's work on one input. hostile_replies_test runs it over fixed mutations, too.
//
// Tests which replies the handwritten code of a client accepts from its worker: a real session with
// a puppet (tests/support/puppet_server.h) that answers with the input. The first byte selects what
// the client does. The replies follow, one after the other: u8 result, u16 size, then the bytes.
// Commands without an answer succeed, and get an empty reply.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/code/functions.h"
#include "client/code/module_images.h"
#include "client/mirror/mirror.h"
#include "client/session/calls_in_flight.h"
#include "client/session/staging.h"
#include "client/session/wait.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::fuzz {

class Replies {
 public:
  // The session that the inputs share, until one of them ends it.
  static Replies& get() {
    static std::unique_ptr<Replies> made;
    if (!made || made->session().lost()) made.reset(new Replies);
    return *made;
  }
  client::Session& session() { return *lone_.session; }

  void run(const uint8_t* data, size_t size) {
    if (size == 0) return;
    set_replies(data + 1, size - 1);
    switch (data[0] % kActions) {
      case 0:
        return function();
      case 1:
        return module();
      case 2:
        return copy();
      case 3:
        return managed();
      case 4:
        return variable();
      case 5:
        return host_memory(9000);
      case 6:
        return host_memory(900);  // its bytes come with a wait
      default:
        return raw(data, size);
    }
  }
  static constexpr uint8_t kActions = 8;

 private:
  using Answer = test::PuppetServer::Answer;
  using Custom = wire::Custom;

  Replies() {
    lone_.puppet.let_client_leave();
    for (const Custom opcode :
         {Custom::kFunctionInfo, Custom::kImageQuery, Custom::kModuleLoad, Custom::kCopyToReply,
          Custom::kMirror, Custom::kMirrorFetch, Custom::kMirrorFetchBehind, Custom::kMirrorChanges,
          Custom::kUnmirror, Custom::kSignal, Custom::kCopyStaged}) {
      lone_.puppet.on(opcode, [this](const auto& command) { return next(command); });
    }
  }

  void set_replies(const uint8_t* data, size_t size) {
    std::lock_guard lock(mutex_);
    replies_.clear();
    for (size_t at = 0; at + 3 <= size;) {
      const size_t bytes = std::min<size_t>(data[at + 1] | data[at + 2] << 8, size - at - 3);
      const auto body = std::as_bytes(std::span(data + at + 3, bytes));
      replies_.push_back({static_cast<CUresult>(data[at]), {body.begin(), body.end()}});
      at += 3 + bytes;
    }
  }
  std::optional<Answer> next(const test::PuppetServer::Command& command) {
    std::lock_guard lock(mutex_);
    if (replies_.empty()) return Answer{};
    Answer answer = std::move(replies_.front());
    replies_.pop_front();
    // Not larger than the reply slot. raw() tests wrong sizes.
    const size_t most = std::max<size_t>(command.header.reply_bytes, 32) - 32;
    answer.body.resize(std::min(answer.body.size(), most));
    return answer;
  }

  void function() {
    std::unique_ptr<client::FunctionInfo> info;
    (void)client::ask_function(session(), 1, 1, false, "name", &info);
    if (info) session().ids().release(wire::Kind::kFunction, info->id);
  }

  void module() {
    static constexpr char kPtx[] =
        ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k() { ret; }\n";
    std::vector<char> info(64), error(64);
    client::ImageParts image;
    client::JitOptions options;
    client::LoadedFunctions functions;
    (void)client::measure_image(kPtx, std::nullopt, &image);
    options.keys = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                    CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_WALL_TIME};
    options.values = {info.data(), reinterpret_cast<void*>(info.size()), error.data(),
                      reinterpret_cast<void*>(error.size()), nullptr};
    (void)client::load_image(session(), 1, Custom::kModuleLoad, 1, image, options, &functions);
    // As an application that prints its logs.
    for (const int at : {1, 3}) {
      const auto length = reinterpret_cast<uintptr_t>(options.values[static_cast<size_t>(at)]);
      std::vector<char>& text = at == 1 ? info : error;
      if (length > text.size()) std::abort();
    }
    for (const auto& found : functions) {
      session().ids().release(wire::Kind::kFunction, found.info->id);
    }
  }

  void copy() {
    std::vector<std::byte> to(200'000);
    CUresult result = CUDA_SUCCESS;
    client::CallsInFlight calls;
    calls.add_copy(session().in_context(1), to.data(), window(), to.size(), &result);
    calls.finish();
  }

  void exchange(void* address) {
    const client::Route route = session().in_context(1);
    (void)client::push_mirrors(route);
    (void)client::synchronize(route);
    (void)client::pull_mirrors(session(), nullptr);
    client::unmirror(address);
  }

  void managed() {
    constexpr size_t kBytes = 1u << 20;
    const CUresult result = client::mirror_managed(session(), 1, window(), kBytes, size_t{1} << 30);
    if (result != CUDA_SUCCESS) return;
    auto* const memory = reinterpret_cast<std::byte*>(window());
    memory[5] = memory[kBytes - 1] = std::byte{1};
    exchange(memory);
  }

  void variable() {
    constexpr size_t kBytes = 5000;
    const CUdeviceptr address = window() + 0x100'0010;
    if (client::mirror_at(session(), 1, address, kBytes) != CUDA_SUCCESS) return;
    auto* const memory = reinterpret_cast<std::byte*>(address);
    memory[kBytes - 1] = std::byte{1};
    exchange(memory);
  }

  void host_memory(size_t bytes) {
    std::vector<std::byte> memory(bytes, std::byte{1});
    client::mirror(session(), 1, memory.data(), memory.size());
    exchange(memory.data());
  }

  // Sends a reply with a wrong size. The session ends if the size exceeds the reply slot.
  void raw(const uint8_t* data, size_t size) {
    uint32_t bytes = 0;
    std::memcpy(&bytes, data + 1, std::min<size_t>(size - 1, sizeof bytes));
    lone_.puppet.on(Custom::kPing, [this, bytes](const auto& command) -> std::optional<Answer> {
      const auto& header = command.header;
      const uint64_t stamp = wire::ReplyStamp::make(header.call, bytes);
      (void)lone_.puppet.link().put(header.reply_slot + header.reply_bytes - sizeof stamp,
                                    std::as_bytes(std::span(&stamp, 1)), {}, transport::Wake::kYes);
      return std::nullopt;
    });
    (void)lone_.ping();
    lone_.puppet.on(Custom::kPing, nullptr);
  }

  uint64_t window() { return session().welcome().windows.front().base; }

  std::mutex mutex_;
  std::deque<Answer> replies_;
  client::LoneSession lone_;
};

inline void fuzz_replies(const uint8_t* data, size_t size) { Replies::get().run(data, size); }

inline std::vector<std::string> replies_corpus() {
  const auto reply = [](const std::string& body, char result = 0) {
    const auto size = static_cast<uint16_t>(body.size());
    return std::string(1, result) + std::string(reinterpret_cast<const char*>(&size), sizeof size) +
           body;
  };
  const auto bytes = [](const auto& item) {
    return std::string(reinterpret_cast<const char*>(&item), sizeof item);
  };
  const auto action = [](char number) { return std::string(1, number); };
  const auto zeros = [](size_t count) { return std::string(count, '\0'); };

  struct {
    uint32_t parameters = 2, reserved = 0;
    int32_t attributes[wire::kFunctionAttributeCount] = {};
    wire::ParameterInfo infos[2] = {{0, 8}, {8, 4}};
  } function;
  wire::JitLogs logs{};
  logs.info = {4, 4};
  logs.error = {4, 4};
  const std::string state = bytes(wire::MirrorState{});
  const std::string mirror = reply(bytes(wire::MirrorReply{{}, 4096}));
  const std::string runs =
      reply(state + bytes(wire::MirrorRun{0, 1}) + bytes(wire::MirrorRun{9, 3}));
  const std::string ok = reply("");
  const std::string all = reply(state + bytes(wire::MirrorRun{0, 256}));
  std::string managed = action(3) + mirror;
  for (int i = 0; i < 12; ++i) managed += i % 2 ? runs : reply(zeros(4096));
  return {
      action(0) + reply(bytes(function)),
      action(0) + reply(bytes(function), 100),
      action(1) + reply(bytes(uint64_t{1})) + reply(bytes(logs) + "infoerro") +
          reply(bytes(function)),
      action(2) + reply(zeros(60000)) + reply(zeros(60000)) + reply(zeros(100)),
      managed,
      action(3) + mirror + all + all + all + all,
      action(3) + mirror + ok + ok + runs + runs + runs + reply(zeros(8192)) + reply(zeros(4096)),
      action(4) + reply(bytes(wire::MirrorReply{{}, 0})) + reply(state) + reply(state) +
          reply(state),
      action(5) + reply(bytes(wire::MirrorReply{{}, 4096})) + reply(state + zeros(9000)) +
          reply(state),
      action(6) + reply(bytes(wire::MirrorReply{{}, 0})) + reply(state) + ok +
          reply(state + zeros(900)) + reply(state + zeros(900)),
      action(7) + bytes(uint32_t{8}),
      action(7) + bytes(uint32_t{4096}),
  };
}

}  // namespace rcuda::fuzz

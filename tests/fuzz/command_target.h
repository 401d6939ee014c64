// The command fuzzer's work on one input. hostile_commands_test runs it over fixed mutations, too.
// The first two bytes choose a generated command, the rest is its body. The handler runs against a
// recording driver that reads every input to its end and fills every output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/unit/api/loopback.h"

namespace rcuda::fuzz {

// Sets up the recording driver; returns a well-formed input for every command.
inline std::vector<std::string> command_corpus() {
  std::vector<std::string> corpus;
  for (const loopback::Sample& sample : loopback::samples_of_commands()) {
    sample.run();
    const auto& recorded = loopback::Recorded::get();
    std::string input(reinterpret_cast<const char*>(&recorded.opcode), sizeof(recorded.opcode));
    input.append(reinterpret_cast<const char*>(recorded.body.data()), recorded.body.size());
    corpus.push_back(std::move(input));
  }
  return corpus;
}

// Returns whether the handler accepted the input.
inline bool fuzz_command(const uint8_t* data, size_t size) {
  if (size < sizeof(uint16_t)) return false;
  const uint16_t opcode = static_cast<uint16_t>(data[0] | data[1] << 8);
  loopback::Recorded::get().bound.clear();
  std::vector<uint64_t> reply;
  size_t reply_bytes = 0;
  const auto body = std::as_bytes(std::span(data + 2, size - 2));
  return !loopback::run_handler(opcode, body, &reply, &reply_bytes).malformed;
}

}  // namespace rcuda::fuzz

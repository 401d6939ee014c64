// The answer fuzzer's work on one input. hostile_answers_test runs it over fixed mutations, too.
// The first two bytes are the opcode of a command that has an answer. The rest are the worker's
// replies: u16 size, then the bytes. The generated client code decodes them into arrays of the
// application, each in a heap block of its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/unit/api/loopback.h"

namespace rcuda::fuzz {

inline std::string answer_input(uint16_t opcode, std::span<const std::byte> reply) {
  const auto size = static_cast<uint16_t>(reply.size());
  std::string input(reinterpret_cast<const char*>(&opcode), sizeof opcode);
  input.append(reinterpret_cast<const char*>(&size), sizeof size);
  return input.append(reinterpret_cast<const char*>(reply.data()), reply.size());
}

// A well-formed answer to each driver function, and an answer of zeros to each of rcuda's own
// calls.
inline std::vector<std::string> answers_corpus() {
  std::vector<std::string> corpus;
  auto& recorded = loopback::Recorded::get();
  for (const loopback::Sample& sample : loopback::samples_of_commands()) {
    recorded.reply.clear();
    sample.run();
    corpus.push_back(answer_input(sample.opcode, recorded.reply));
  }
  for (const loopback::Sample& sample : loopback::samples_of_answers()) {
    corpus.push_back(answer_input(sample.opcode, std::vector<std::byte>(64)));
  }
  return corpus;
}

inline void fuzz_answers(const uint8_t* data, size_t size) {
  if (size < sizeof(uint16_t)) return;
  const uint16_t opcode = static_cast<uint16_t>(data[0] | data[1] << 8);
  const auto samples = loopback::samples_of_answers();
  const auto sample =
      std::find_if(samples.begin(), samples.end(),
                   [=](const loopback::Sample& known) { return known.opcode == opcode; });
  if (sample == samples.end()) return;
  std::vector<std::vector<std::byte>> replies;
  for (size_t at = 2; at + 2 <= size;) {
    const size_t bytes = std::min<size_t>(data[at] | data[at + 1] << 8, size - at - 2);
    const auto reply = std::as_bytes(std::span(data + at + 2, bytes));
    replies.emplace_back(reply.begin(), reply.end());
    at += 2 + bytes;
  }
  auto& recorded = loopback::Recorded::get();
  recorded.replies = &replies;
  sample->run();
  recorded.replies = nullptr;
  recorded.retired.clear();
}

}  // namespace rcuda::fuzz

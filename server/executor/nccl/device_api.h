// The host side of NCCL's device API: device communicators, which kernels use, and the questions of
// NcclAsk whose answers the server's NCCL computes.
//
// Several structs of this interface have a size that depends on the NCCL for which the program was
// compiled, and NCCL fills them in. The worker does not know these sizes: it gives NCCL memory with
// a pattern, and takes the bytes up to the last byte that NCCL has written (FilledStruct).
//
// Threads: answer_of_library() on those of NcclCallers, everything else on any thread. Blocking:
// answer_of_library(), as NCCL's functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/nccl/functions.h"
#include "common/nccl/nccl_calls.h"
#include "common/wire/commands.h"

namespace rcuda::server {

// Memory for a struct of unknown size that NCCL fills in.
class FilledStruct {
 public:
  FilledStruct();
  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  // Returns the bytes up to the last byte that differs from the pattern.
  std::span<const std::byte> written() const;

 private:
  alignas(16) std::array<std::byte, nccl::kMostStructBytes> bytes_;
};

// A device communicator: the program's requirements, in the layout that NCCL reads, and the struct
// that NCCL has filled in. NCCL may use this object's memory until the batch that creates the
// device communicator is made.
class DeviceCommunicator {
 public:
  // `tail`: a nccl::DeviceTail and the bytes that belong to it. Returns null for bytes that no
  // correct client sends.
  static std::shared_ptr<DeviceCommunicator> read(std::span<const std::byte> tail);

  // The requirements are those of NCCL 2.29 or later. Earlier releases cannot read them.
  bool is_versioned() const { return is_versioned_; }
  // Returns memory of kMostStructBytes bytes: the program's bytes, then zeros.
  const void* requirements() const { return requirements_.data(); }
  FilledStruct& made() { return made_; }
  // Returns the answer to nccl::Question::kDeviceCommunicator.
  std::string describe() const;

 private:
  bool is_versioned_ = false;
  std::vector<uint64_t> requirements_;
  std::vector<nccl::DeviceResource> resources_;
  std::vector<nccl::DeviceTeam> teams_;
  std::vector<nccl::MadeResource> made_resources_;
  std::vector<nccl::Multimem> made_teams_;
  FilledStruct made_;
};

// The refusal of a call that needs a function which the server's library lacks.
std::string lacking_text(const char* function);

struct NcclAnswer {
  int result = nccl::kInvalidArgument;
  int error = nccl::kSuccess;
  uint64_t value = 0;
  std::string text;
  const char* lacking = nullptr;  // a function that the library lacks; result is kInvalidUsage
};

// Answers a question from Question::kProperties on, except kDeviceCommunicator. `communicator`: of
// the question or of its window; null: the question is about neither.
NcclAnswer answer_of_library(const nccl::Functions& functions, void* communicator,
                             const wire::NcclAskBody& body, std::span<const std::byte> tail);

}  // namespace rcuda::server

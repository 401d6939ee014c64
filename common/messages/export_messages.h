// Messages by which a worker gets an export from another worker of the same owner
// (server/names/exported_names.h, docs/isolation.md).
//
//   worker -> daemon   ExportQuery, over the local socket of the daemon whose port is in the
//                      export's name (common/wire/exported_name.h)
//   daemon -> worker   the socket and the query, to the exporting worker
//   worker -> worker   ExportAnswer, with a descriptor if one was exported
//
// The exporting worker then closes the connection. It closes the connection without an answer if it
// has no such export. The daemon passes a connection on only if the process at its other end runs
// as the exporting worker's user. The daemon never holds the exported object.
//
// Threads: any. Blocking: read_export_answer(), until the deadline. Errors: kProtocol for a
// malformed answer; kUnavailable for a Refusal, and if the other worker has ended.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/messages/message.h"
#include "common/messages/message_io.h"
#include "common/tls/connection.h"
#include "common/wire/exported_name.h"

namespace rcuda::wire {

// The address of a worker: a digest of the worker's owner and number. The querying worker computes
// the address from its own owner. So its query reaches only workers of this owner, whatever name
// its client presents.
using ExportPlace = tls::Key;
ExportPlace export_place(const std::string& owner, const ExportNumber& worker);

struct ExportQuery {
  static constexpr char kName[] = "ExportQuery";
  ExportPlace place{};
  ExportKind kind{};
  ExportNumber secret{};
};

// Data about an export, from one worker for another (server/names). Only workers read it.
using ExportNote = std::array<std::byte, 112>;

extern template struct Codec<ExportQuery>;

struct ExportAnswer {
  ExportNote note{};
  UniqueFd descriptor;
};

// Sends the answer, with the descriptor unless it is negative. Does not block: the socket is new,
// so its buffer is empty.
Status write_export_answer(int socket, const ExportNote& note, int descriptor);
Result<ExportAnswer> read_export_answer(int socket, std::chrono::steady_clock::time_point deadline);

}  // namespace rcuda::wire

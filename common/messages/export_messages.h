// Messages by which a worker gets what another worker of its owner has exported
// (server/names/exported_names.h, docs/security.md).
//
//   worker -> daemon   ExportQuery, over the local socket of the daemon that the name tells
//   daemon -> worker   the socket and the query, to the worker that has exported
//   worker -> worker   ExportAnswer, with a descriptor if one was exported
//
// Then the connection ends, also without an answer if there is none. The daemon passes a connection
// on only if the process at its other end runs as the user of the worker that has exported. It
// never has what was exported.
//
// Threads: any. Blocking: read_export_answer(), until the deadline. Errors: kProtocol for what no
// encoder made; kUnavailable for a Refusal, and if the other worker has ended.
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

// Where a worker is reached: a digest of its owner and its number. So the query of a worker of
// another owner reaches nothing, whatever name its client presents.
using ExportPlace = tls::Key;
ExportPlace export_place(const std::string& owner, const ExportNumber& worker);

struct ExportQuery {
  static constexpr char kName[] = "ExportQuery";
  ExportPlace place{};
  ExportKind kind{};
  ExportNumber secret{};
};

// What one worker tells another about an export (server/names). Only workers read it.
using ExportNote = std::array<std::byte, 112>;

extern template struct Codec<ExportQuery>;

struct ExportAnswer {
  ExportNote note{};
  UniqueFd descriptor;
};

// Sends the answer, with the descriptor unless it is negative. Does not block: the socket is new,
// so it has room.
Status write_export_answer(int socket, const ExportNote& note, int descriptor);
Result<ExportAnswer> read_export_answer(int socket, std::chrono::steady_clock::time_point deadline);

}  // namespace rcuda::wire

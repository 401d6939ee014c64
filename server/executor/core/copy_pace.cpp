#include "server/executor/core/copy_pace.h"

#include <cstring>
#include <optional>

#include "api/opcodes.h"
#include "common/wire/codec.h"
#include "server/executor/graphs/copy_range.h"

namespace rcuda::server {
namespace {

template <typename Body>
std::optional<Body> read(std::span<const std::byte> body) {
  if (body.size() < sizeof(Body)) return std::nullopt;
  Body read;
  std::memcpy(&read, body.data(), sizeof read);
  return read;
}

}  // namespace

uint64_t CopyPace::bytes_of_launch(std::span<const std::byte> body) const {
  const auto id = wire::Decoder(body).value<wire::ObjectId>();
  const Object* const executable = objects_.of(wire::Kind::kGraphExec).find(id);
  return executable ? graph_copies_.launch_bytes(static_cast<CUgraphExec>(executable->handle)) : 0;
}

uint64_t CopyPace::bytes_of(uint16_t opcode, std::span<const std::byte> body) const {
  if (opcode == static_cast<uint16_t>(api::Opcode::cuGraphLaunch)) return bytes_of_launch(body);
  switch (static_cast<wire::Custom>(opcode)) {
    case wire::Custom::kCopyInline: {
      const auto copy = read<wire::CopyInlineBody>(body);
      return copy ? copy->bytes : 0;
    }
    case wire::Custom::kCopyToReply: {
      const auto copy = read<wire::CopyToReplyBody>(body);
      return copy ? copy->bytes : 0;
    }
    case wire::Custom::kCopyStaged: {
      const auto copy = read<wire::CopyStagedBody>(body);
      return copy ? copy->bytes : 0;
    }
    case wire::Custom::kCopy: {
      const auto copy = read<wire::CopyBody>(body);
      return copy && (is_clients(copy->source) || is_clients(copy->destination)) ? copy->bytes : 0;
    }
    case wire::Custom::kCopyShape: {
      const auto copy = read<wire::CopyShapeBody>(body);
      if (!copy) return 0;
      const auto is_clients_side = [&](bool staged, const wire::CopyShapeSide& side) {
        return staged || side.type == wire::MemoryType::kHost ||
               (side.type != wire::MemoryType::kArray && is_clients(side_of(side).row(0, 0)));
      };
      return is_clients_side(copy->source_staged, copy->source) ||
                     is_clients_side(copy->destination_staged, copy->destination)
                 ? extent_of(*copy).volume()
                 : 0;
    }
    case wire::Custom::kPeerCopy: {
      const auto copy = read<wire::PeerCopyBody>(body);
      return copy ? CopyExtent{copy->width_bytes, copy->height, copy->depth}.volume() : 0;
    }
    default:
      return 0;
  }
}

bool CopyPace::may_start(std::span<const std::byte> frame, uint64_t now) {
  if (!limits_) return true;
  until_ = quota_.copies_held_until(now);
  if (now >= until_) return true;
  const auto header = read<wire::CommandHeader>(frame);
  return !header || bytes_of(header->opcode, frame.subspan(sizeof *header)) == 0;
}

void CopyPace::book(uint16_t opcode, std::span<const std::byte> body, uint64_t now) {
  const uint64_t bytes = limits_ ? bytes_of(opcode, body) : 0;
  if (bytes != 0) quota_.book_copy(bytes, now);
}

}  // namespace rcuda::server

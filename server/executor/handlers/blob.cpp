// The handler that reads data that did not fit into a reply, piece by piece.
#include "api/server_commands.h"
#include "server/executor/answers/blobs.h"
#include "server/executor/core/custom.h"

namespace rcuda::server {

HandlerResult blob_read(BlobServices& services, const Command& command,
                        const wire::BlobReadBody& body, std::vector<std::byte>* reply) {
  const auto piece = services.blobs.read(body.blob, body.offset, command.target.capacity());
  if (piece.empty()) return CUDA_ERROR_INVALID_VALUE;
  reply->assign(piece.begin(), piece.end());
  services.blobs.drop_at(body.blob, body.offset + piece.size());
  return {};
}

}  // namespace rcuda::server

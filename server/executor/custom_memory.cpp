// Client memory that the GPUs can reach.
#include "server/executor/custom.h"
#include "server/executor/host_memory.h"

namespace rcuda::server {

HandlerResult host_expose(Executor& executor, const Command& command, std::vector<std::byte>*) {
  BodyReader in(command.body);
  wire::HostExposeBody body;
  if (!in.read(&body)) return kMalformed;
  return {executor.host_memory().expose(body), false, false};
}

HandlerResult host_unexpose(Executor& executor, const Command& command, std::vector<std::byte>*) {
  BodyReader in(command.body);
  wire::HostUnexposeBody body;
  if (!in.read(&body)) return kMalformed;
  return {executor.host_memory().unexpose(body), false, false};
}

}  // namespace rcuda::server

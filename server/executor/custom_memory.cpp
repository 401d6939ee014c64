// Client memory that the GPUs can reach.
#include "server/executor/custom.h"
#include "server/executor/host_memory.h"
#include "server/executor/mirrors.h"

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

HandlerResult mirror(Executor& executor, const Command& command, std::vector<std::byte>*) {
  BodyReader in(command.body);
  wire::MirrorBody body;
  if (!in.read(&body)) return kMalformed;
  return {executor.mirrors().add(body), false, false};
}

HandlerResult unmirror(Executor& executor, const Command& command, std::vector<std::byte>*) {
  BodyReader in(command.body);
  wire::MirrorFetchBody body;
  if (!in.read(&body)) return kMalformed;
  return {executor.mirrors().remove(body.address), false, false};
}

HandlerResult mirror_fetch(Executor& executor, const Command& command, std::vector<std::byte>*) {
  BodyReader in(command.body);
  wire::MirrorFetchBody body;
  if (!in.read(&body) || command.target.call == 0) return kMalformed;
  return executor.mirrors().fetch(body.address, command.target);
}

}  // namespace rcuda::server

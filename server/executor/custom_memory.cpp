// Client memory that the GPUs can reach.
#include "api/server_commands.h"
#include "server/executor/custom.h"
#include "server/executor/host_memory.h"
#include "server/executor/mirrors.h"

namespace rcuda::server {

HandlerResult host_expose(Executor& executor, const Command&, const wire::HostExposeBody& body) {
  return {executor.host_memory().expose(body), false, false};
}

HandlerResult host_unexpose(Executor& executor, const Command&,
                            const wire::HostUnexposeBody& body) {
  return {executor.host_memory().unexpose(body), false, false};
}

HandlerResult mirror(Executor& executor, const Command&, const wire::MirrorBody& body) {
  return {executor.mirrors().add(body), false, false};
}

HandlerResult unmirror(Executor& executor, const Command&, const wire::MirrorFetchBody& body) {
  return {executor.mirrors().remove(body.address), false, false};
}

HandlerResult mirror_fetch(Executor& executor, const Command& command,
                           const wire::MirrorFetchBody& body) {
  return executor.mirrors().fetch(body.address, command.target);
}

}  // namespace rcuda::server

#include "client/nccl/step.h"

namespace rcuda::client::nccl {

Step step_on(Communicator& communicator, Verb verb) {
  Step step;
  step.call.verb = verb;
  step.call.communicator = communicator.id;
  step.call.context = communicator.context;
  step.session = communicator.session;
  step.communicator = Ref<Communicator>(&communicator);
  return step;
}

}  // namespace rcuda::client::nccl

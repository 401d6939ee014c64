#include "client/session/mirror_sync.h"

#include "common/cuda/return_if_error.h"

namespace rcuda::client {

void MirrorSync::host_function_arrived(uint64_t loan) {
  if (const MirrorHooks* const known = hooks()) known->arrived(session_, loan);
}

void MirrorSync::host_function_leaves(uint64_t loan) {
  if (const MirrorHooks* const known = hooks()) known->leave(session_, loan);
}

void MirrorSync::show_writes(bool often) {
  if (const MirrorHooks* const known = hooks()) known->show(session_, often);
}

std::unique_ptr<MirrorQuestions> MirrorSync::ask(Word word) {
  const MirrorHooks* const known = hooks();
  if (!known) return nullptr;
  const uint64_t waits = timelines_.waits_of_others();
  std::unique_ptr<MirrorQuestions> asked = known->ask(session_, word);
  if (asked) asked->waits_of_others = waits;
  return asked;
}

CUresult MirrorSync::fetch(MirrorQuestions* asked) {
  const MirrorHooks* const known = hooks();
  if (!known) return CUDA_SUCCESS;
  const uint64_t waits = timelines_.waits();
  const uint64_t of_others = timelines_.waits_of_others();
  RCUDA_RETURN_IF_CUDA_ERROR(known->pull(session_, asked));
  // Other threads may have waited for work since the request. The answers to `asked` lack the
  // writes of that work. So the answers count as a fetch only if no other thread has waited.
  if (!asked || asked->waits_of_others == of_others) fetched_waits_.store(waits);
  return CUDA_SUCCESS;
}

CUresult MirrorSync::fetch_after_call(const Point& point) {
  const MirrorHooks* const known = hooks();
  if (!known) return CUDA_SUCCESS;
  return unless_known(&freed_, point, [&] { return known->pull(session_, nullptr); });
}

}  // namespace rcuda::client

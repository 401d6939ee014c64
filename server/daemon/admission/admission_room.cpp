// Chooses the sessions that end to make room for a client that waits (lost_client.h).
#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "server/daemon/admission/admission.h"

namespace rcuda::server {

// Whether the applicant is first in the queue of a budget, and waits only for sessions or devices
// of this budget.
bool Admission::Applicant::lacks_room() const { return place_ == 1 && obstacle_.ok() && !behind_; }

std::string Admission::Applicant::lost_hint(bool waited) const {
  const auto rank = [&](const LostSession& lost) {
    return std::tuple(lost.client.ends, same_user(lost.who, user_), lost.client.lost_for);
  };
  std::optional<LostSession> first;
  for (LostSession& lost : admission_->lost_()) {
    if (!lost.permit->has_place_in(*lacks_)) continue;
    if (!first || rank(lost) > rank(*first)) first = std::move(lost);
  }
  return first ? hint_of(first->client, same_user(first->who, user_), waited, "this limit") : "";
}

// Returns a clause about the session that in_the_way() will end for this applicant when no session
// is spared any more (LostClient::kSpared); empty without such a session.
std::string Admission::Applicant::room_hint() const {
  if (!lacks_room()) return "";
  std::vector<const Permit*> over;
  std::vector<LostSession> lost = admission_->lost_();
  std::ranges::sort(lost, std::greater(), [&](const LostSession& session) {
    return std::tuple(session.client.ends, same_user(session.who, user_), session.client.lost_for);
  });
  std::chrono::seconds newest = std::chrono::seconds::max();
  for (const LostSession& session : lost) {
    over.push_back(session.permit);
    if (!session.client.ends) newest = std::min(newest, session.client.lost_for);
    if (!fits_without(over)) continue;
    if (session.client.ends) return "";  // the sessions that are ending already make room
    return "; the server ends a disconnected session for this program" +
           LostClient{.lost_for = newest}.when() + ", unless its client connects again";
  }
  return "";
}

bool Admission::Applicant::fits_after_ends() const {
  std::vector<const Permit*> over;
  for (const LostSession& session : admission_->lost_()) {
    if (session.client.ends) over.push_back(session.permit);
  }
  return !over.empty() && lacks_room() && fits_without(over);
}

std::vector<Admission::InTheWay> Admission::in_the_way() const {
  std::vector<InTheWay> found;
  if (queue_.empty()) return found;
  std::vector<LostSession> lost = lost_();
  for (const Applicant* applicant : queue_) {
    if (!applicant->may_wait_ || !applicant->lacks_room()) continue;
    std::vector<LostSession*> may_end;
    std::vector<const Permit*> over;
    for (LostSession& session : lost) {
      if (session.client.ends) over.push_back(session.permit);
      if (session.client.may_end()) may_end.push_back(&session);
    }
    if (applicant->fits_without(over)) continue;
    std::ranges::sort(may_end, {}, [&](const LostSession* session) {
      return std::pair(same_user(session->who, applicant->user_), session->client.lost_for);
    });
    for (const LostSession* session : may_end) over.push_back(session->permit);
    if (!applicant->fits_without(over)) continue;
    // Spares sessions of other users first, and among these the sessions that were lost last. A
    // session is spared if the ends of the remaining sessions suffice.
    for (LostSession* session : may_end) {
      std::vector<const Permit*> fewer = over;
      std::erase(fewer, session->permit);
      if (applicant->fits_without(fewer)) {
        over = std::move(fewer);
        continue;
      }
      session->client.ends = true;
      found.push_back({session->client.worker, applicant->user_.user});
    }
  }
  return found;
}

}  // namespace rcuda::server

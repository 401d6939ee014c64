#include "server/daemon/admission/lost_client.h"

#include "common/base/units.h"

namespace rcuda::server {

std::string LostClient::when() const {
  return lost_for < kSpared ? " " + time_text(kSpared) + " after it was disconnected" : "";
}

std::string hint_of(const LostClient& lost, bool own, bool waited, const std::string& what) {
  if (lost.ends) return "; a disconnected session that counts against " + what + " is ending";
  std::string text = own ? "; the session with worker " + std::to_string(lost.worker)
                         : "; a session of another user";
  text += " has been disconnected for " + rounded_time_text(lost.lost_for) +
          " and counts against " + what;
  if (!waited) {
    text += ": set RCUDA_WAIT=60s to end that session" + lost.when();
  }
  if (own) text += (waited ? ": " : ", or run ") + lost.command();
  return text + (own && waited ? " ends that session" : "");
}

}  // namespace rcuda::server

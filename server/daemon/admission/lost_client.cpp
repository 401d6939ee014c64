#include "server/daemon/admission/lost_client.h"

#include "common/base/units.h"

namespace rcuda::server {

std::string hint_of(const LostClient& lost, bool own, const std::string& what) {
  const std::string holds =
      " has been disconnected for " + time_text(lost.lost_for) +
      (lost.ends ? ", holds " + what + ", and ends now" : " and holds " + what);
  if (lost.ends) return "; a session" + holds;
  const std::string wait = "a program that waits for it (RCUDA_WAIT=60s) ends that session";
  if (!own) return "; a session of another user" + holds + ": " + wait;
  return "; the session with worker " + std::to_string(lost.worker) + holds + ": " + wait +
         ", and so does " + lost.command;
}

}  // namespace rcuda::server

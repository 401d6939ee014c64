// WorkerSession: a session of a worker, from the client's Hello to the end of the process, or until
// the worker is clean again.
//
// Its phases, each a function of that name:
//   become_user    makes the process the session's user (isolation.h); only before the
//                  first session
//   check_request  checks the client's request and makes the Welcome
//   listen         starts to listen to the daemon: further sockets of the client, other
//                  workers, StopRequest
//   connect        sends the Welcome and makes the Link
//   prepare        makes the image cache and the capture of output
//   run            runs the executor's loop, under the EndWatch
//   end            logs the last line, and calls _exit unless another session may follow
//   clean          makes the worker as it was before the session (cleaning.h)
// Until connect() has succeeded, the client may leave or be refused, and serve() returns. After
// that the process ends with the session, unless
//   - the daemon keeps workers (SessionGrant::may_be_followed), and none of its contexts is shared
//     through MPS
//   - the client ended the session, and no error is left in a context
//   - no command may have left more than what clean() destroys (`leaves` of api/table)
//   - no kernel runs any more
//   - the daemon wants the worker for a later session of the same owner
//
// Threads: serve() runs on the worker's main thread, which becomes the executor thread. The
// listener has a thread of its own; mutex_ guards the data that the two share. Blocking: serve(),
// until the session is over. Errors: those before the session go to the client as a refusal; later
// ones are logged.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/messages/handshake.h"
#include "common/transport/media.h"
#include "server/addresses/address_fence.h"
#include "server/driver/driver_loader.h"
#include "server/driver/window_guard.h"
#include "server/executor/answers/output_capture.h"
#include "server/executor/core/session_resources.h"
#include "server/executor/images/image_cache.h"
#include "server/protocol/session_grant.h"
#include "server/protocol/settings.h"
#include "server/protocol/work_page.h"
#include "server/protocol/worker_messages.h"
#include "server/worker/cleaning.h"
#include "server/worker/daemon_listener.h"
#include "server/worker/device_set.h"

namespace rcuda::server {

class SessionLoop;

// The parts that a worker prepares before its session begins. The references outlive the session.
struct PreparedWorker {
  const Settings& settings;
  int daemon;   // the socket from the daemon
  int reports;  // the pipe to the daemon
  DeviceSet& devices;
  const LoadedDriver& driver;
  AddressFence& fence;
};

// What the daemon sends for a session.
struct GrantedSession {
  std::vector<UniqueFd> ledgers;  // of the grant's allowances
  std::optional<WorkPage> work;
  SessionStart start;
};

// What passes from one session of a worker to the next.
struct SessionHistory {
  std::optional<SessionGrant>* user;  // the first session's grant; none before it
  ProcessState* before;               // what the process had
  std::vector<AddressRange> closed;   // addresses that are inaccessible
};

class WorkerSession {
 public:
  // What `worker`, `granted` and `history` point to outlives this object.
  WorkerSession(const PreparedWorker& worker, GrantedSession& granted, SessionHistory history);
  ~WorkerSession();

  // Returns ok if there was no session, because the client was refused or left.
  Status serve();
  // After serve(): whether the process goes on. Then it is clean() that ends the session.
  bool may_be_followed() const { return left_.has_value(); }
  Status clean();
  const std::vector<AddressRange>& left_closed() const { return left_->kept; }

 private:
  Status become_user();
  Status check_request();
  Status take_window();
  Status limit_devices();
  Status choose_medium(int socket);
  std::string encrypts_because() const;
  Status listen();
  Status left(const Status& why) const;
  void report_totals(SessionTotals totals) const;
  bool daemon_wants_more() const;
  Result<Socket> encrypted(UniqueFd socket, uint32_t index) const;
  Status connect(Socket client);
  void prepare();
  Status run();
  void end(const Status& status, SessionLoop& session);
  bool may_be_followed(const Status& status, SessionLoop& session) const;
  void stop(SessionLoop& session) const RCUDA_REQUIRES(mutex_);
  bool stopped_now() const;

  void called_on(ToWorker caller);

  const PreparedWorker worker_;
  GrantedSession& granted_;
  SessionHistory history_;
  std::optional<Leftovers> left_;  // once the session has ended and another one may follow
  std::chrono::steady_clock::time_point begin_;
  const SessionGrant& grant_;
  UniqueFd image_folder_;
  const wire::Hello& hello_;
  wire::Welcome welcome_;
  std::optional<WindowGuard> guard_;  // the driver of resources_, if the session has a window
  SessionResources resources_;
  const transport::Medium* medium_ = nullptr;
  const transport::Medium* fallback_ = nullptr;  // where no Link comes about over medium_, or null

  mutable Mutex mutex_;
  SessionLoop* loop_ RCUDA_GUARDED_BY(mutex_) = nullptr;
  // Until loop_ is set.
  std::vector<std::pair<wire::PeerHello, UniqueFd>> early_ RCUDA_GUARDED_BY(mutex_);
  std::string stopped_ RCUDA_GUARDED_BY(mutex_);  // why the session must end; empty: it continues
  // The server goes on, so the client is told why.
  bool only_this_ RCUDA_GUARDED_BY(mutex_) = false;

  std::optional<DaemonListener> listener_;
  std::unique_ptr<transport::Link> link_;
  std::optional<ImageCache> images_;
  std::unique_ptr<OutputCapture> output_;
};

}  // namespace rcuda::server

// WorkerSession: the session of a worker, from the client's Hello to the end of the process.
//
// Its phases, each a function of that name:
//   become_user    switches the process to the session's user (isolation.h)
//   check_request  checks the client's request and makes the Welcome
//   listen         starts to listen to the daemon: further sockets of the client, other
//                  workers, StopRequest
//   connect        sends the Welcome and makes the Link
//   prepare        makes the image cache and the capture of output
//   run            runs the executor's loop, under the EndWatch
//   end            logs and reports the session's totals, and calls _exit
// Until connect() has succeeded, the client may leave or be refused, and serve() returns.
//
// Threads: serve() runs on the worker's main thread, which becomes the executor thread. The
// listener and the EndWatch have threads of their own; mutex_ guards the data that the three share.
// Blocking: serve(), until the session is over. Errors: those before the session are logged, and
// sent as a Refusal if the client can read it; later errors are logged.
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
#include "server/worker/daemon_listener.h"
#include "server/worker/device_set.h"
#include "server/worker/parker.h"
#include "server/worker/user_folders.h"

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
  const CodeFolder& code;
};

// The data that the daemon sends for a session.
struct GrantedSession {
  std::vector<UniqueFd> ledgers;  // of the grant's allowances
  std::optional<WorkPage> work;
  SessionStart start;
};

class WorkerSession {
 public:
  // The objects that `worker` refers to, and `granted`, outlive this object.
  WorkerSession(const PreparedWorker& worker, GrantedSession& granted);
  ~WorkerSession();

  // Returns ok if there was no session, because the client was refused or left.
  Status serve();

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
  Result<Socket> encrypted(UniqueFd socket, uint32_t index, uint32_t attempt) const;
  Status connect(Socket client);
  transport::Reconnecting reconnecting();
  void prepare();
  Status run();
  [[noreturn]] void end(const Status& status, SessionLoop& session);

  // `message`: any message of the daemon except StopRequest and FurtherSocket.
  void receive(ToWorker message);

  const PreparedWorker worker_;
  GrantedSession& granted_;
  std::chrono::steady_clock::time_point begin_;
  const SessionGrant& grant_;
  UniqueFd image_folder_;
  const wire::Hello& hello_;
  wire::Welcome welcome_;
  std::optional<WindowGuard> guard_;  // the driver of resources_, if the session has a window
  SessionResources resources_;
  const transport::Medium* medium_ = nullptr;
  const transport::Medium* fallback_ = nullptr;  // used if medium_ fails; may be null

  mutable Mutex mutex_;
  SessionLoop* loop_ RCUDA_GUARDED_BY(mutex_) = nullptr;
  // Workers that have connected for peer copies before loop_ is set.
  std::vector<std::pair<wire::PeerHello, UniqueFd>> early_ RCUDA_GUARDED_BY(mutex_);
  std::string stopped_ RCUDA_GUARDED_BY(mutex_);  // why the session must end; empty: it continues

  Parker parker_;
  std::optional<DaemonListener> listener_;
  std::unique_ptr<transport::Link> link_;
  std::optional<ImageCache> images_;
  std::unique_ptr<OutputCapture> output_;
};

}  // namespace rcuda::server

// WorkerSession: the one session of a worker, from the client's Hello to the end of the process.
//
// Its phases, each a function of that name:
//   become    makes the process the session's user (isolation.h)
//   admit     checks the client's request and makes the Welcome
//   listen    starts to listen to the daemon: further sockets of the client, other workers, kStop
//   connect   sends the Welcome and makes the Link
//   prepare   makes the image cache and the capture of output
//   run       runs the executor's loop, under the EndWatch
//   end       logs the last line and calls _exit
// Until connect() has succeeded, the client may leave or be refused, and serve() returns. After
// that the process ends with the session.
//
// Threads: serve() runs on the worker's main thread, which becomes the executor thread. The
// listener has a thread of its own; mutex_ guards the data that the two share. Blocking: serve(),
// until the session is over. Errors: those before the session go to the client as a refusal; later
// ones are logged.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/transport/media.h"
#include "common/wire/handshake.h"
#include "server/base/work_page.h"
#include "server/executor/answers/output_capture.h"
#include "server/executor/images/image_cache.h"
#include "server/executor/session_resources.h"
#include "server/worker/daemon_listener.h"
#include "server/worker/device_set.h"
#include "server/worker/driver_loader.h"
#include "server/worker/session_grant.h"
#include "server/worker/settings.h"
#include "server/worker/worker_messages.h"

namespace rcuda::server {

class SessionLoop;

// The parts that a worker prepares before its session begins. The references outlive the session.
struct PreparedWorker {
  const Settings& settings;
  int daemon;  // the socket to the daemon
  const DeviceSet& devices;
  const LoadedDriver& driver;
  wire::AddressWindow window;
  std::vector<AddressRange> closed;
  std::vector<UniqueFd> ledgers;  // of the grant's allowances
  WorkPage& work;
};

class WorkerSession {
 public:
  explicit WorkerSession(PreparedWorker worker);
  ~WorkerSession();

  // `message`: kSession. Returns ok if there was no session, because the client was refused or
  // left.
  Status serve(WorkerMessage message);

 private:
  Status become(const WorkerMessage& message);
  Status admit(const WorkerMessage& message);
  Status limit_devices();
  Status listen();
  Status left(const Status& why) const;
  void tell_daemon(const SessionTotals& totals) const;
  Result<Socket> encrypted(UniqueFd socket, uint32_t index) const;
  Status connect(Socket client);
  void prepare();
  Status run();
  [[noreturn]] void end(const Status& status, SessionLoop& session);
  void stop(SessionLoop& session) const;

  void called_on(WorkerMessage peer);

  PreparedWorker worker_;
  std::chrono::steady_clock::time_point begin_;
  SessionGrant grant_;
  UniqueFd image_folder_;
  wire::Hello hello_;
  wire::Welcome welcome_;
  SessionResources resources_;
  const transport::Medium* medium_ = nullptr;

  std::mutex mutex_;  // guards the next four members
  SessionLoop* loop_ = nullptr;
  std::vector<std::pair<wire::PeerHello, UniqueFd>> early_;  // until loop_ is set
  std::string stopped_;     // why the session must end; empty: it continues
  bool only_this_ = false;  // the server goes on, so the client is told why

  std::optional<DaemonListener> listener_;
  std::unique_ptr<transport::Link> link_;
  std::optional<ImageCache> images_;
  std::unique_ptr<OutputCapture> output_;
};

}  // namespace rcuda::server

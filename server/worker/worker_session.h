// WorkerSession: the one session of a worker, from the client's Hello to the end of the process.
//
// Its phases, each a function of that name:
//   admit     checks what the client asks for, and makes the Welcome
//   listen    to the daemon from now on: further sockets of the client, other workers, the stop
//   connect   welcomes the client and makes the Link
//   prepare   the image cache and the capture of output
//   run       the executor's loop, under the EndWatch
//   end       the last line of the log, and _exit
// Up to connect() the client may leave or be refused, and serve() returns. Afterwards the process
// ends with the session.
//
// Threads: serve() on the worker's main thread, which becomes the executor thread. The listener has
// a thread of its own; mutex_ guards what the two share. Blocking: serve(), until the session is
// over. Errors: those before the session go to the client as a refusal; later ones to the log.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/transport/media.h"
#include "common/wire/handshake.h"
#include "server/executor/answers/output_capture.h"
#include "server/executor/images/image_cache.h"
#include "server/executor/session_resources.h"
#include "server/worker/daemon_listener.h"
#include "server/worker/device_set.h"
#include "server/worker/driver_loader.h"
#include "server/worker/settings.h"
#include "server/worker/worker_messages.h"

namespace rcuda::server {

class SessionLoop;

// What a worker has made ready before its session comes. The references outlive the session.
struct PreparedWorker {
  const Settings& settings;
  int daemon;  // the socket to it
  const DeviceSet& devices;
  const LoadedDriver& driver;
  wire::AddressWindow window;
  std::vector<AddressRange> closed;
};

class WorkerSession {
 public:
  explicit WorkerSession(PreparedWorker worker);
  ~WorkerSession();

  // `message`: kSession. Returns ok if there was no session, because the client was refused or
  // left.
  Status serve(WorkerMessage message);

 private:
  Status admit(const WorkerMessage& message);
  Status listen();
  Status connect(UniqueFd socket);
  void prepare();
  Status run();
  [[noreturn]] void end(const Status& status, SessionLoop& session);

  void called_on(WorkerMessage peer);

  PreparedWorker worker_;
  std::chrono::steady_clock::time_point begin_;
  wire::Hello hello_;
  wire::Welcome welcome_;
  SessionResources resources_;
  const transport::Medium* medium_ = nullptr;

  std::mutex mutex_;  // guards what follows up to the listener
  SessionLoop* loop_ = nullptr;
  std::vector<std::pair<wire::PeerHello, UniqueFd>> early_;  // before there is a loop
  const char* stopped_ = nullptr;                            // why the session is to end

  std::optional<DaemonListener> listener_;
  std::unique_ptr<transport::Link> link_;
  std::optional<ImageCache> images_;
  std::unique_ptr<OutputCapture> output_;
};

}  // namespace rcuda::server

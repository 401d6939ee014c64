// The settings of a program: RCUDA_ variables of its environment, each declared here with its type,
// default and help. Declared elsewhere: RCUDA_DEVICES and similar variables (device_list.h), the
// user's identity (common/reach/identify.h), and the adapter's settings (common/transport/verbs).
//
// load_settings() reads the variables once, before the program's sessions start and before a second
// thread uses settings(). Until then, settings() returns the defaults. Nothing blocks.
#pragma once

#include "common/base/status.h"
#include "common/config/settings.h"

namespace rcuda::client {

struct Settings {
  Settings();

  config::Registry registry{"RCUDA_"};
  config::String log{registry, "RCUDA_LOG", "",
                     "trace, debug, info, warn (default), error or off; info:FILE writes to a "
                     "file"};
  config::Choice transport;
  config::Duration wait{
      registry, "RCUDA_WAIT", std::chrono::seconds(0),
      "how long to wait for a session at a busy server, and for a server that restarts or "
      "drains; 0: not at all"};
  config::Duration reconnect{registry, "RCUDA_RECONNECT", std::chrono::seconds(0),
                             "how long a session over tcp waits for a lost connection to come "
                             "back; 0: a lost connection ends the session"};
  config::Duration wake_wait{
      registry, "RCUDA_WAKE_WAIT", std::chrono::seconds(0),
      "how long a call on a parked session waits for room on its GPUs, before "
      "it returns CUDA_ERROR_OUT_OF_MEMORY; 0: without a limit"};
  config::Bool synchronous{registry, "RCUDA_SYNC", false,
                           "make every call a round trip, so that it returns its own error"};
  config::String trace{registry, "RCUDA_TRACE", "", "file for a timeline of the calls"};
  config::Choice p2p{registry,
                     "RCUDA_P2P",
                     {"auto", "eager", "lazy"},
                     "when servers connect to each other: at the start (eager), at their first "
                     "copy (lazy), or at the start if they are few (auto)"};
  config::String p2p_path{registry, "RCUDA_P2P_PATH", "",
                          "path of copies between servers: auto, ipc, shm, tcp or verbs"};
  config::String p2p_strategy{registry, "RCUDA_P2P_STRATEGY", "",
                              "staging and chunks of copies between servers, such as v4b:256Kx8; "
                              "auto: by measurement"};
  config::Integer copy_threads;
  config::Choice nccl{registry,
                      "RCUDA_NCCL",
                      {"auto", "server", "client"},
                      "whose NCCL runs collectives: the servers' (server), the program's own "
                      "(client), or the servers' if every server has NCCL, else the program's own "
                      "(auto)"};
  config::Choice managed{registry,
                         "RCUDA_MANAGED",
                         {"tracked", "compared"},
                         "how the program's writes to managed memory are detected: by the kernel "
                         "(tracked), or by comparing the bytes"};
};

const Settings& settings();
// Reads the variables. An error names the variable and the accepted values, and leaves the settings
// unchanged.
Status load_settings();

// Sets the log level and the log file of RCUDA_LOG.
Status configure_log();

}  // namespace rcuda::client

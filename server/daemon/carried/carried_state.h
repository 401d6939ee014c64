// CarriedState: the state that a daemon keeps when its process executes another build of its binary
// (successor.h). The process keeps its child processes and the descriptors that are named here. Its
// memory is lost, except for this state.
//
// The state travels through a sealed memory file. The hash in this file also covers the layouts of
// everything that the new build shares with the workers of the old build: their messages, and the
// memory of Ledgers and WorkPages. So the new build either understands all of this, or does not
// take over.
//
// Plain values. Descriptors are numbers here; -1 means none.
//
// Threads: the daemon's only thread. Nothing blocks. Errors: the system's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/messages/handshake.h"
#include "common/messages/lease_messages.h"
#include "common/messages/message.h"
#include "common/messages/server_status.h"
#include "server/identity/identity.h"
#include "server/quota/limits.h"

namespace rcuda::server {

// A setting that keeps its value until a restart.
struct CarriedSetting {
  std::string key, text, origin;
};

struct CarriedSocket {
  int32_t descriptor = -1;
  std::string path;  // of a local socket; empty: none
};

struct CarriedListener {
  CarriedSocket tcp, local, roots, containers;
};

struct CarriedBudget {
  std::string key;
  int32_t ledger = -1;
};

struct CarriedPermit {
  struct Place {
    std::string budget;  // the budget's key
    std::optional<uint32_t> slot;
  };
  uint32_t devices = 0;
  std::vector<Place> places;
  int32_t ledger = -1;
  std::vector<Allowance> allowances;
  SessionLimits limits;
};

// A session and its worker, or a worker that is ending.
struct CarriedWorker {
  int32_t pid = -1;
  int64_t since = 0;       // monotonic nanoseconds, as all times here
  bool has_ended = false;  // true: not reaped yet, because a debugger holds the process
  int32_t process = -1, control = -1, reports = -1, log = -1;
  bool reads_reports = false;
  std::string report, line;  // an incomplete report, and an incomplete line of the log
  uint32_t base = 0;
  bool has_devices = false;
  std::vector<uint32_t> devices;  // DeviceSets::Key
  uint32_t sm_percent = 0;
  bool has_cgroup = false;
  std::optional<int64_t> kill_at;
  // The members from here on are the session's. `start`: the SessionStart without its key; empty:
  // there is no session.
  std::string start;
  std::vector<uint32_t> attempts;  // by Attach::index: the least Attach::attempt that is valid
  Identity identity;
  std::optional<CarriedPermit> permit;
  int32_t work = -1;   // the descriptor of the WorkPage
  std::string totals;  // the encoded SessionTotals; empty: none yet
  std::string ended_by;
  bool lease_ended = false;
  uint32_t park = 0;      // ParkState
  uint32_t park_way = 0;  // ParkWay
  uint64_t park_kept = 0, park_keeps = 0;
  int64_t park_since = 0, parked_at = 0;
  std::optional<Identity> park_by;
  int32_t park_room_for = 0;
  bool is_preempted = false;
  std::vector<uint64_t> park_bytes;  // by device, in the order of the session
  uint64_t park_group = 0;
  bool has_answered = false, owes_answer = false;
  std::vector<int32_t> shares_with;  // process ids of workers
  bool shares_outside = false;
  std::vector<uint32_t> moves;  // pairs: a GPU, and the GPU that gets its memory
  uint32_t unanswered_moves = 0;
};

struct CarriedCgroups {
  std::string path;  // empty: there are no cgroups
  bool in_daemon_cgroup = false;
  std::vector<std::string> controllers;
};

struct CarriedTicket {
  wire::Ticket ticket;
  Identity user;
  wire::TicketQuery connection;
  int64_t expires = 0;
};

struct CarriedServiceManager {
  int32_t socket = -1;
  int64_t pause = 0;  // nanoseconds between two signs of life; 0: none are wanted
};

struct CarriedState {
  static constexpr char kName[] = "CarriedState";

  std::vector<CarriedSetting> settings;
  bool for_others = false;  // other machines can reach the server
  CarriedServiceManager service_manager;
  CarriedListener listener;
  int32_t closer = -1;
  CarriedCgroups cgroups;
  std::vector<CarriedBudget> budgets;
  std::vector<CarriedWorker> workers;
  std::vector<int32_t> not_of_workers;  // process ids of children that are not workers
  uint32_t doublings = 0;
  std::string offer;          // the encoded WorkerReady; empty: none yet
  wire::ServerStatus totals;  // only ServerStatus::totals is set
  std::vector<CarriedTicket> tickets;
  std::string leases;              // the text of a file of leases
  wire::LeaseAnswer lease_totals;  // of ended sessions, by lease
  bool draining = false;
  std::vector<uint32_t> drained;  // GPUs that get no new sessions
  int32_t signal = 0;             // the last signal to stop the server; 0: none
  std::optional<int64_t> drain_until;
};

}  // namespace rcuda::server

extern template struct rcuda::wire::Codec<rcuda::server::CarriedState>;

namespace rcuda::server {

// The hash of the layout of this build's state.
uint64_t carried_layout();

// Writes the state and carried_layout() to a memory file. Its descriptor stays open when this
// process executes another program.
Result<UniqueFd> write_carried(const CarriedState& state);
// Returns kUnsupported if a build with another layout wrote the file. Leaves the file as it is.
Result<CarriedState> read_carried(int file);

// Sets or clears close-on-exec for every descriptor of the state.
void set_close_on_exec(const CarriedState& state, bool closes);

}  // namespace rcuda::server

// WorkerPool: the worker processes of a daemon, from their start to their reaping.
//
// The pool keeps RCUDA_SERVER_POOL started workers idle, and more for a while after many clients
// have come at the same time. Each idle worker has a different base of addresses. The pool assigns
// sessions to idle workers. A worker that was assigned is replaced when that disturbs no session
// (pool_demand.h). The pool starts more workers for clients that wait, a few at a time. A client
// may have to wait although workers are idle, because its other servers already use the bases of
// these workers (address_window.h). The client that has waited longest gets the first worker that
// is ready. A worker that dies is reaped and logged; only its client notices. If workers fail to
// start, the pool tries again after growing pauses, and keeps the reason for clients that wait. If
// the reason is lasting, clients do not wait.
//
// A worker that restricts itself to some devices does so before its driver starts, so a session
// needs a worker of its set of devices (DeviceSets), and of its compute share (compute_share.h).
// Idle workers have no share; a session with a share waits for the start of its worker. If the
// server has a delegated cgroup, each worker has a cgroup below it.
//
// Threads: the daemon's only thread, which polls the descriptors (add_descriptors()) and calls
// handle() for those that are ready. Blocking: shutdown(); the end of a helper that was killed, for
// up to a second (park_helper.h); and the start of a worker that fails, until its process has
// ended. A worker that does not read its messages counts as dead. Errors: last_failure() says why
// no worker starts.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/types.h>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/messages/export_messages.h"
#include "common/messages/gpu_report.h"
#include "common/messages/handshake.h"
#include "common/messages/server_status.h"
#include "common/reach/socket_keys.h"
#include "common/tls/connection.h"
#include "server/addresses/address_window.h"
#include "server/daemon/admission/admission.h"
#include "server/daemon/admission/audit.h"
#include "server/daemon/admission/leases.h"
#include "server/daemon/pool/cgroup.h"
#include "server/daemon/pool/device_sets.h"
#include "server/daemon/pool/park_helper.h"
#include "server/daemon/pool/park_state.h"
#include "server/daemon/pool/pool_demand.h"
#include "server/daemon/pool/room_policy.h"
#include "server/daemon/pool/worker_log.h"
#include "server/daemon/pool/worker_state.h"
#include "server/identity/identity.h"
#include "server/monitor/gpu_monitor.h"
#include "server/protocol/reports.h"
#include "server/protocol/session_grant.h"
#include "server/protocol/settings.h"
#include "server/protocol/work_page.h"
#include "server/protocol/worker_messages.h"

namespace rcuda::server {

// The user that asks for a report. `sees_all`: the report has the sessions of all users, otherwise
// only the user's own (Authenticator::sees_all()).
struct Viewer {
  const Identity& user;
  bool sees_all = false;
};

class WorkerPool {
 public:
  using Clock = std::chrono::steady_clock;

  // `bases`: of this server's workers. A client can use several servers only if their workers have
  // different bases. `port`: where other workers look up the exports of this server's workers.
  WorkerPool(const Settings& settings, const Bases& bases, uint16_t port = 0);
  ~WorkerPool();

  // Sessions are recorded in `audit`; without this call they are not recorded.
  void record_in(Audit* audit) { audit_ = audit; }

  // From now on, handle() ends the processes that workers leave behind, unless workers have cgroups
  // or this process is process 1. `is_other`: whether a child of this process belongs to another
  // part of the daemon, such as a door. Such a child is not ended.
  void adopt_orphans(std::function<bool(pid_t)> is_other);

  // Opens the cgroup that the settings name. With `auto` and no delegated cgroup, the workers get
  // no cgroups. An error names RCUDA_SERVER_CGROUP.
  Status prepare();
  // Whether prepare() would find the cgroup of the settings. Changes nothing.
  static Status check_cgroup(const Settings& settings);
  // A client that may have a session.
  struct Waiting {
    const wire::Hello* hello = nullptr;
    uint32_t sm_percent = 0;  // the compute share of its session; 0: none
    uint32_t priority = 0;
    bool displaces = false;  // its session may park other sessions; a lease may forbid this
  };
  // worker_pool_fill.cpp: starts the workers that are missing for the `waiting` sessions, and the
  // idle workers that are due (pool_demand.h). Ends idle workers that are not wanted. `drains`: no
  // idle workers are wanted.
  void refill(const std::vector<Waiting>& waiting, bool drains = false);
  // worker_pool_carry.cpp: carries to a successor (successor.h) the workers that have a session or
  // are ending. Call restore() instead of prepare(). `permits`: one element for each worker of
  // `state`, in the same order; null: the worker has none.
  void carry(const Admission& admission, CarriedState* state) const;
  Status restore(const CarriedState& state,
                 std::vector<std::unique_ptr<Admission::Permit>> permits);

  // Ends the workers that are idle or starting. refill() then starts new workers, with the current
  // settings.
  void renew_idle();
  // Whether a session of that user can run here. assign() checks it as well.
  static Status check_user(const Identity& identity);
  // Whether an idle worker suits the client: the worker has the client's devices and share, and a
  // base that the client does not use.
  bool has_worker_for(const Waiting& client) const;
  // Assigns a session to an idle worker that suits the client (has_worker_for()). Returns false
  // without such a worker. On success, closes the socket here, and keeps the permit until the
  // worker has ended. An error is the reason why this client can have no session.
  // `key`: the session's key, if its sockets are encrypted. `peeked`, also in the functions below:
  // the number of bytes that the daemon has read without taking them from the socket.
  // `permit`: may point to null, for a session without limits.
  Result<bool> assign(const wire::Hello& hello, const Identity& identity,
                      const std::optional<tls::Key>& key, size_t peeked, UniqueFd* socket,
                      std::unique_ptr<Admission::Permit>* permit);
  // Passes on a further socket of a session. kNotFound if no session has the token, or if the
  // socket has come before. kUnavailable if the worker takes no connection now.
  Status attach(const wire::Attach& attach, size_t peeked, UniqueFd socket);

  // Passes on a connection from a worker of another server that serves the same program. Returns
  // false if the worker that the message names is not in this pool, or takes no connection now. On
  // success, closes the socket here.
  bool pass_on(const wire::PeerHello& hello, size_t peeked, UniqueFd* socket);
  // Passes on a connection from a worker that looks up an export of another worker. `user`: of the
  // process at the connection's other end. Returns false if no worker of that user has query.place,
  // or if that worker takes no connection now.
  bool look_up(const wire::ExportQuery& query, uid_t user, size_t peeked, UniqueFd* socket);
  // Whether a session runs as that user.
  bool runs_as(uid_t user) const;

  void add_descriptors(std::vector<pollfd>* items) const;
  // Handles the events of every worker whose descriptors are ready. Takes time in proportion to the
  // number of workers and of items.
  void handle(std::span<const pollfd> items);
  // When handle() and refill() must be called again even without an event.
  Clock::time_point next_deadline() const;

  // Asks all workers to end, waits, kills the workers that still run, and waits again. Blocks for
  // at most twice the stop timeout, and a second for each helper that runs. A process that is stuck
  // in a driver may survive even that and is left behind. `why`: for clients whose sessions end,
  // and the audit.
  void shutdown(const std::string& why = "the server stops");

  // Ends the sessions under a lease. The worker reports the reason to its client. A worker that
  // does not end within twice the stop timeout is killed.
  void end_leased(const std::string& lease, const std::string& why);
  // Ends the session of that worker as end_leased() does. kNotFound without such a session, or if
  // its owner does not pass `may_end`.
  using MayUse = std::function<bool(const Identity& owner)>;
  Status end_session(uint32_t worker_pid, const MayUse& may_end, const std::string& why);
  // worker_pool_park.cpp: begin to park or wake the session of that worker. kUnavailable if the
  // session's state does not allow that, kNotFound in the same cases as end_session(). report()
  // shows the outcome.
  Status park_session(uint32_t worker_pid, const MayUse& may_park, const Identity& by);
  Status wake_session(uint32_t worker_pid, const MayUse& may_wake, const Identity& by);
  // worker_pool_move.cpp: makes a parked session wake on the GPU `to` instead of `from`. `from` may
  // be left out if the session has one GPU. Without `to`, chooses, of the GPUs that pass
  // `may_take`, the GPU with the fewest sessions. Returns the GPU. kUnavailable if the move is not
  // possible now, kInvalidArgument if it never is.
  Result<uint32_t> move_session(uint32_t worker_pid, std::optional<uint32_t> from,
                                std::optional<uint32_t> to,
                                const std::function<bool(uint32_t gpu)>& may_take,
                                const Identity& by);
  // Continues to park and wake sessions. Call it in each round, and when the monitor has a sample.
  void advance_parking(GpuMonitor& monitor);
  // Whether a successor must wait: a helper or a worker moves a session's memory, or a worker waits
  // for room. Helpers and workers that have failed do not count.
  bool has_helpers() const {
    return std::ranges::any_of(helpers_, [](const ParkHelper& one) { return !one.has_failed(); }) ||
           std::ranges::any_of(workers_, [](const Worker& one) {
             return one.is(State::kBusy) &&
                    (one.park.wish || (one.park.worker_moves() && !one.park.is_broken));
           });
  }
  bool has_helper(pid_t process) const;
  // worker_pool_room.cpp: ends the session of that worker, because another client needs its place.
  // The session's own client is disconnected. `by`: the other client, for the log and the audit.
  void end_lost(uint32_t worker_pid, const std::string& by);
  // The running sessions and their leases.
  std::vector<Leases::Use> uses() const;
  // The sessions with a permit that are ending, or whose clients are disconnected.
  std::vector<Admission::LostSession> lost() const;
  // worker_pool_report.cpp: adds the work of the sessions under a lease. Sessions that end after
  // end_leased() do not count any more.
  void report(wire::LeaseInfo* lease) const;

  size_t sessions() const { return count(WorkerState::kBusy); }
  // worker_pool_report.cpp: adds the idle workers and the sessions, as far as the viewer may see
  // them.
  void report(wire::ServerStatus* status, const Viewer& to) const;
  // Adds the sessions that use a GPU, as far as the viewer may see them. `memory_of`: bytes in use,
  // by worker process. Returns the room of the viewer's own session with the fewest free
  // bytes on this GPU, or nullopt if none of these sessions has a limit.
  std::optional<Admission::Room> report(wire::GpuReport::Gpu* gpu,
                                        const std::map<uint32_t, uint64_t>& memory_of,
                                        const Viewer& to) const;
  size_t starting() const { return count(WorkerState::kStarting); }
  bool ever_ready() const { return !offer_.driver.empty(); }
  // The report of the latest ready worker that has all of the server's devices.
  const WorkerReady& offer() const { return offer_; }
  // Call it when a client asks for the devices. If no worker has reported them yet, the next
  // refill() starts a worker. If the settings want no idle workers, this worker ends when it has
  // reported the devices.
  void find_out() { asked_ = true; }
  bool finding_out() const { return asked_ && !ever_ready() && last_failure_.ok(); }
  // Why the latest worker did not start; ok if it did.
  const Status& last_failure() const { return last_failure_; }
  // last_failure() for the start of the server. If a setting is the reason, returns
  // kInvalidArgument and names the setting's origin. The caller reports the failure.
  Status start_failure() const;
  // The start is over: from now on, the pool itself reports the first of several failures.
  void serve() { is_serving_ = true; }
  // Call it if the pool has no worker for the client. Returns the failure of the latest start if
  // its reason is lasting (start_failure.h), if it concerns the client, and if no other worker for
  // the client is starting. Otherwise returns ok: the client should wait. The pool retries after a
  // pause.
  Status lasting_failure(const Waiting& client) const;

 private:
  using State = WorkerState;
  static constexpr uint64_t kNeverTried = ~uint64_t{0};
  // How long NVML may take to report the size of a session. The program may wait meanwhile.
  static constexpr std::chrono::seconds kLongestMeasure{10};
  // How often a waiting session looks for room while other processes use its GPUs.
  static constexpr std::chrono::milliseconds kRoomPause{200};
  // The parking of a session.
  struct Park {
    ParkState state = ParkState::kActive;
    uint64_t group = 0;         // sessions with the same number are parked together
    bool has_answered = false;  // the worker has answered the last step
    bool owes_answer = false;   // the worker has yet to answer a step that no longer matters
    bool is_measured = false;
    Clock::time_point since, parked_at;  // `since`: when it entered this state
    Clock::time_point waits_since;       // when it entered kWaiting before this wake
    ParkWay way = ParkWay::kDriver;
    std::map<uint32_t, uint64_t> bytes;  // the bytes that the park moves, by device
    uint64_t kept = 0;   // bytes of host memory that the worker keeps for its next park
    uint64_t keeps = 0;  // the value of `kept` after the wake in progress

    // Whether the worker itself is moving the memory now.
    bool worker_moves() const {
      return way == ParkWay::kWorker &&
             (state == ParkState::kParking || state == ParkState::kWaking);
    }
    std::optional<Identity> by;               // the user that requested the park or wake; none: the
                                              // daemon or the session's own program did
    std::string refused;                      // the reason of the last refused park; empty: none
    std::string logged;                       // the last reason in the log
    Clock::time_point awake_at{};             // when the session last woke
    uint64_t tried_at = kNeverTried;          // WorkPage::used_at() when park_after last tried
    std::optional<Clock::time_point> try_at;  // when park_after tries again
    Clock::time_point room_asked;  // when to look for room; earlier samples of NVML do not count
    bool keeps_room = false;  // other sessions must leave it room to wake (keep_room())
    bool is_broken = false;   // a park or wake failed, so the session ends
    // A permutation: where the memory of each GPU goes when the session wakes. Empty: back to its
    // GPU.
    std::map<uint32_t, uint32_t> moves;
    uint32_t unanswered_moves = 0;  // unanswered kPlace steps; if not 0, kWakeWanted is ignored
    // ---- worker_pool_oversubscribe.cpp
    struct Wish {
      uint32_t device = 0;
      uint64_t bytes = 0, missing = 0;
      Clock::time_point since;
      uint64_t room_changes = 0;  // room_changes_ when the worker asked
      uint64_t seen_changes = 0;  // room_changes_ when refuse_at was set
      std::optional<Clock::time_point> refuse_at{}, granted_at{};
    };
    std::optional<Wish> wish;  // the worker waits for room, in the middle of a command
    bool is_hopeless = false;  // no room can be made for the session now, so it claims no devices
    // The worker that needs the room for which the session is being parked. 0: none. kNewWorker: a
    // worker that starts.
    static constexpr pid_t kNewWorker = -1;
    pid_t room_for = 0;
    bool is_preempted = false;  // the session makes room after the end of its work
    // Until these times, the session is not parked for other sessions: it had work (busy_until),
    // cannot be parked (cannot_until), or did not end its work in time for a preemption
    // (preempt_after).
    Clock::time_point busy_until{}, cannot_until{}, preempt_after{};
    Clock::time_point asks_from{};  // when the worker may ask about room again
    Clock::duration wake_took{};    // how long the last wake took
  };
  // A worker, with its session while it is busy.
  struct Worker {
    State state = State::kStarting;
    Clock::time_point since;  // when the worker entered the state
    pid_t pid = -1;
    UniqueFd process;  // pidfd
    std::unique_ptr<WorkerCgroup> cgroup;
    DeviceSets::Key devices;
    uint32_t sm_percent = 0;
    UniqueFd control;  // the socket to the worker, only for sending
    UniqueFd reports;  // pipe from the worker (reports.h)
    ReportReader reader;
    bool reads_reports = true;  // true at the worker's start, and while parking needs answers
    WorkerLog log;
    Base base;
    wire::ServerStatus::Session session;  // like most members below, about the worker's session
    uint8_t token[16] = {};               // SessionStart::token
    wire::AttachName name{};              // attach_name() of the token
    // By Attach::index: the least Attach::attempt that is still valid.
    std::array<uint32_t, wire::kMostSockets> attempts{};
    bool reconnects = false;           // attempts after the first are valid
    Clock::time_point attempted_at{};  // when the client last connected with a valid token
    Identity identity;
    std::unique_ptr<Admission::Permit> permit;
    std::optional<WorkPage> work;
    Park park;
    std::set<pid_t> shares_with;  // workers that have looked up exports of this worker
    bool shares_outside = false;  // a worker of another server has looked up exports
    std::vector<std::pair<ExportCall, UniqueFd>> callers;  // lookups that wait for the wake
    std::vector<uint64_t> lost_ranks;                      // RanksLost that is still to be sent
    std::optional<SessionTotals> totals;  // set when the worker reports the end of the session
    wire::ExportPlace exports{};          // where other workers look up this worker's exports
    uint8_t client[16] = {};              // session_name() of Hello::session
    uint32_t index = 0;                   // Hello::worker
    // When to act without an event. Busy: to enforce limits of time, and to send lost_ranks. Ended:
    // to call waitpid().
    Clock::time_point look_at{};
    std::optional<Clock::time_point> held_since;  // when it ended, if a debugger holds its process
    std::optional<Clock::time_point> kill_at;     // when the worker is killed, if it still runs
    std::string fallback;                         // Hello::fallback
    std::string ended_by;                         // the daemon's reason, for the audit
    std::string ended_for;         // added to ended_by in the log and the audit, not for the client
    bool lease_ended = false;      // the session's work counts for no lease
    std::vector<std::byte> start;  // the SessionStart, without its key

    bool is(State what) const { return state == what; }
    bool is_spare() const { return is(State::kStarting) || is(State::kIdle); }
  };

  // Changes the state of a worker (worker_state.h). Only restore() sets the state directly.
  // `outcome`: how the worker's session has ended, if it had one.
  void enter(Worker& worker, State state, const std::string& outcome = {});
  Result<Worker*> find_session(uint32_t worker_pid, const MayUse& may_use);
  // worker_pool_park.cpp
  static void enter(Worker& worker, ParkState state);
  static void send_step(Worker& worker, const ParkStep& step);
  static void send_step(Worker& worker, ParkStep::What what, uint64_t keep = 0) {
    send_step(worker, ParkStep{what, keep});
  }
  void read_park(Worker& worker, const ParkAnswer& answer);
  void note_way(Worker& worker, const ParkAnswer& at_rest);
  void refuse_park(Worker& worker, const std::string& why);
  std::optional<Clock::time_point> park_due(const Worker& worker) const;
  void park_idle(Worker& worker);
  uint64_t memory_of(uint32_t ordinal) const;
  bool find_bytes(Worker& worker, GpuMonitor& monitor) const;
  static uint64_t host_bytes(const Park& park);
  void lower_host_memory(Worker& worker, uint64_t kept) const;
  static Clock::time_point move_end(const Park& park);
  bool find_sample(GpuMonitor& monitor, Clock::time_point asked,
                   std::shared_ptr<const GpuSample>* sample) const;
  const GpuSample::Gpu* gpu_of(const GpuSample* sample, uint32_t ordinal) const;
  // The host's memory that a park takes besides the memory that the worker has kept.
  static uint64_t more_host_bytes(const Park& park) { return host_bytes(park) - park.kept; }
  Status check_host_memory(const std::vector<Worker*>& members) const;
  Status allow_host_memory(Worker& worker, int64_t bytes) const;
  // Lets the workers, or a helper, move the memory.
  Status start_moving(const std::vector<Worker*>& members, ParkTask task);
  uint64_t may_keep(const Worker& worker) const;
  void wake_waiting(GpuMonitor& monitor, Clock::time_point now);
  // `may_displace`: other sessions may be parked for the members. `is_first`: no earlier session in
  // the queue waits for the members' devices.
  void wake_if_room(const std::vector<Worker*>& members, GpuMonitor& monitor, Clock::time_point now,
                    bool may_displace, bool is_first);
  void end_helpers();
  void helper_ended(Worker& worker, const ParkHelper::Outcome& outcome);
  void ask_for_room_again();
  void worker_moved(Worker& worker, const ParkAnswer& answer);
  void is_parked(Worker& worker);
  void not_parked(Worker& worker, const std::string& why);
  void is_awake(Worker& worker);
  void lose(Worker& worker, const std::string& why);
  Clock::time_point next_parking() const;
  // worker_pool_move.cpp
  Status check_move(const Worker& worker, uint32_t from, uint32_t to);
  Result<uint32_t> choose_gpu(const Worker& worker, uint32_t from,
                              const std::function<bool(uint32_t gpu)>& may_take);
  void set_devices(Worker& worker, const std::map<uint32_t, uint32_t>& moves, ParkStep::What step);
  void move_back(Worker& worker, const std::string& why);
  GpuMoves moves_of(const Worker& worker) const;
  // worker_pool_group.cpp
  bool pass_on_lookup(Worker& exporter, ExportCall call, UniqueFd* socket);
  void forget_shares(const Worker& ended);
  // `tags`: the communicators of `one`.
  static bool are_connected(const Worker& one, const std::unordered_set<uint64_t>& tags,
                            const Worker& other);
  std::vector<Worker*> connected_with(Worker& first);
  std::vector<Worker*> group_of(const Worker& worker);
  // `wait`: how long the workers may wait for the end of work in progress.
  Status begin_park(Worker& worker, const std::optional<Identity>& by,
                    std::chrono::milliseconds wait = {});
  void advance_rest(Worker& worker);
  void refuse_group(Worker& worker, const std::string& why);
  void start_parking(Worker& worker);
  // worker_pool_oversubscribe.cpp
  bool is_oversubscribed(const Worker& worker) const;
  bool reads(const Worker& worker) const;
  static uint32_t priority_of(const Worker& worker);
  void read_room(Worker& worker, const ParkAnswer& answer);
  uint64_t has_on(const Worker& worker, uint32_t device) const;
  uint64_t left_of(uint32_t device) const;
  uint64_t counted_free(uint32_t device) const;
  struct RoomGroups {
    std::vector<Worker*> firsts;  // one session of each group
    std::vector<RoomCandidate> candidates;
  };
  RoomGroups room_groups(const std::vector<Worker*>& needy);
  uint64_t could_free(Worker& worker, uint32_t device, uint64_t free);
  void look_later(const std::vector<Worker*>& members, Clock::time_point at);
  bool has_room(const std::vector<Worker*>& members, GpuMonitor& monitor, Clock::time_point now,
                bool may_displace);
  RoomChoice make_room(const std::vector<Worker*>& needy, const RoomNeed& need,
                       Clock::time_point now);
  void serve_wish(Worker& worker, Clock::time_point now, bool may_displace);
  uint64_t context_bytes(uint32_t device) const;
  void serve_start(Clock::time_point now, bool may_displace);
  void refuse_wish(Worker& worker, const std::string& why);
  std::set<uint32_t> moving_devices() const;
  void keep_room();
  Clock::time_point rest_end(const Worker& worker) const;
  void end_late_room(Worker& worker, Clock::time_point now);
  void note_displaced(const Worker& worker, Clock::time_point now);
  Clock::time_point next_room_event(const Worker& worker) const;
  size_t count(State state) const;
  Status start(const Base& base, const DeviceSets::Key& devices, uint32_t sm_percent);
  Status hold(Worker* worker);
  static bool shows(const Worker& worker, const Viewer& to);
  void stop_session(Worker& worker, const std::string& why);
  // Adds the work of a session to that of its lease.
  static void add_to_lease(const Worker& worker, wire::LeaseInfo* lease);
  // Adds a session that has ended to the server's totals, and to the totals of its lease.
  void count_end(const Worker& worker);
  // The time since the loss, if the session's client is disconnected.
  static std::optional<uint64_t> lost_seconds(const Worker& worker);
  // None if the client is connected and the session is not ending.
  static std::optional<LostClient> lost_client(const Worker& worker);
  // The session, as it is now.
  static wire::ServerStatus::Session session_of(const Worker& worker);
  static AuditedSession audited(const Worker& worker);
  bool suits(const Worker& worker, const Waiting& client) const;
  // Makes the message that begins a session, with its grant. The caller adds the random bytes, the
  // key and `peeked`.
  SessionStart make_start(const wire::Hello& hello, const Identity& identity,
                          const Admission::Permit* permit) const;
  static uid_t user_of(const Worker& worker);
  // On success, closes the socket here.
  static bool pass_on(Worker& worker, const ToWorker& message, UniqueFd* socket);
  void begin_session(Worker& worker, const SessionStart& start, const Identity& identity);
  void set_session(Worker& worker, const SessionStart& start, const Identity& identity) const;
  CarriedWorker carry(const Worker& worker, const Admission& admission) const;
  Result<Worker> restore(const CarriedWorker& carried);
  void log_end(const Worker& worker, std::optional<int> status);
  void report_lost_ranks(const Worker& dead);
  static Clock::time_point send_lost_ranks(Worker& worker);
  void stop_worker(Worker& worker, const std::string& why = {});
  // Starts a worker, for a client or for the pool. False if that fails or too many are starting.
  bool try_start(const wire::Hello* hello, const DeviceSets::Key& devices, uint32_t sm_percent);
  size_t young(Clock::time_point now) const;  // the number of young sessions
  Base choose_base(const wire::Hello* hello) const;
  void read(Worker& worker);
  void read_start(Worker& worker, ToDaemon message);
  // Handles the end of a worker's process. `status`: of waitpid(); none: a debugger still holds the
  // process.
  void handle_end(Worker& worker, std::optional<int> status);
  // Returns false while waitpid() does not report the end.
  bool reap(Worker& worker);
  void collect(Clock::time_point deadline);
  // In worker_pool_failures.cpp. Enforces the limits that a worker should enforce itself. Returns
  // when to check the worker again. Ends the worker if `now` is later than a limit allows.
  Clock::time_point enforce_time(Worker& worker, Clock::time_point now);
  void end_orphans();
  // Whether further workers are likely to end in the same way as this worker.
  bool ends_again(const Worker& worker, std::optional<int> status);
  // Records the failed start. The next worker gets a larger base.
  void did_not_start(const Worker& worker, const Status& status, bool is_lasting);
  void failed(const Status& status, bool is_lasting, const DeviceSets::Key& devices,
              uint32_t sm_percent);

  const Settings& settings_;
  Audit* audit_ = nullptr;
  const Bases bases_;
  const uint16_t port_;
  // How often the bases' size is doubled: as this machine's GPUs need, or more often if a driver
  // needs more.
  uint32_t doublings_;
  DeviceSets device_sets_;
  PoolDemand demand_;
  std::unique_ptr<Cgroups> cgroups_;  // null: each process has limits of its own instead
  std::list<Worker> workers_;
  std::list<ParkHelper> helpers_;
  uint64_t groups_ = 0;                      // the last number of Park::group
  uint64_t room_changes_ = 0;                // how often a session has been parked, or has ended
  std::deque<Clock::time_point> displaced_;  // when sessions were displaced soon after a wake
  Clock::time_point thrashing_reported_{};
  std::optional<Clock::time_point> next_room_;  // when a waiting session looks for room again
  // A worker found no room for its context. Sessions are parked for the next worker if a client
  // waits for it.
  struct StartWish {
    uint32_t device = 0;
    uint64_t room_changes = 0;  // room_changes_ when the worker failed
  };
  std::optional<StartWish> start_wish_;
  // The highest priority of the clients that wait for a worker and may displace others; none: no
  // such client waits.
  std::optional<uint32_t> start_priority_;
  // The totals of workers' starts, and of ended sessions by user and medium.
  wire::ServerStatus::Totals totals_;
  // The totals of ended sessions, by lease id. A lease that has ended is not in the map.
  std::map<std::string, wire::LeaseInfo> lease_totals_;
  WorkerReady offer_;
  std::string warning_;  // the latest worker's warning, which has been logged
  Status last_failure_;
  // The setting that kept the latest worker from starting; null: another reason.
  const config::SettingBase* failed_setting_ = nullptr;
  // Set if last_failure_ is lasting: the devices and the share of the worker that failed to start.
  struct LastingFailure {
    DeviceSets::Key devices;
    uint32_t sm_percent = 0;
  };
  std::optional<LastingFailure> lasting_;
  // The first crash of a worker with these devices since a worker last became ready. A crash is an
  // end without a report, but not by SIGKILL or SIGTERM.
  struct Crash {
    DeviceSets::Key devices;
    Clock::time_point at;
  };
  std::optional<Crash> crash_;
  bool is_serving_ = false;
  bool asked_ = false;     // a client has asked for the devices (find_out())
  bool asks_nccl_ = true;  // the next worker reports which NCCL sessions get
  int failures_ = 0;       // failed starts in a row
  bool adopts_ = false;
  std::function<bool(pid_t)> is_other_;
  std::set<pid_t> not_of_workers_;  // children of this process from before the first worker
  std::set<pid_t> killed_orphans_;
  // The latest sessions that the daemon has ended although their clients may come back, and why.
  std::deque<std::pair<wire::AttachName, std::string>> ended_;
  std::optional<Clock::time_point> orphans_at_;  // when to look for orphans again
  Clock::time_point retry_at_{};
};

}  // namespace rcuda::server

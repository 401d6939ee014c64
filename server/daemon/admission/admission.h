// Admission: decides which clients may have a session now, by the leases of devices (leases.h), the
// rules of the configuration file (server/quota/rules.h) and the number of sessions of the whole
// server.
//
// A client applies. It is admitted immediately if all that it needs is free; otherwise it waits in
// a queue. Budgets count the amounts in use. The server has a budget, and so have each user and
// each group with limits. Each budget is first come, first served: if a budget has too little left
// for an applicant, the applicant holds back later applicants of this budget, and no other
// applicants. (If only sessions of its own user are in its way, it holds back only applicants of
// this user.) An applicant whose devices are leased to others keeps its place in the queue, and
// holds back no other applicant.
//
// A client that does not want to wait is also put into the queue, but only for a moment
// (Connection::kNoticesExit): the session of a program that has just exited may still hold its
// places in the budgets. Such a client holds back no other applicant.
//
// An admitted client has a Permit. The Permit names what the client's session may use, and holds
// the session's places in the budgets. The WorkerPool keeps it until the session's worker has
// ended, so a killed worker frees its places too.
//
// The rules may change while sessions run. A session keeps the limits of its Permit. The memory of
// a session does not count for a budget that had no limit of memory when the session began.
//
// Threads: the daemon's only thread. Blocking: nothing. Errors: kDenied if the session can never
// fit, kUnavailable if it does not fit now and the client does not wait; both name the lease or the
// limit, the rule and the remedy.
#pragma once

#include <bitset>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "server/daemon/admission/leases.h"
#include "server/daemon/carried/carried_state.h"
#include "server/identity/identity.h"
#include "server/quota/ledger.h"
#include "server/quota/limits.h"
#include "server/quota/rules.h"

namespace rcuda::server {

// Reads the rules of a configuration file, and looks up their users and groups on this machine. An
// empty path has no rules. Blocks for the file and the name service. Errors: as Rules::read().
Result<Rules> read_rules(const std::string& config_file);

class Admission {
 private:
  struct Budget;
  using BudgetPointer = std::shared_ptr<Budget>;

 public:
  // Applicants that may wait at the same time. One user may take a quarter of the places.
  static constexpr size_t kMostWaiting = 1024;

  // `limit`: the smallest of the limits on the memory that a session may use on one device, in
  // bytes. `free`: the least number of bytes that any of these limits still leaves.
  struct Room {
    uint64_t limit = 0;
    uint64_t free = 0;
  };

  // Neither a Permit nor an Applicant may outlive its Admission.
  class Permit {
   public:
    ~Permit();
    Permit(const Permit&) = delete;
    Permit& operator=(const Permit&) = delete;

    const std::vector<Allowance>& allowances() const { return allowances_; }
    // The descriptor of each allowance's Ledger. The Permit owns them.
    std::vector<int> ledgers() const;
    const SessionLimits& limits() const { return limits_; }
    // device_room(): the room that the session's limits leave in a device's memory. device_use():
    // the memory that the session itself uses there. Both return none without a limit.
    std::optional<Room> device_room(uint32_t device) const;
    std::optional<uint64_t> device_use(uint32_t device) const;

   private:
    friend class Admission;
    bool has_place_in(const Budget& budget) const;
    struct Place {
      BudgetPointer budget;
      std::optional<uint32_t> slot;  // in the budget's Ledger; none: the budget had no Ledger
    };
    Permit() = default;
    // Calls visit(allowance, ledger) for each allowance of device memory.
    template <typename Visit>
    void for_each_memory_limit(const Visit& visit) const;

    Admission* admission_ = nullptr;
    uint32_t devices_ = 0;
    std::vector<Place> places_;
    std::optional<Ledger> own_;  // of the session's own allowance, which is then allowances_[0]
    std::vector<Allowance> allowances_;
    SessionLimits limits_;
  };

  // A client that has applied. The destructor removes it from the queue.
  class Applicant {
   public:
    ~Applicant();
    Applicant(const Applicant&) = delete;
    Applicant& operator=(const Applicant&) = delete;

    // Whether its wait is over, so that take() returns the permit or the refusal.
    bool is_decided() const { return permit_ != nullptr || obstacle_.code() == Code::kDenied; }
    // Call this after is_decided(). Fails with the refusal, or if the session's Ledger cannot be
    // made.
    Result<std::unique_ptr<Permit>> take();

    // For an applicant that waits. place(): its place, from 1, among the applicants for the same
    // budget or devices. reason(): why it waits.
    size_t place() const { return place_; }
    std::string reason() const;
    // A clause which says that disconnected sessions will end to make room for the applicant. Empty
    // if none will.
    std::string room_hint() const;
    // The refusal of a client that has waited for as long as it wanted.
    Status timeout(std::chrono::milliseconds waited) const;
    // Whether the applicant is admitted when the sessions that are ending now are over.
    bool fits_after_ends() const;

   private:
    friend class Admission;
    Applicant() = default;

    bool lacks_room() const;
    std::string remedy() const;  // for the administrator
    // A clause that names a disconnected session that could make room. `waited`: the client has
    // waited, so the clause does not advise it to wait.
    std::string lost_hint(bool waited) const;
    // Whether the budgets would have room for the applicant if the sessions of these permits had
    // ended.
    bool fits_without(const std::vector<const Permit*>& over) const;
    uint32_t count() const { return static_cast<uint32_t>(devices_.size()); }

    Admission* admission_ = nullptr;
    Identity user_;                  // with the lease that the client names
    std::vector<uint32_t> devices_;  // in ascending order
    Status obstacle_;                // kUnavailable: its devices are leased; kDenied: it is refused
    SessionRules session_;
    std::vector<BudgetPointer> budgets_;  // the server's first, then the user's
    std::unique_ptr<Permit> permit_;
    size_t place_ = 0;
    bool may_wait_ = false;
    const Budget* lacks_ = nullptr;  // the budget for which it waits; one of budgets_
    bool behind_ = false;            // *lacks_ has enough left, but other applicants came earlier
  };

  // A session that can make room for others (lost_client.h).
  struct LostSession {
    LostClient client;
    Identity who;
    const Permit* permit = nullptr;
  };
  using Lost = std::function<std::vector<LostSession>()>;
  // Sets the function that lists the sessions that can make room. Before this call, there are none.
  void set_lost(Lost lost) { lost_ = std::move(lost); }
  // A session that must end now, because an applicant needs its places in the budgets. in_the_way()
  // returns as many sessions as applicants need, in addition to those that are already ending.
  struct InTheWay {
    uint32_t worker = 0;
    std::string user;  // of the applicant
  };
  std::vector<InTheWay> in_the_way() const;

  using Offered = std::function<std::vector<uint32_t>()>;

  // `offered`: returns the devices of the server, for messages.
  explicit Admission(
      size_t max_sessions, Offered offered = [] { return std::vector<uint32_t>(); },
      size_t most_waiting = kMostWaiting);
  ~Admission();
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // Before the first call, there are no rules. New rules also apply to applicants that wait.
  void set_rules(Rules rules);
  const Rules& rules() const { return rules_; }
  // Call review() after a change.
  void set_max_sessions(size_t most);

  const Leases& leases() const { return leases_; }
  // Call review() after a change.
  Leases& leases() { return leases_; }
  // Admits the applicants in the queue that may start now, and sets the places of the others.
  void review();
  // Calls Leases::check_devices() with the devices of the server.
  Status check_devices(const std::vector<uint32_t>& devices, const std::string& lease) const {
    return leases_.check_devices(devices, lease, offered_());
  }

  // `devices`: the devices that the client requests. `may_wait`: the client wants to wait. If so,
  // sessions may be ended for the client (in_the_way()), and the client may wait for the end of a
  // lease.
  Result<std::unique_ptr<Applicant>> apply(const Identity& user,
                                           const std::vector<uint32_t>& devices, bool may_wait);
  // The room in a device's memory for a session that the user starts now; none without a limit.
  std::optional<Room> device_room(const Identity& user, uint32_t device) const;
  bool limits_groups() const { return rules_.limits_groups(); }

  // For a successor (successor.h): carry() saves the budgets and the leases, or one Permit. Call
  // restore() before the first client applies. It returns one element for each worker of `state`,
  // null for a worker without a Permit.
  void carry(CarriedState* state) const;
  CarriedPermit carry(const Permit& permit) const;
  Result<std::vector<std::unique_ptr<Permit>>> restore(const CarriedState& state);
  // The number of clients in the queue that want to wait.
  size_t waiting() const;

 private:
  UserRules rules_for(const Identity& user) const;
  Result<std::vector<BudgetPointer>> budgets_of(const Identity& user, const UserRules& rules);
  Result<BudgetPointer> budget(const std::string& key, const BudgetLimits& limits);
  // Sets the applicant's limits and budgets by the current rules. An error means that it can never
  // be admitted.
  Status set_limits(Applicant& applicant);
  Result<std::unique_ptr<Permit>> restore(const CarriedPermit& carried);
  Status check_queue(const Applicant& applicant) const;
  // Whether leases keep the applicant from its devices. If so, sets its obstacle and its place.
  // `ahead`: by device, the number of earlier applicants that wait for the end of a lease.
  bool waits_for_lease(Applicant& applicant, std::map<uint32_t, size_t>* ahead) const;
  void give_permit(Applicant& applicant);
  void give_back(Permit& permit);

  const Offered offered_;
  Lost lost_ = [] { return std::vector<LostSession>(); };
  const size_t most_waiting_;
  Leases leases_;
  Rules rules_;
  BudgetPointer server_;
  std::map<std::string, std::weak_ptr<Budget>> budgets_;  // those with sessions or applicants
  std::list<Applicant*> queue_;                           // in the order of arrival
};

}  // namespace rcuda::server

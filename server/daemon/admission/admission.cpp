#include "server/daemon/admission/admission.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/units.h"
#include "common/identity/users.h"
#include "server/daemon/admission/lease_file.h"

namespace rcuda::server {
namespace {

constexpr size_t kUser = 1;  // the index of the user's budget in Applicant::budgets_

bool needs_ledger(const Allowance& allowance) {
  return allowance.device_memory != 0 || allowance.host_memory != 0 || allowance.bandwidth != 0;
}

std::string counted(uint64_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

Status never_fits(uint32_t devices, const std::string& who, const Count& limit) {
  return Status(Code::kDenied, "the program asks for " + counted(devices, "device") + ", and " +
                                   who + " may have " + std::to_string(limit.most) + " (" +
                                   limit.rule +
                                   "): name fewer devices of this server in "
                                   "RCUDA_DEVICES");
}

// A Ledger has rows for the devices below Ledger::kDevices. Fails if the rules limit device memory
// and the client requests a device without a row.
Status check_countable(const std::vector<uint32_t>& devices, const UserRules& rules) {
  const bool counted =
      rules.session.allowance.device_memory != 0 || rules.user.allowance.device_memory != 0 ||
      std::any_of(rules.groups.begin(), rules.groups.end(),
                  [](const auto& group) { return group.second.allowance.device_memory != 0; });
  const auto most = std::max_element(devices.begin(), devices.end());
  if (!counted || most == devices.end() || *most < Ledger::kDevices) return {};
  return Status(Code::kUnsupported,
                "the server limits device memory (device_memory), but the memory of device " +
                    std::to_string(*most) + " cannot be limited, only that of devices 0 to " +
                    std::to_string(Ledger::kDevices - 1) +
                    ": name another device in RCUDA_DEVICES, or remove device_memory from the "
                    "server's limits");
}

// The key of a user's budget. Distinguishes users as same_user() does.
std::string key_of(const Identity& user) {
  if (user.method == "insecure") return "insecure";
  return user.uid ? "uid " + std::to_string(*user.uid) : "name " + user.user;
}

std::string key_of_group(gid_t gid) { return "gid " + std::to_string(gid); }

// Applies one more limit to `room`.
void narrow(std::optional<Admission::Room>* room, uint64_t limit, uint64_t used) {
  if (limit == 0) return;
  const uint64_t free = limit - std::min(limit, used);
  if (!*room) *room = Admission::Room{limit, free};
  (*room)->limit = std::min((*room)->limit, limit);
  (*room)->free = std::min((*room)->free, free);
}

}  // namespace

Result<Rules> read_rules(const std::string& config_file) {
  if (config_file.empty()) return Rules();
  return Rules::read(config_file, {identity::user_id, identity::group_id});
}

struct Admission::Budget {
  BudgetLimits limits;
  uint32_t sessions = 0;
  uint64_t devices = 0;
  std::optional<Ledger> ledger;
  std::bitset<Ledger::kSlots> slots;  // set: the slot is taken

  bool lacks_session() const {
    return (limits.sessions.most != 0 && sessions >= limits.sessions.most) || slots.all();
  }
  bool lacks_devices(uint32_t more) const {
    return limits.devices.most != 0 && devices + more > limits.devices.most;
  }
  bool has_room(uint32_t more) const { return !lacks_session() && !lacks_devices(more); }
  // Whether this budget would have room if all sessions of the budget `user` were over. These
  // sessions count in both budgets.
  bool has_room_without(const Budget& user, uint32_t more) const {
    // A budget that a reload has added does not count sessions from before the reload, so it may
    // count fewer sessions than `user`.
    const uint32_t others = sessions - std::min(sessions, user.sessions);
    const uint64_t others_devices = devices - std::min(devices, user.devices);
    return (limits.sessions.most == 0 || others < limits.sessions.most) &&
           (limits.devices.most == 0 || others_devices + more <= limits.devices.most) &&
           !slots.all();
  }
  // Whether there would be room after the end of `sessions_over` sessions of this budget, which
  // have `devices_over` devices.
  bool has_room_after(uint32_t sessions_over, uint64_t devices_over, uint32_t more) const {
    return (limits.sessions.most == 0 || sessions - sessions_over < limits.sessions.most) &&
           (limits.devices.most == 0 || devices - devices_over + more <= limits.devices.most) &&
           (sessions_over != 0 || !slots.all());
  }
  std::string shortage(uint32_t more) const;
};

std::string Admission::Budget::shortage(uint32_t more) const {
  const std::string& who = limits.allowance.of;
  if (who.empty()) return "all " + std::to_string(sessions) + " sessions of the server are taken";
  if (slots.all()) {
    return who + " has " + counted(sessions, "session") +
           "; the server cannot apply one shared limit to more sessions";
  }
  if (lacks_session()) {
    return who + " has " + counted(sessions, "session") + ", as many as it may have (" +
           limits.sessions.rule + ")";
  }
  return "the sessions of " + who + " have " + counted(devices, "device") +
         ", this session asks for " + std::to_string(more) + ", and together they may have " +
         std::to_string(limits.devices.most) + " (" + limits.devices.rule + ")";
}

Admission::Permit::~Permit() { admission_->give_back(*this); }

std::vector<int> Admission::Permit::ledgers() const {
  std::vector<int> descriptors;
  if (own_) descriptors.push_back(own_->descriptor());
  for (const Place& place : places_) {
    if (place.slot) descriptors.push_back(place.budget->ledger->descriptor());
  }
  return descriptors;
}

bool Admission::Permit::has_place_in(const Budget& budget) const {
  return std::ranges::any_of(places_,
                             [&](const Place& place) { return place.budget.get() == &budget; });
}

template <typename Visit>
void Admission::Permit::for_each_memory_limit(const Visit& visit) const {
  auto allowance = allowances_.begin();
  const auto pass = [&](const Ledger& ledger) {
    if (allowance->device_memory != 0) visit(*allowance, ledger);
    ++allowance;
  };
  if (own_) pass(*own_);
  for (const Place& place : places_) {
    if (place.slot) pass(*place.budget->ledger);
  }
}

std::optional<Admission::Room> Admission::Permit::device_room(uint32_t device) const {
  std::optional<Room> room;
  if (device >= Ledger::kDevices) return room;
  for_each_memory_limit([&](const Allowance& allowance, const Ledger& ledger) {
    narrow(&room, allowance.device_memory, ledger.sum(device));
  });
  return room;
}

std::optional<uint64_t> Admission::Permit::device_use(uint32_t device) const {
  std::optional<uint64_t> use;
  if (device >= Ledger::kDevices) return use;
  for_each_memory_limit([&](const Allowance& allowance, const Ledger& ledger) {
    use = ledger.of(device, allowance.slot);
  });
  return use;
}

Admission::Applicant::~Applicant() {
  if (std::erase(admission_->queue_, this) != 0) admission_->review();
}

Result<std::unique_ptr<Admission::Permit>> Admission::Applicant::take() {
  if (!permit_) return obstacle_;
  if (needs_ledger(session_.allowance)) {
    RCUDA_ASSIGN_OR_RETURN(permit_->own_, Ledger::make());
    permit_->own_->clear(0);
    permit_->allowances_.insert(permit_->allowances_.begin(), session_.allowance);
  }
  return std::move(permit_);
}

std::string Admission::Applicant::reason() const {
  if (!obstacle_.ok()) return obstacle_.context();
  if (!behind_) return lacks_->shortage(count());
  return "the limit of " + lacks_->limits.allowance.of + " (" + lacks_->limits.devices.rule +
         ") has room, but programs that are earlier in the queue come first";
}

std::string Admission::Applicant::remedy() const {
  return std::string("raise ") +
         (lacks_ == admission_->server_.get() ? "--max-sessions" : "the limit") + " on the server";
}

bool Admission::Applicant::fits_without(const std::vector<const Permit*>& over) const {
  return std::ranges::all_of(budgets_, [&](const BudgetPointer& budget) {
    uint32_t sessions = 0;
    uint64_t devices = 0;
    for (const Permit* permit : over) {
      if (!permit->has_place_in(*budget)) continue;
      ++sessions;
      devices += permit->devices_;
    }
    return budget->has_room_after(sessions, devices, count());
  });
}

Status Admission::Applicant::timeout(std::chrono::milliseconds waited) const {
  if (!may_wait_ && !obstacle_.ok()) return obstacle_;
  if (!may_wait_) {
    return Status(Code::kUnavailable, reason() +
                                          ": wait for a session to end (RCUDA_WAIT=60s), or " +
                                          remedy() + lost_hint(false));
  }
  std::string text =
      "the program waited " + time_text(std::chrono::ceil<std::chrono::seconds>(waited)) +
      " (RCUDA_WAIT) and is at place " + std::to_string(place()) + " of the queue: " + reason();
  if (obstacle_.ok()) text += ": wait longer, or " + remedy() + lost_hint(true);
  return Status(Code::kTimeout, std::move(text));
}

Admission::Admission(size_t max_sessions, Offered offered, size_t most_waiting)
    : offered_(std::move(offered)),
      most_waiting_(most_waiting),
      server_(std::make_shared<Budget>()) {
  set_max_sessions(max_sessions);
}

Admission::~Admission() = default;

void Admission::set_max_sessions(size_t most) {
  server_->limits.sessions.most = static_cast<uint32_t>(most);
}

void Admission::set_rules(Rules rules) {
  rules_ = std::move(rules);
  for (auto next = queue_.begin(); next != queue_.end();) {
    Applicant& applicant = **next;
    const Status limited = set_limits(applicant);
    if (!limited.ok()) applicant.obstacle_ = {Code::kDenied, limited.message()};
    next = applicant.is_decided() ? queue_.erase(next) : std::next(next);
  }
  review();
}

UserRules Admission::rules_for(const Identity& user) const {
  const bool known = user.uid && user.method != "insecure";
  std::vector<gid_t> groups;
  if (known) {
    groups = user.groups;
    groups.push_back(user.gid);
    groups.insert(groups.end(), user.account_groups.begin(), user.account_groups.end());
  }
  return rules_.of(known ? user.uid : std::nullopt, user.user, groups);
}

std::optional<Admission::Room> Admission::device_room(const Identity& user, uint32_t device) const {
  if (device >= Ledger::kDevices) return std::nullopt;
  const UserRules rules = rules_for(user);
  const auto used = [&](const std::string& key) {
    const auto found = budgets_.find(key);
    const BudgetPointer budget = found == budgets_.end() ? nullptr : found->second.lock();
    return budget && budget->ledger ? budget->ledger->sum(device) : 0;
  };
  std::optional<Room> room;
  narrow(&room, rules.session.allowance.device_memory, 0);
  narrow(&room, rules.user.allowance.device_memory, used(key_of(user)));
  for (const auto& [gid, limits] : rules.groups) {
    narrow(&room, limits.allowance.device_memory, used(key_of_group(gid)));
  }
  return room;
}

Result<std::unique_ptr<Admission::Applicant>> Admission::apply(const Identity& user,
                                                               const std::vector<uint32_t>& devices,
                                                               bool may_wait) {
  const std::set<uint32_t> unique(devices.begin(), devices.end());
  std::unique_ptr<Applicant> applicant(new Applicant);
  applicant->admission_ = this;
  applicant->user_ = user;
  applicant->may_wait_ = may_wait;
  applicant->devices_.assign(unique.begin(), unique.end());
  RCUDA_RETURN_IF_ERROR(set_limits(*applicant));
  queue_.push_back(applicant.get());
  review();
  if (applicant->is_decided()) return applicant;
  if (!may_wait && !applicant->obstacle_.ok()) return applicant->obstacle_;
  if (may_wait) RCUDA_RETURN_IF_ERROR(check_queue(*applicant));
  return applicant;
}

Status Admission::set_limits(Applicant& applicant) {
  const UserRules rules = rules_for(applicant.user_);
  const uint32_t count = applicant.count();
  const Count& most = rules.session.devices;
  if (most.most != 0 && count > most.most) return never_fits(count, "a session", most);

  RCUDA_ASSIGN_OR_RETURN(std::vector<BudgetPointer> budgets, budgets_of(applicant.user_, rules));
  for (const BudgetPointer& budget : budgets) {
    const Count& limit = budget->limits.devices;
    if (limit.most != 0 && count > limit.most) {
      return never_fits(count, "all sessions of " + budget->limits.allowance.of + " together",
                        limit);
    }
  }
  RCUDA_RETURN_IF_ERROR(check_countable(applicant.devices_, rules));
  applicant.session_ = rules.session;
  applicant.budgets_ = std::move(budgets);
  return {};
}

Result<std::vector<Admission::BudgetPointer>> Admission::budgets_of(const Identity& user,
                                                                    const UserRules& rules) {
  std::vector<BudgetPointer> budgets = {server_};
  RCUDA_ASSIGN_OR_RETURN(BudgetPointer of_user, budget(key_of(user), rules.user));
  budgets.push_back(std::move(of_user));
  for (const auto& [gid, limits] : rules.groups) {
    RCUDA_ASSIGN_OR_RETURN(BudgetPointer of_group, budget(key_of_group(gid), limits));
    budgets.push_back(std::move(of_group));
  }
  return budgets;
}

Result<Admission::BudgetPointer> Admission::budget(const std::string& key,
                                                   const BudgetLimits& limits) {
  std::erase_if(budgets_, [](const auto& entry) { return entry.second.expired(); });
  BudgetPointer found = budgets_[key].lock();
  if (!found) budgets_[key] = found = std::make_shared<Budget>();
  if (!found->ledger && needs_ledger(limits.allowance)) {
    RCUDA_ASSIGN_OR_RETURN(found->ledger, Ledger::make());
  }
  found->limits = limits;
  return found;
}

size_t Admission::waiting() const {
  return static_cast<size_t>(std::ranges::count_if(
      queue_, [](const Applicant* applicant) { return applicant->may_wait_; }));
}

// Whether one more applicant may wait. One user may take a quarter of the places.
Status Admission::check_queue(const Applicant& applicant) const {
  const BudgetPointer& user = applicant.budgets_[kUser];
  const auto of_user = std::count_if(queue_.begin(), queue_.end(), [&](const Applicant* other) {
    return other->may_wait_ && other->budgets_[kUser] == user;
  });
  const size_t all = waiting();
  const size_t most_of_user = (most_waiting_ + 3) / 4;
  if (all <= most_waiting_ && static_cast<size_t>(of_user) <= most_of_user) return {};
  return Status(Code::kUnavailable,
                applicant.reason() + ", and " + std::to_string(all - 1) +
                    " programs already wait in the queue, " + std::to_string(of_user - 1) +
                    " of them of this user: try again when fewer programs wait");
}

void Admission::review() {
  // `short_of`: by budget, the number of applicants that wait for the budget and hold back all its
  // later applicants. `own`: by budget and user, the number of applicants that wait for the budget
  // and hold back only later applicants of the same user.
  std::map<const Budget*, size_t> short_of;
  std::map<std::pair<const Budget*, const Budget*>, size_t> own;
  std::map<uint32_t, size_t> leased;  // the argument `ahead` of waits_for_lease()
  const auto place_in = [&](Applicant& applicant, const Budget& budget, bool holds_back) {
    const bool has_room = budget.has_room(applicant.count());
    size_t& of_user = own[{&budget, applicant.budgets_[kUser].get()}];
    const size_t ahead = short_of[&budget] + of_user;
    if (has_room && ahead == 0) return;
    if (applicant.place_ == 0) {
      applicant.lacks_ = &budget;
      applicant.behind_ = has_room;
    }
    applicant.place_ = std::max(applicant.place_, ahead + 1);
    if (applicant.may_wait_) ++(holds_back ? short_of[&budget] : of_user);
  };
  for (auto next = queue_.begin(); next != queue_.end();) {
    Applicant& applicant = **next;
    applicant.place_ = 0;
    if (waits_for_lease(applicant, &leased)) {
      next = applicant.is_decided() ? queue_.erase(next) : std::next(next);
      continue;
    }
    // An applicant that waits for sessions of its own user does not hold back other users. Such an
    // applicant has exhausted the user's own limits, or would fit without the user's sessions.
    const Budget& user = *applicant.budgets_[kUser];
    place_in(applicant, user, true);
    if (applicant.place_ == 0) {
      for (const BudgetPointer& budget : applicant.budgets_) {
        if (budget.get() == &user) continue;
        place_in(applicant, *budget, !budget->has_room_without(user, applicant.count()));
      }
    }
    if (applicant.place_ == 0) give_permit(applicant);
    next = applicant.is_decided() ? queue_.erase(next) : std::next(next);
  }
}

bool Admission::waits_for_lease(Applicant& applicant, std::map<uint32_t, size_t>* ahead) const {
  applicant.obstacle_ = check_devices(applicant.devices_, applicant.user_.lease);
  if (applicant.obstacle_.ok()) return false;
  size_t most = 0;
  for (const uint32_t device : applicant.devices_) most = std::max(most, (*ahead)[device]++);
  applicant.place_ = most + 1;
  return true;
}

void Admission::give_permit(Applicant& applicant) {
  std::unique_ptr<Permit> permit(new Permit);
  permit->admission_ = this;
  permit->devices_ = applicant.count();
  permit->limits_ = applicant.session_.limits;
  for (const BudgetPointer& budget : applicant.budgets_) {
    ++budget->sessions;
    budget->devices += applicant.count();
    permit->places_.push_back({budget, {}});
    if (!budget->ledger) continue;
    uint32_t slot = 0;
    while (budget->slots[slot]) ++slot;  // has_room() was true: a slot is free
    budget->slots.set(slot);
    budget->ledger->clear(slot);
    permit->allowances_.push_back(budget->limits.allowance);
    permit->allowances_.back().slot = slot;
    permit->places_.back().slot = slot;
  }
  applicant.permit_ = std::move(permit);
}

void Admission::give_back(Permit& permit) {
  for (const Permit::Place& place : permit.places_) {
    Budget& budget = *place.budget;
    --budget.sessions;
    budget.devices -= permit.devices_;
    if (!place.slot) continue;
    budget.ledger->clear(*place.slot);
    budget.slots.reset(*place.slot);
  }
  review();
}

void Admission::carry(CarriedState* state) const {
  for (const auto& [key, weak] : budgets_) {
    const BudgetPointer budget = weak.lock();
    if (!budget) continue;
    state->budgets.push_back({key, budget->ledger ? budget->ledger->descriptor() : -1});
  }
  state->leases = format_leases(leases_.all());
}

CarriedPermit Admission::carry(const Permit& permit) const {
  CarriedPermit carried;
  carried.devices = permit.devices_;
  if (permit.own_) carried.ledger = permit.own_->descriptor();
  carried.allowances = permit.allowances_;
  carried.limits = permit.limits_;
  for (const Permit::Place& place : permit.places_) {
    std::string key;  // empty: the server's budget
    for (const auto& [other, budget] : budgets_) {
      if (budget.lock() == place.budget) key = other;
    }
    carried.places.push_back({key, place.slot});
  }
  return carried;
}

Result<std::unique_ptr<Admission::Permit>> Admission::restore(const CarriedPermit& carried) {
  std::unique_ptr<Permit> permit(new Permit);
  permit->admission_ = this;
  if (carried.ledger >= 0) {
    RCUDA_ASSIGN_OR_RETURN(permit->own_, Ledger::restore(UniqueFd(carried.ledger)));
  }
  permit->devices_ = carried.devices;
  permit->allowances_ = carried.allowances;
  permit->limits_ = carried.limits;
  for (const CarriedPermit::Place& place : carried.places) {
    const BudgetPointer budget = place.budget.empty() ? server_ : budgets_[place.budget].lock();
    if (!budget)
      return Status(Code::kInternal,
                    "the earlier server's state is damaged: it lacks a budget of a session");
    ++budget->sessions;
    budget->devices += carried.devices;
    if (place.slot) budget->slots.set(*place.slot);
    permit->places_.push_back({budget, place.slot});
  }
  return permit;
}

Result<std::vector<std::unique_ptr<Admission::Permit>>> Admission::restore(
    const CarriedState& state) {
  std::vector<BudgetPointer> budgets;  // keeps the budgets alive until permits hold them
  for (const CarriedBudget& carried : state.budgets) {
    const auto budget = std::make_shared<Budget>();
    if (carried.ledger >= 0) {
      RCUDA_ASSIGN_OR_RETURN(budget->ledger, Ledger::restore(UniqueFd(carried.ledger)));
    }
    budgets_[carried.key] = budget;
    budgets.push_back(budget);
  }
  std::vector<std::unique_ptr<Permit>> permits;
  for (const CarriedWorker& worker : state.workers) {
    permits.emplace_back();
    if (!worker.permit) continue;
    RCUDA_ASSIGN_OR_RETURN(permits.back(), restore(*worker.permit));
  }
  RCUDA_ASSIGN_OR_RETURN(std::vector<Lease> leases, parse_leases(state.leases));
  leases_.restore(std::move(leases));
  return permits;
}

}  // namespace rcuda::server

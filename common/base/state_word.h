// StateWord: the state of an object, changed only by the transitions of a table.
//
// The object's header has the states, the events and the table. Each change writes one line at
// debug level. An event that the table does not have for the current state is a bug in this
// program: it is refused and logged, and stops a debug build. A row with `from == to` allows an
// event that may come late and changes nothing.
//
// Any thread may call every function. to_string() must exist for states and events.
#pragma once

#include <atomic>
#include <cassert>
#include <cstddef>
#include <optional>
#include <string>

#include "common/base/log.h"

namespace rcuda {

template <typename State, typename Event>
struct Transition {
  State from;
  Event event;
  State to;
};

// Returns the next state; nullopt if the table has no row for the event in `state`.
template <typename State, typename Event, size_t kRows>
constexpr std::optional<State> after(const Transition<State, Event> (&table)[kRows], State state,
                                     Event event) {
  for (const auto& row : table) {
    if (row.from == state && row.event == event) return row.to;
  }
  return std::nullopt;
}

template <const auto& kTable>
class StateWord {
 public:
  using State = decltype(kTable[0].from);
  using Event = decltype(kTable[0].event);

  State get() const { return state_.load(std::memory_order_acquire); }

  // Returns whether this call has changed the state: of several threads with the same event, one
  // gets true. `object`: its name, for the log.
  bool move(Event event, const std::string& object) {
    State state = get();
    while (true) {
      const std::optional<State> next = after(kTable, state, event);
      if (!next) {
        RCUDA_ERROR(
            "internal error: %s got the event \"%s\", which is impossible in its state %s; "
            "please report it",
            object.c_str(), to_string(event), to_string(state));
        assert(next);
        return false;
      }
      if (*next == state) return false;
      if (!state_.compare_exchange_weak(state, *next, std::memory_order_acq_rel)) continue;
      RCUDA_DEBUG("%s: %s -> %s", object.c_str(), to_string(state), to_string(*next));
      return true;
    }
  }

 private:
  std::atomic<State> state_{kTable[0].from};  // the table's first row defines the initial state
};

}  // namespace rcuda

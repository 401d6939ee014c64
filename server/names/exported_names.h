// ExportedNames: the exports of a session, under the names that its client got for them.
//
// A name (common/wire/exported_name.h) stands for a handle or a descriptor of the driver, which
// never leaves the workers. Another worker gets this handle or descriptor only if both workers have
// the same owner: the authenticated user and the client host for which the daemon started the
// session. The importing worker connects to the daemon whose port is in the name, and that daemon
// passes the connection on to the worker that minted the name (common/messages/export_messages.h).
// The query contains one digest (ExportPlace) over the importing worker's owner and the exporting
// worker's number. So a query from a worker of another owner matches no worker, whatever name its
// client presents. To the client, this failure looks like any other failed lookup. The names that a
// worker has minted end with its session.
//
// Each name has an ExportOrigin: the place of the memory, and its size. The importing worker gets
// this origin from the exporting worker, and then calls its own driver. (Rejected: to query the
// importing driver after the import. Its answer for a device that its process does not see is
// undocumented.)
//
// A session has at most kMostHandles names of handles; beyond that, the oldest are dropped. The
// process's limit on open files bounds the number of names of descriptors.
//
// Threads: any. Blocking: find_*(), for at most a minute, if another worker has minted the name:
// that worker may be parked and must then wake. Errors: kNotFound for a name that does not exist,
// has ended or is of another owner; kSystem if this process lacks a resource.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/messages/export_messages.h"
#include "common/wire/exported_name.h"

namespace rcuda::server {

// The place and the size of exported memory.
struct ExportOrigin {
  enum class Place : uint32_t { kUnknown, kDevice, kHost };
  Place place{};
  uint32_t reserved = 0;
  std::array<uint8_t, 16> device{};  // its UUID, for kDevice
  // The size and the key of physical memory, if the session's memory is limited; otherwise 0. The
  // same memory has the same key, however often it is exported.
  uint64_t bytes = 0;
  wire::ExportNumber memory{};

  friend bool operator==(const ExportOrigin&, const ExportOrigin&) = default;
};

// A session as the owner of its exports. The daemon chooses the values.
struct Exporter {
  std::string owner;            // only sessions of this owner may look up the exports
  uint16_t port = 0;            // the daemon's port
  wire::ExportNumber number{};  // the session's number
};

Result<wire::ExportNumber> make_export_number();

class ExportedNames {
 public:
  static constexpr size_t kMostHandles = 65536;
  // Sends a query to the exporting worker, through the daemon on this port. An error means that the
  // worker was not reached.
  using Ask =
      std::function<Result<wire::ExportAnswer>(uint16_t port, const wire::ExportQuery& query)>;
  static Result<wire::ExportAnswer> ask_daemon(uint16_t port, const wire::ExportQuery& query);

  explicit ExportedNames(Exporter self = {}, Ask ask = ask_daemon)
      : self_(std::move(self)), ask_(std::move(ask)) {}
  // The user of a name. kPeers: the engine of copies between workers. Its names do not count for
  // are_used() and has_exported(), because the engine itself orders its copies with the program's
  // streams.
  enum class User : uint8_t { kProgram, kPeers };
  // Whether the program has exported or imported anything. Once true, it stays true: from then on,
  // another process may observe the progress of the session's streams, through an event or through
  // memory.
  bool are_used() const { return used_.load(std::memory_order_acquire); }
  // Whether the program has exported a handle or a descriptor of the driver. Descriptors of movable
  // memory (kMovable) do not count.
  bool has_exported() const { return exported_.load(std::memory_order_acquire); }
  // Whether the session has imported from a worker of another server.
  bool are_of_other_servers() const { return foreign_.load(std::memory_order_acquire); }
  // `call` runs before are_used() becomes true. It runs twice if two threads use names for the
  // first time at the same moment. Set it before any other call.
  void before_first_use(std::function<void()> call) { before_first_use_ = std::move(call); }
  ExportedNames(const ExportedNames&) = delete;
  ExportedNames& operator=(const ExportedNames&) = delete;

  // Makes a name for the descriptor of an allocation or a pool, and keeps the descriptor. `keeps`
  // lives as long as the name.
  Result<wire::ExportedName> add(wire::ExportKind kind, UniqueFd descriptor,
                                 const ExportOrigin& origin = {},
                                 std::shared_ptr<const void> keeps = {});
  // Makes a name for a handle. The same handle gets the same name, so programs can compare names.
  // `origin` replaces the origin of an existing name, unless the place in `origin` is unknown.
  Result<wire::ExportedName> add(wire::ExportKind kind, const wire::HandleBytes& handle,
                                 const ExportOrigin& origin = {}, User user = User::kProgram);
  // Ends the name of a descriptor, and releases its `keeps` on this thread. Returns false if there
  // is no such name. The name of a handle stays; remove() returns false for it.
  bool remove(const wire::ExportedName& name);

  // Returns the driver's descriptor or handle, from the worker that minted the name. The caller has
  // checked the name's kind. `origin` may be null.
  Result<UniqueFd> find_descriptor(const wire::ExportedName& name, ExportOrigin* origin = nullptr);
  Result<wire::HandleBytes> find_handle(const wire::ExportedName& name,
                                        ExportOrigin* origin = nullptr, User user = User::kProgram);

  // Answers another worker, whose connection the daemon has passed on. Does not block.
  void answer(const wire::ExportQuery& query, UniqueFd connection);

 private:
  struct Kept {
    wire::ExportKind kind{};
    wire::HandleBytes handle{};
    ExportOrigin origin;
    std::shared_ptr<const UniqueFd> descriptor;  // shared while it is being passed on
    std::shared_ptr<const void> keeps;
  };
  using HandleKey = std::pair<wire::ExportKind, wire::HandleBytes>;

  void use();
  Result<wire::ExportedName> mint_locked(Kept kept) RCUDA_REQUIRES(mutex_);
  std::optional<Kept> find(wire::ExportKind kind, const wire::ExportNumber& secret);
  Result<wire::ExportAnswer> look_up(const wire::ExportedName& name);

  const Exporter self_;
  const Ask ask_;
  std::function<void()> before_first_use_;
  std::atomic<bool> used_{false}, exported_{false}, foreign_{false};
  Mutex mutex_;
  std::map<wire::ExportNumber, Kept> kept_ RCUDA_GUARDED_BY(mutex_);
  std::map<HandleKey, wire::ExportNumber> by_handle_ RCUDA_GUARDED_BY(mutex_);
  std::deque<wire::ExportNumber> handles_ RCUDA_GUARDED_BY(mutex_);  // the oldest first
};

}  // namespace rcuda::server

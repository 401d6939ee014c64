// ExportedNames: what a session has exported, under the names that its client got for it.
//
// A name (common/wire/exported_name.h) stands for a handle or a descriptor of the driver, which
// never leaves the workers. Another worker gets it only if it has the same owner: the authenticated
// user and the client host for which the daemon started the session. The socket on which a worker
// answers has a name that is made of the owner and the worker's random number. A worker of another
// owner therefore looks for a socket that does not exist, whatever name its client presents. All
// other failures look the same to the client, too. A worker's names end with its session.
//
// With each name goes its ExportOrigin: where the memory is, and its size. The importing worker has
// it from the exporting worker, before the importing driver is asked. (Rejected: asking the
// importing driver afterwards. What it says of a device that its process does not see is not
// documented.)
//
// A session has at most kMostHandles names of handles; the oldest go first. The process's limit on
// open files bounds those of descriptors.
//
// Threads: any; the lookup server's thread answers other workers. Blocking: find_*(), at most a
// second, if the name is another worker's. Errors: kNotFound for a name that does not exist, has
// ended or is of another owner; otherwise the resource that is missing.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "common/base/local_lookup.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/wire/exported_name.h"

namespace rcuda::server {

// Where exported memory is, and how much it is.
struct ExportOrigin {
  enum class Place : uint32_t { kUnknown, kDevice, kHost };
  Place place{};
  uint32_t reserved = 0;
  std::array<uint8_t, 16> device{};  // its UUID, for kDevice
  // For physical memory of sessions whose memory is limited, otherwise 0. The same memory has the
  // same key, however often it is exported.
  uint64_t bytes = 0;
  LookupKey memory{};

  friend bool operator==(const ExportOrigin&, const ExportOrigin&) = default;
};

class ExportedNames {
 public:
  static constexpr size_t kMostHandles = 65536;

  explicit ExportedNames(std::string owner = {}) : owner_(std::move(owner)) {}
  // Whether the session has exported or imported anything. From then on another process may see how
  // far its streams are, by an event or by memory. Never false again.
  bool are_used() const { return used_.load(std::memory_order_acquire); }
  // Is called once, before are_used() becomes true. To be set before anything else is called.
  void before_first_use(std::function<void()> call) { before_first_use_ = std::move(call); }
  ExportedNames(const ExportedNames&) = delete;
  ExportedNames& operator=(const ExportedNames&) = delete;

  // Names a descriptor, which it takes: an allocation or a pool. `keeps` lives as long as the name.
  Result<wire::ExportedName> add(wire::ExportKind kind, UniqueFd descriptor,
                                 const ExportOrigin& origin = {},
                                 std::shared_ptr<const void> keeps = {});
  // Names a handle. The same handle gets the same name, so programs can compare names. A known
  // origin stays with the name.
  Result<wire::ExportedName> add(wire::ExportKind kind, const wire::HandleBytes& handle,
                                 const ExportOrigin& origin = {});
  // False if this session has no such name. Ends what the name keeps, on this thread.
  bool remove(const wire::ExportedName& name);

  // What the driver gave to the worker that minted the name. The caller has checked its kind.
  // `origin`: may be null.
  Result<UniqueFd> find_descriptor(const wire::ExportedName& name, ExportOrigin* origin = nullptr);
  Result<wire::HandleBytes> find_handle(const wire::ExportedName& name,
                                        ExportOrigin* origin = nullptr);

 private:
  struct Kept {
    wire::ExportKind kind{};
    wire::HandleBytes handle{};
    ExportOrigin origin;
    std::shared_ptr<const UniqueFd> descriptor;  // shared while one is passed on
    std::shared_ptr<const void> keeps;
  };
  using HandleKey = std::pair<wire::ExportKind, wire::HandleBytes>;

  void use();
  Status listen_locked();
  Result<wire::ExportedName> mint_locked(Kept kept);
  std::optional<LookupServer::Item> find(uint32_t kind, const LookupKey& secret);
  Result<LookupResult> look_up(const wire::ExportedName& name);

  const std::string owner_;
  std::function<void()> before_first_use_;
  std::atomic<bool> used_{false};
  std::mutex mutex_;
  LookupKey worker_{};
  std::map<LookupKey, Kept> kept_;
  std::map<HandleKey, LookupKey> by_handle_;
  std::deque<LookupKey> handles_;  // the oldest first
  LookupServer server_;            // from the first export on; ends before the members above
};

}  // namespace rcuda::server

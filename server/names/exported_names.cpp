#include "server/names/exported_names.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <type_traits>

#include <fcntl.h>

#include "common/base/log.h"
#include "common/base/random_bytes.h"
#include "common/reach/connect.h"

namespace rcuda::server {
namespace {

using Clock = std::chrono::steady_clock;

// How long a query waits for its answer: the daemon handles one request after the other, and a
// parked worker must wake before it answers.
constexpr auto kPatience = std::chrono::minutes(1);

// A worker's answer to another worker about a name.
struct Note {
  wire::HandleBytes handle{};
  ExportOrigin origin;
};
static_assert(std::is_trivially_copyable_v<Note> && sizeof(Note) <= sizeof(wire::ExportNote));

wire::ExportNote to_bytes(const Note& note) {
  wire::ExportNote bytes{};
  std::memcpy(bytes.data(), &note, sizeof note);
  return bytes;
}

Note to_note(const wire::ExportNote& bytes) {
  Note note;
  std::memcpy(static_cast<void*>(&note), bytes.data(), sizeof note);
  return note;
}

}  // namespace

Result<wire::ExportNumber> make_export_number() {
  wire::ExportNumber number;
  RCUDA_RETURN_IF_ERROR(fill_randomly(number));
  return number;
}

Result<wire::ExportAnswer> ExportedNames::ask_daemon(uint16_t port,
                                                     const wire::ExportQuery& query) {
  const Clock::time_point deadline = Clock::now() + kPatience;
  RCUDA_ASSIGN_OR_RETURN(const UniqueFd daemon, wire::connect_local_server(port, {}, deadline));
  // Ignores errors: a daemon that refuses the connection does not read the query, but its reason
  // can still be read.
  (void)wire::write_message(daemon.get(), wire::MessageType::kExportQuery, wire::encode(query),
                            deadline);
  return wire::read_export_answer(daemon.get(), deadline);
}

void ExportedNames::use() {
  if (!are_used() && before_first_use_) before_first_use_();
  used_.store(true, std::memory_order_release);
}

Result<wire::ExportedName> ExportedNames::mint_locked(Kept kept) {
  RCUDA_ASSIGN_OR_RETURN(const wire::ExportNumber secret, make_export_number());
  const wire::ExportedName name{wire::ExportedName::kMagic, kept.kind, self_.port, self_.number,
                                secret};
  kept_[secret] = std::move(kept);
  return name;
}

Result<wire::ExportedName> ExportedNames::add(wire::ExportKind kind, UniqueFd descriptor,
                                              const ExportOrigin& origin,
                                              std::shared_ptr<const void> keeps) {
  use();
  if (kind != wire::ExportKind::kMovable) exported_.store(true, std::memory_order_release);
  MutexLock lock(mutex_);
  return mint_locked({kind,
                      {},
                      origin,
                      std::make_shared<const UniqueFd>(std::move(descriptor)),
                      std::move(keeps)});
}

Result<wire::ExportedName> ExportedNames::add(wire::ExportKind kind,
                                              const wire::HandleBytes& handle,
                                              const ExportOrigin& origin, User user) {
  if (user == User::kProgram) {
    use();
    exported_.store(true, std::memory_order_release);
  }
  MutexLock lock(mutex_);
  if (const auto known = by_handle_.find({kind, handle}); known != by_handle_.end()) {
    if (origin.place != ExportOrigin::Place::kUnknown) kept_[known->second].origin = origin;
    return wire::ExportedName{wire::ExportedName::kMagic, kind, self_.port, self_.number,
                              known->second};
  }
  if (handles_.size() >= kMostHandles) {
    const auto oldest = kept_.find(handles_.front());
    by_handle_.erase({oldest->second.kind, oldest->second.handle});
    kept_.erase(oldest);
    handles_.pop_front();
  }
  Result<wire::ExportedName> name = mint_locked({kind, handle, origin, nullptr, nullptr});
  if (!name) return name;
  by_handle_[{kind, handle}] = name->secret;
  handles_.push_back(name->secret);
  return name;
}

bool ExportedNames::remove(const wire::ExportedName& name) {
  Kept ended;  // destroyed without the lock
  MutexLock lock(mutex_);
  const auto found = kept_.find(name.secret);
  // Names of handles stay: only the driver knows when its handles end.
  if (found == kept_.end() || !found->second.descriptor) return false;
  ended = std::move(found->second);
  kept_.erase(found);
  return true;
}

std::optional<ExportedNames::Kept> ExportedNames::find(wire::ExportKind kind,
                                                       const wire::ExportNumber& secret) {
  MutexLock lock(mutex_);
  const auto found = kept_.find(secret);
  if (found == kept_.end() || found->second.kind != kind) return std::nullopt;
  Kept kept = found->second;
  kept.keeps.reset();  // `keeps` must end with the name, not with this copy
  return kept;
}

void ExportedNames::answer(const wire::ExportQuery& query, UniqueFd connection) {
  const std::optional<Kept> found = find(query.kind, query.secret);
  if (!found) return;
  const Status sent =
      wire::write_export_answer(connection.get(), to_bytes({found->handle, found->origin}),
                                found->descriptor ? found->descriptor->get() : -1);
  if (!sent.ok())
    RCUDA_DEBUG("cannot answer another worker's lookup of an export: %s", sent.message().c_str());
}

Result<wire::ExportAnswer> ExportedNames::look_up(const wire::ExportedName& name) {
  // An export of this session, for example one of its pools that it imports itself.
  if (const std::optional<Kept> own = find(name.kind, name.secret)) {
    wire::ExportAnswer answer{to_bytes({own->handle, own->origin}), {}};
    if (own->descriptor) {
      answer.descriptor.reset(::fcntl(own->descriptor->get(), F_DUPFD_CLOEXEC, 3));
      if (!answer.descriptor)
        return Status::from_errno(errno, "duplicating the file descriptor of exported memory");
    }
    return answer;
  }
  if (name.port != self_.port) foreign_.store(true, std::memory_order_release);
  Result<wire::ExportAnswer> found =
      ask_(static_cast<uint16_t>(name.port),
           {wire::export_place(self_.owner, name.worker), name.kind, name.secret});
  if (found.ok() || found.status().code() == Code::kSystem) return found;
  RCUDA_DEBUG("cannot find exported memory or an exported event: %s",
              found.status().message().c_str());
  return Status(Code::kNotFound, "no running session of this user exports this memory or event");
}

Result<UniqueFd> ExportedNames::find_descriptor(const wire::ExportedName& name,
                                                ExportOrigin* origin) {
  use();
  RCUDA_ASSIGN_OR_RETURN(wire::ExportAnswer found, look_up(name));
  if (!found.descriptor) return Status(Code::kNotFound, "the export has no file descriptor");
  if (origin) *origin = to_note(found.note).origin;
  return std::move(found.descriptor);
}

Result<wire::HandleBytes> ExportedNames::find_handle(const wire::ExportedName& name,
                                                     ExportOrigin* origin, User user) {
  if (user == User::kProgram) use();
  RCUDA_ASSIGN_OR_RETURN(const wire::ExportAnswer found, look_up(name));
  const Note note = to_note(found.note);
  if (origin) *origin = note.origin;
  return note.handle;
}

}  // namespace rcuda::server

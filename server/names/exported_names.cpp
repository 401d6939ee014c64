#include "server/names/exported_names.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <type_traits>

#include <fcntl.h>
#include <openssl/evp.h>

namespace rcuda::server {
namespace {

std::string socket_of(const std::string& owner, const LookupKey& worker) {
  std::string text(worker.begin(), worker.end());
  text += owner;
  std::array<unsigned char, 32> digest{};
  EVP_Digest(text.data(), text.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string name = "rcuda-names-";
  for (const unsigned char byte : digest) {
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
  }
  return name;
}

// What one worker tells another about a name.
struct Note {
  wire::HandleBytes handle{};
  ExportOrigin origin;
};
static_assert(std::is_trivially_copyable_v<Note> && sizeof(Note) <= sizeof(LookupNote));

LookupNote to_bytes(const Note& note) {
  LookupNote bytes{};
  std::memcpy(bytes.data(), &note, sizeof note);
  return bytes;
}

Note to_note(const LookupNote& bytes) {
  Note note;
  std::memcpy(static_cast<void*>(&note), bytes.data(), sizeof note);
  return note;
}

}  // namespace

Status ExportedNames::listen_locked() {
  if (server_.started()) return {};
  const Result<LookupKey> worker = make_lookup_key();
  if (!worker) return worker.status();
  worker_ = *worker;
  return server_.start(
      socket_of(owner_, worker_), "rcuda-exports",
      [this](uint32_t kind, const LookupKey& secret) { return find(kind, secret); });
}

void ExportedNames::use() {
  if (!are_used() && before_first_use_) before_first_use_();
  used_.store(true, std::memory_order_release);
}

Result<wire::ExportedName> ExportedNames::mint_locked(Kept kept) {
  use();
  RCUDA_RETURN_IF_ERROR(listen_locked());
  const Result<LookupKey> secret = make_lookup_key();
  if (!secret) return secret.status();
  const wire::ExportedName name{wire::ExportedName::kMagic, kept.kind, 0, worker_, *secret};
  kept_[*secret] = std::move(kept);
  return name;
}

Result<wire::ExportedName> ExportedNames::add(wire::ExportKind kind, UniqueFd descriptor,
                                              const ExportOrigin& origin,
                                              std::shared_ptr<const void> keeps) {
  std::lock_guard lock(mutex_);
  return mint_locked({kind,
                      {},
                      origin,
                      std::make_shared<const UniqueFd>(std::move(descriptor)),
                      std::move(keeps)});
}

Result<wire::ExportedName> ExportedNames::add(wire::ExportKind kind,
                                              const wire::HandleBytes& handle,
                                              const ExportOrigin& origin) {
  std::lock_guard lock(mutex_);
  if (const auto known = by_handle_.find({kind, handle}); known != by_handle_.end()) {
    if (origin.place != ExportOrigin::Place::kUnknown) kept_[known->second].origin = origin;
    return wire::ExportedName{wire::ExportedName::kMagic, kind, 0, worker_, known->second};
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
  std::lock_guard lock(mutex_);
  const auto found = kept_.find(name.secret);
  // Names of handles stay: the driver knows when its handles end.
  if (found == kept_.end() || !found->second.descriptor) return false;
  kept_.erase(found);
  return true;
}

std::optional<LookupServer::Item> ExportedNames::find(uint32_t kind, const LookupKey& secret) {
  std::lock_guard lock(mutex_);
  const auto found = kept_.find(secret);
  if (found == kept_.end() || static_cast<uint32_t>(found->second.kind) != kind) {
    return std::nullopt;
  }
  const Kept& kept = found->second;
  return LookupServer::Item{to_bytes({kept.handle, kept.origin}),
                            kept.descriptor ? kept.descriptor->get() : -1, kept.descriptor};
}

Result<LookupResult> ExportedNames::look_up(const wire::ExportedName& name) {
  use();
  const auto kind = static_cast<uint32_t>(name.kind);
  // A descriptor of this session, for example of one of its pools that it imports itself.
  if (const std::optional<LookupServer::Item> own = find(kind, name.secret)) {
    LookupResult result{own->note, {}};
    if (own->descriptor >= 0) {
      result.descriptor.reset(::fcntl(own->descriptor, F_DUPFD_CLOEXEC, 3));
      if (!result.descriptor) return Status::from_errno(errno, "a descriptor of exported memory");
    }
    return result;
  }
  return rcuda::look_up(socket_of(owner_, name.worker), kind, name.secret);
}

Result<UniqueFd> ExportedNames::find_descriptor(const wire::ExportedName& name,
                                                ExportOrigin* origin) {
  Result<LookupResult> found = look_up(name);
  if (!found) return found.status();
  if (!found->descriptor) return Status(Code::kNotFound, "the name is not one of a descriptor");
  if (origin) *origin = to_note(found->note).origin;
  return std::move(found->descriptor);
}

Result<wire::HandleBytes> ExportedNames::find_handle(const wire::ExportedName& name,
                                                     ExportOrigin* origin) {
  const Result<LookupResult> found = look_up(name);
  if (!found) return found.status();
  const Note note = to_note(found->note);
  if (origin) *origin = note.origin;
  return note.handle;
}

}  // namespace rcuda::server

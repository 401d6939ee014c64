#include "server/daemon/admission/lease_file.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "common/identity/private_file.h"
#include "common/messages/message_codec.h"
#include "server/identity/default_paths.h"

namespace rcuda::server {
namespace {

constexpr size_t kMostBytes = 16 << 20;
constexpr std::string_view kHeading = "leases of rcuda-server, 2\n";

template <typename Visitor>
void visit_time(Visitor& visit, const char* name, Leases::Time& time) {
  int64_t seconds = time.time_since_epoch().count();
  visit.number(name, seconds);
  time = Leases::Time(std::chrono::seconds(seconds));
}

}  // namespace

template <typename Visitor>
void fields(Visitor& visit, Lease& m) {
  visit.string("id", m.id);
  visit.bytes("secret", m.secret);
  visit.optional("uid", m.uid);
  visit.string("user", m.user);
  visit.string("job", m.job);
  visit.list("devices", m.devices, wire::kMaxDevices);
  visit.flag("exclusive", m.exclusive);
  visit_time(visit, "created", m.created);
  bool ends = m.until.has_value();
  visit.flag("ends", ends);
  if (ends) visit_time(visit, "until", m.until ? *m.until : m.until.emplace());
  visit.string("creator", m.creator);
  visit.check(wire::is_lease_id(m.id) && !m.devices.empty() && std::ranges::is_sorted(m.devices));
}

Result<std::vector<Lease>> load_leases(const std::string& path) {
  const Result<std::string> text = identity::read_private_file(path, kMostBytes);
  if (!text.ok() && text.status().code() == Code::kNotFound) return std::vector<Lease>();
  if (!text.ok()) return text.status();
  std::vector<Lease> leases;
  if (text->starts_with(kHeading)) {
    const auto bytes = std::as_bytes(std::span(*text)).subspan(kHeading.size());
    const std::vector<std::byte> message(bytes.begin(), bytes.end());
    wire::MessageReader in(message);
    in.list("leases", leases, Leases::kMost);
    if (in.complete()) return leases;
  }
  return Status(
      Code::kInvalidArgument,
      path + " has no leases that this server can read: remove it, and with it all leases");
}

Status save_leases(const std::string& path, std::vector<Lease> leases) {
  RCUDA_RETURN_IF_ERROR(identity::make_folders_above(path));
  wire::MessageWriter out;
  out.append(std::as_bytes(std::span(kHeading)));
  out.list("leases", leases, Leases::kMost);
  const std::vector<std::byte> bytes = out.take();
  return identity::replace_private_file(
      path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

std::string leases_path(const Settings& settings) {
  std::string path = settings.leases.get();
  if (path == "auto") {
    const auto port = static_cast<uint16_t>(settings.port.get());
    path = port == 0 ? "none" : default_leases_file(port);
  }
  return path == "none" ? "" : path;
}

}  // namespace rcuda::server

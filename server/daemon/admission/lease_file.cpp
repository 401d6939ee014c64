#include "server/daemon/admission/lease_file.h"

#include <algorithm>
#include <utility>

#include "common/base/list_text.h"
#include "common/base/parse_number.h"
#include "common/identity/encoding.h"
#include "common/identity/private_file.h"
#include "server/identity/default_paths.h"
#include "server/identity/token_store.h"

namespace rcuda::server {
namespace {

constexpr size_t kMostBytes = 16 << 20;
constexpr std::string_view kHeading =
    "# The leases of an rcuda server: id, secret, kind, devices, created, end, uid, user, "
    "creator,\n"
    "# job. Written by the server, which reads it when it starts.\n";

constexpr std::string_view kOversubscribed = ",oversubscribed";  // after the kind

// Accepts numbers in ascending order only.
bool parse_devices(std::string_view text, std::vector<uint32_t>* devices) {
  while (!text.empty()) {
    uint32_t device = 0;
    if (!parse_number(take_item(&text, ','), &device)) return false;
    if (!devices->empty() && devices->back() >= device) return false;
    devices->push_back(device);
  }
  return !devices->empty();
}

bool only_dashes(std::string_view text) { return text.find_first_not_of('-') == text.npos; }

// In the file, a dash means an empty name. A name that consists of dashes has one dash more there.
std::string or_dash(const std::string& name) { return only_dashes(name) ? name + "-" : name; }
std::string_view without_dash(std::string_view word) {
  return only_dashes(word) ? word.substr(0, word.size() - 1) : word;
}

// Returns false if the line is not a lease.
bool parse_line(std::string_view line, Lease* lease) {
  lease->id = take_item(&line, ' ');
  if (!wire::is_lease_id(lease->id)) return false;
  if (!identity::from_hex(take_item(&line, ' '), lease->secret)) return false;
  std::string_view kind = take_item(&line, ' ');
  lease->oversubscribes = kind.ends_with(kOversubscribed);
  if (lease->oversubscribes) kind.remove_suffix(kOversubscribed.size());
  if (kind != "exclusive" && kind != "shared") return false;
  lease->exclusive = kind == "exclusive";
  if (!parse_devices(take_item(&line, ' '), &lease->devices)) return false;
  if (!parse_time(take_item(&line, ' '), &lease->created)) return false;
  if (const std::string_view until = take_item(&line, ' '); until != "never") {
    if (!parse_time(until, &lease->until.emplace())) return false;
  }
  if (const std::string_view uid = take_item(&line, ' '); uid != "-") {
    if (!parse_number(uid, &lease->uid.emplace())) return false;
  }
  const std::string_view user = take_item(&line, ' ');
  const std::string_view creator = take_item(&line, ' ');
  if (user.empty() || creator.empty()) return false;
  lease->user = without_dash(user);
  lease->creator = without_dash(creator);
  lease->job = line;
  return true;
}

}  // namespace

Result<std::vector<Lease>> parse_leases(std::string_view text) {
  std::vector<Lease> leases;
  for (size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = take_item(&text, '\n');
    if (line.empty() || line.front() == '#') continue;
    Lease lease;
    if (!parse_line(line, &lease)) {
      return Status(Code::kInvalidArgument, "line " + std::to_string(number) +
                                                " is damaged: remove the line to end its lease, "
                                                "or the file to end all leases");
    }
    leases.push_back(std::move(lease));
  }
  return leases;
}

std::string format_leases(const std::vector<Lease>& leases) {
  std::string text(kHeading);
  for (const Lease& lease : leases) {
    text += lease.id + " " + identity::to_hex(lease.secret) +
            (lease.exclusive ? " exclusive" : " shared") +
            std::string(lease.oversubscribes ? kOversubscribed : "") + " " +
            comma_list(lease.devices) + " " +
            format_time(lease.created) + " " + (lease.until ? format_time(*lease.until) : "never") +
            " " + (lease.uid ? std::to_string(*lease.uid) : "-") + " " + or_dash(lease.user) + " " +
            or_dash(lease.creator) + " " + lease.job + "\n";
  }
  return text;
}

Result<std::vector<Lease>> load_leases(const std::string& path) {
  const Result<std::string> text = identity::read_private_file(path, kMostBytes);
  if (!text.ok() && text.status().code() == Code::kNotFound) return std::vector<Lease>();
  if (!text.ok()) return text.status();
  Result<std::vector<Lease>> leases = parse_leases(*text);
  if (!leases.ok()) return Status(leases.status()).with_context(path);
  return leases;
}

std::string leases_path(const Settings& settings) {
  std::string path = settings.leases.get();
  if (path == "auto") {
    const auto port = static_cast<uint16_t>(settings.port.get());
    path = port == 0 ? "none" : default_leases_file(port);
  }
  return path == "none" ? "" : path;
}

Status save_leases(const std::string& path, const std::vector<Lease>& leases) {
  RCUDA_RETURN_IF_ERROR(identity::make_folders_above(path));
  return identity::replace_private_file(path, format_leases(leases));
}

}  // namespace rcuda::server

#include "server/daemon/admission/lease_file.h"

#include <algorithm>
#include <charconv>
#include <utility>

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

// Takes the text before the next space from `line`, and the space.
std::string_view next_word(std::string_view* line) {
  const size_t end = std::min(line->find(' '), line->size());
  const std::string_view word = line->substr(0, end);
  line->remove_prefix(std::min(end + 1, line->size()));
  return word;
}

bool parse_number(std::string_view text, uint32_t* number) {
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, *number);
  return error == std::errc() && rest == end;
}

// In ascending order.
bool parse_devices(std::string_view text, std::vector<uint32_t>* devices) {
  while (!text.empty()) {
    const size_t end = std::min(text.find(','), text.size());
    uint32_t device = 0;
    if (!parse_number(text.substr(0, end), &device)) return false;
    if (!devices->empty() && devices->back() >= device) return false;
    devices->push_back(device);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return !devices->empty();
}

bool only_dashes(std::string_view text) { return text.find_first_not_of('-') == text.npos; }

// A dash stands for no name. So a name of dashes gets one more.
std::string or_dash(const std::string& name) { return only_dashes(name) ? name + "-" : name; }
std::string_view without_dash(std::string_view word) {
  return only_dashes(word) ? word.substr(0, word.size() - 1) : word;
}

// False if the line is no lease.
bool parse_line(std::string_view line, Lease* lease) {
  lease->id = next_word(&line);
  if (!wire::is_lease_id(lease->id)) return false;
  if (!identity::from_hex(next_word(&line), lease->secret)) return false;
  std::string_view kind = next_word(&line);
  lease->oversubscribes = kind.ends_with(kOversubscribed);
  if (lease->oversubscribes) kind.remove_suffix(kOversubscribed.size());
  if (kind != "exclusive" && kind != "shared") return false;
  lease->exclusive = kind == "exclusive";
  if (!parse_devices(next_word(&line), &lease->devices)) return false;
  if (!parse_time(next_word(&line), &lease->created)) return false;
  if (const std::string_view until = next_word(&line); until != "never") {
    if (!parse_time(until, &lease->until.emplace())) return false;
  }
  if (const std::string_view uid = next_word(&line); uid != "-") {
    if (!parse_number(uid, &lease->uid.emplace())) return false;
  }
  const std::string_view user = next_word(&line);
  const std::string_view creator = next_word(&line);
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
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    Lease lease;
    if (!parse_line(line, &lease)) {
      return Status(Code::kInvalidArgument, "line " + std::to_string(number) +
                                                " is no lease: remove the line, and with it the "
                                                "lease, or the file with all leases");
    }
    leases.push_back(std::move(lease));
  }
  return leases;
}

std::string format_leases(const std::vector<Lease>& leases) {
  std::string text(kHeading);
  for (const Lease& lease : leases) {
    std::string devices;
    for (const uint32_t device : lease.devices) {
      devices += (devices.empty() ? "" : ",") + std::to_string(device);
    }
    text += lease.id + " " + identity::to_hex(lease.secret) +
            (lease.exclusive ? " exclusive" : " shared") +
            std::string(lease.oversubscribes ? kOversubscribed : "") + " " + devices + " " +
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

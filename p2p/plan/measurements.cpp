#include "p2p/plan/measurements.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <toml++/toml.h>

#include "common/base/cache_folder.h"
#include "common/base/unique_fd.h"
#include "common/config/toml_text.h"
#include "common/transport/media.h"

namespace rcuda::p2p {
namespace {

constexpr int64_t kFileVersion = 1;
constexpr size_t kMaxFileBytes = size_t{4} << 20;
constexpr size_t kMaxKnots = 1024;
// A process holds the lock of the file for about a millisecond, unless it is stopped.
constexpr auto kLockPatience = std::chrono::milliseconds(100);
constexpr auto kLockNap = std::chrono::milliseconds(2);

Status malformed(const std::string& what) {
  return Status(Code::kInvalidArgument, "the measurements file is malformed: " + what);
}

Result<LegModel> parse_leg(const toml::table& table) {
  const toml::array* bytes = table["bytes"].as_array();
  const toml::array* us = table["us"].as_array();
  const toml::array* delays = table["delay_us"].as_array();
  if (!bytes || !us || bytes->size() != us->size() || bytes->size() > kMaxKnots ||
      (delays && delays->size() != us->size())) {
    return malformed(
        "a leg needs arrays bytes and us of one length, and of delay_us if that is one");
  }
  std::vector<LegModel::Knot> knots;
  for (size_t i = 0; i < bytes->size(); ++i) {
    const auto size = bytes->get(i)->value<int64_t>();
    const auto time = us->get(i)->value<double>();
    const auto delay = delays ? delays->get(i)->value<double>() : table["delay_us"].value_or(0.0);
    if (!size || *size < 0 || !time || !delay) return malformed("a leg's knots must be numbers");
    knots.push_back({static_cast<uint64_t>(*size), *time, *delay});
  }
  return LegModel::from_knots(std::move(knots));
}

// A TOML basic string. Keys are UUIDs, device and host names, and should be ASCII. A peer may send
// any name, so all other characters become '?': parse() refuses a file that contains them.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c < ' ' || c > '~' ? '?' : c;
  }
  return out + '"';
}

// Opens and locks the file; creates it if it does not exist. save() replaces the file, so the lock
// counts only if the locked file still has this name.
Result<UniqueFd> lock_file(const std::string& path) {
  const auto deadline = std::chrono::steady_clock::now() + kLockPatience;
  while (true) {
    UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (!file) return Status::from_errno(errno, "opening " + path);
    if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
      struct stat own {
      }, current{};
      if (::fstat(file.get(), &own) == 0 && ::stat(path.c_str(), &current) == 0 &&
          own.st_ino == current.st_ino && own.st_dev == current.st_dev) {
        return file;
      }
    } else if (errno != EWOULDBLOCK && errno != EINTR) {
      return file;  // this file system has no locks
    }
    if (std::chrono::steady_clock::now() > deadline) {
      return Status(Code::kTimeout, path + " is locked by another process");
    }
    std::this_thread::sleep_for(kLockNap);
  }
}

}  // namespace

const LegModel* Measurements::find(const LegKey& key) const {
  const auto found = legs_.find(key);
  return found == legs_.end() ? nullptr : &found->second;
}

void Measurements::merge(const Measurements& other) {
  for (const auto& [key, leg] : other.legs_) legs_[key] = leg;
}

Result<Measurements> Measurements::parse(std::string_view text) {
  if (const auto line = config::foreign_character(text)) {
    return malformed("a character that is not ASCII at line " + std::to_string(*line));
  }
  toml::table document;
  try {
    document = toml::parse(text);
  } catch (const toml::parse_error& error) {
    std::ostringstream where;
    where << error.description() << " at line " << error.source().begin.line;
    return malformed(where.str());
  }
  const auto version = document["version"].value<int64_t>();
  if (version != kFileVersion) {
    return Status(Code::kUnsupported, "the measurements file has version " +
                                          std::to_string(version.value_or(0)) + ", not " +
                                          std::to_string(kFileVersion));
  }
  Measurements measurements;
  const toml::array* legs = document["leg"].as_array();
  if (!legs) return measurements;
  for (const toml::node& node : *legs) {
    const toml::table* table = node.as_table();
    if (!table) return malformed("leg is not a table");
    Result<LegModel> leg = parse_leg(*table);
    if (!leg) return leg.status();
    const LegKey key{
        (*table)["kind"].value_or(std::string()), (*table)["gpu"].value_or(std::string()),
        (*table)["nic"].value_or(std::string()), (*table)["peer"].value_or(std::string())};
    if (key.kind.empty()) return malformed("a leg has no kind");
    measurements.set(key, *std::move(leg));
  }
  return measurements;
}

std::string Measurements::to_toml() const {
  // Formatted here and not by toml++, so that keys keep their order and numbers have a fixed form.
  std::string out =
      "# Measured by rcuda-server; delete the file to measure anew.\n"
      "# A transfer keeps its leg busy for the time interpolated between the knots and is "
      "delivered\n"
      "# delay_us later.\n"
      "version = " +
      std::to_string(kFileVersion) + "\n";
  char number[64];
  for (const auto& [key, leg] : legs_) {
    out += "\n[[leg]]\nkind = " + quoted(key.kind) + "\ngpu = " + quoted(key.gpu) +
           "\nnic = " + quoted(key.nic) + "\npeer = " + quoted(key.peer) + "\n";
    std::string bytes;
    std::string us;
    std::string delays;
    for (const LegModel::Knot& knot : leg.knots()) {
      const char* const comma = bytes.empty() ? "" : ", ";
      bytes += comma + std::to_string(knot.bytes);
      std::snprintf(number, sizeof number, "%s%.4f", comma, knot.us);
      us += number;
      std::snprintf(number, sizeof number, "%s%.4f", comma, knot.delay_us);
      delays += number;
    }
    out += "bytes = [" + bytes + "]\nus = [" + us + "]\ndelay_us = [" + delays + "]\n";
  }
  return out;
}

Result<Measurements> Measurements::load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status(Code::kNotFound, path + " cannot be opened");
  std::string text;
  text.resize(kMaxFileBytes + 1);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.empty()) return Status(Code::kNotFound, path + " is empty");  // created by lock_file()
  if (text.size() > kMaxFileBytes) return malformed(path + " is larger than it may be");
  Result<Measurements> parsed = parse(text);
  if (!parsed) return Status(parsed.status()).with_context(path);
  return parsed;
}

Status Measurements::save(const std::string& path) const {
  const std::filesystem::path target(path);
  std::error_code error;
  if (target.has_parent_path()) std::filesystem::create_directories(target.parent_path(), error);
  const Result<UniqueFd> locked = lock_file(path);
  if (!locked) return locked.status();
  Measurements all;
  if (Result<Measurements> others = load(path); others.ok()) all = *std::move(others);
  all.merge(*this);
  return all.replace(path);
}

Status Measurements::replace(const std::string& path) const {
  // A unique name: workers of other hosts may save to the same folder and have the same pid.
  std::string fresh = path + ".XXXXXX";
  const UniqueFd made(::mkstemp(fresh.data()));
  if (!made || ::fchmod(made.get(), 0644) != 0) {
    return Status::from_errno(errno, "making " + fresh);
  }
  std::ofstream file(fresh, std::ios::binary | std::ios::trunc);
  file << to_toml();
  file.close();
  if (!file || std::rename(fresh.c_str(), path.c_str()) != 0) {
    const Status status = Status::from_errno(errno, "writing " + path);
    std::remove(fresh.c_str());
    return status;
  }
  return {};
}

std::string default_measurements_path() {
  if (const char* path = ::secure_getenv("RCUDA_P2P_CACHE")) return path;
  const std::string folder = cache_folder();
  return folder.empty() ? folder : folder + "/p2p.toml";
}

PairModel pair_model(const Measurements& measurements, const PairKey& pair) {
  PairModel model;
  const auto take = [&](LegModel& leg, const LegKey& key) {
    if (const LegModel* found = measurements.find(key)) leg = *found;
  };
  take(model.copy_out, {"copy_out", pair.source_gpu, "", ""});
  take(model.copy_in, {"copy_in", pair.destination_gpu, "", ""});
  take(model.device_out, {"device_copy", pair.source_gpu, "", ""});
  take(model.device_in, {"device_copy", pair.destination_gpu, "", ""});
  const std::string medium = !pair.medium.empty()
                                 ? pair.medium
                                 : transport::plain_medium(transport::Reach::kNetwork).name();
  take(model.wire_tcp, {"wire", "", medium, pair.destination_host});
  take(model.wire_verbs, {"wire", "", pair.nic, pair.destination_host});
  take(model.gpudirect, {"gpudirect", pair.source_gpu, pair.nic, pair.destination_gpu});
  take(model.registration, {"registration", pair.source_gpu, pair.nic, ""});
  take(model.ipc, {"ipc", pair.source_gpu, "", pair.destination_gpu});
  if (const LegModel* message =
          measurements.find({"message", "", pair.nic, pair.destination_host})) {
    model.message_us = message->time_us(0);
  }
  return model;
}

}  // namespace rcuda::p2p

#include "server/daemon/start_check.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <poll.h>
#include <unistd.h>

#include "common/base/host_name.h"
#include "server/daemon/admission/admission.h"
#include "server/daemon/admission/audit.h"
#include "server/daemon/admission/lease_file.h"
#include "server/daemon/pool/worker_pool.h"
#include "server/door/doors.h"
#include "server/identity/authenticator.h"
#include "server/identity/default_paths.h"

namespace rcuda::server {
namespace {

Result<Listener> listen_beside(const Settings& settings) {
  const std::string& address = settings.listen.get();
  Result<Listener> listener = listen_on(address, static_cast<uint16_t>(settings.port.get()));
  const Status& status = listener.status();
  // A running server on another address of this machine may hold the abstract local socket of the
  // port. For root, listen_on() then returns a Listener without this socket.
  const bool is_taken =
      listener.ok() ? !listener->local
                    : status.code() == Code::kUnavailable || status.sys_errno() == EADDRINUSE;
  if (!is_taken) return listener;
  Result<Listener> beside = listen_on(address, 0);
  return beside.ok() ? std::move(beside) : std::move(listener);
}

Status check_doors(const Settings& settings) {
  Doors doors([&](int control) { return spawn_door(settings.worker_binary, control); });
  return doors.check();
}

Status check_worker(WorkerPool* pool) {
  constexpr bool kNoOthers = true;
  pool->find_out();
  while (pool->finding_out()) {
    pool->refill({}, kNoOthers);
    std::vector<pollfd> items;
    pool->add_descriptors(&items);
    (void)::poll(items.data(), items.size(), poll_timeout_ms(pool->next_deadline()));
    pool->handle(items);
  }
  return pool->start_failure();
}

Status unusable(const config::SettingBase& setting, const std::string& why) {
  return Status(Code::kInvalidArgument, std::string(setting.variable()) + "=" + setting.text() +
                                            " (from " + setting.origin() +
                                            ") is not usable: " + why);
}

// Checks that the server can write to the folder.
Status check_folder(const config::SettingBase& setting, const std::string& folder) {
  std::error_code error;
  if (!std::filesystem::exists(folder, error)) {
    return unusable(setting, "there is no folder " + folder + ": make it, or correct the setting");
  }
  if (!std::filesystem::is_directory(folder, error)) {
    return unusable(setting, folder + " is not a folder");
  }
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return {};
  return unusable(setting, "cannot write to the folder " + folder + ": " + std::strerror(errno));
}

// Checks that the file has the format of a library (ELF); only a worker loads it. Accepts the name
// of a library without a folder, which the loader finds.
Status check_library(const config::String& setting) {
  constexpr std::string_view kMagic = "\177ELF";
  const std::string& path = setting.get();
  if (path.find('/') == path.npos) {
    if (path.find(".so") != path.npos) return {};
    return unusable(setting, "it takes auto, none or the path of a libnccl.so.2");
  }
  std::ifstream file(path, std::ios::binary);
  const int error = errno;
  char start[kMagic.size()] = {};
  if (!file) return unusable(setting, std::string("cannot read the file: ") + std::strerror(error));
  file.read(start, sizeof start);
  if (std::string_view(start, sizeof start) == kMagic) return {};
  return unusable(setting, "the file is not a library: name a libnccl.so.2");
}

}  // namespace

Status check_named_files(const Settings& settings) {
  const std::string& tokens = settings.tokens.get();
  if (!tokens.empty() && tokens != default_tokens_file() && ::access(tokens.c_str(), F_OK) != 0) {
    return unusable(settings.tokens, "there is no file " + tokens +
                                         ": correct the setting, or make the file with "
                                         "\"rcuda-token create --file " +
                                         tokens + "\"");
  }
  const std::string& leases = settings.leases.get();
  if (leases != "auto" && leases != "none") {
    const std::filesystem::path folder = std::filesystem::path(leases).parent_path();
    RCUDA_RETURN_IF_ERROR(check_folder(settings.leases, folder.empty() ? "." : folder.string()));
  }
  const std::string& images = settings.image_cache.get();
  if (images != "auto" && images != "none") {
    RCUDA_RETURN_IF_ERROR(check_folder(settings.image_cache, images));
  }
  const std::string& nccl = settings.nccl.get();
  return nccl == "auto" || nccl == "none" ? Status() : check_library(settings.nccl);
}

Status listen_failure(const Settings& settings, const Status& status) {
  const bool is_port = listen_on(settings.listen.get(), 0).ok();
  return is_port ? settings.port.at_origin(status) : settings.listen.at_origin(status);
}

Status check_exposure(const Settings& settings, const Listener& listener) {
  if (settings.security.get() != "insecure" || listener.is_private) return {};
  return Status(
      Code::kInvalidArgument,
      "--insecure with the public address " + listener.address +
          ": every program that reaches this address could run code on this machine. Listen "
          "on a private address, or pass --security insecure-public");
}

Status check_start(const Settings& settings) {
  Result<Listener> beside = listen_beside(settings);
  if (!beside.ok()) return listen_failure(settings, beside.status());
  Listener listener = std::move(beside).value();
  RCUDA_RETURN_IF_ERROR(check_exposure(settings, listener));
  RCUDA_RETURN_IF_ERROR(check_named_files(settings));
  RCUDA_RETURN_IF_ERROR(WorkerPool::check_cgroup(settings));
  Authenticator authenticator(settings);
  RCUDA_RETURN_IF_ERROR(
      authenticator.open(!listener.is_loopback, Authenticator::MissingKey::kIsLeft));
  if (::geteuid() == 0) {
    RCUDA_RETURN_IF_ERROR(listen_as_root(&listener, authenticator.served().only_group()));
  }
  RCUDA_RETURN_IF_ERROR(read_rules(settings.config_file).status());
  RCUDA_RETURN_IF_ERROR(settings.audit.at_origin(Audit::check(settings.audit.get())));
  if (const std::string leases = leases_path(settings); !leases.empty()) {
    RCUDA_RETURN_IF_ERROR(load_leases(leases).status());
  }
  if (!listener.is_loopback && !authenticator.allows_anybody()) {
    RCUDA_RETURN_IF_ERROR(check_doors(settings));
  }
  WorkerPool pool(settings, Bases(host_name(), listener.port), listener.port);
  return check_worker(&pool);
}

}  // namespace rcuda::server

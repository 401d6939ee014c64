#include "common/identity/private_file.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file_io.h"
#include "common/base/units.h"

namespace rcuda::identity {
namespace {

std::string octal(mode_t mode) {
  char text[16];
  std::snprintf(text, sizeof text, "%04o", mode & 07777u);
  return text;
}

Status check(const struct stat& status, const std::string& path) {
  if (!S_ISREG(status.st_mode)) {
    return Status(Code::kDenied,
                  path + " is not a regular file: put the secrets into a regular file");
  }
  if (const uid_t user = ::geteuid(); status.st_uid != user && status.st_uid != 0) {
    const std::string owner = std::to_string(status.st_uid), own = std::to_string(user);
    return Status(Code::kDenied, path + " belongs to uid " + owner + ", not to uid " + own +
                                     " or root: run this program as uid " + owner + ", or chown " +
                                     own + " " + path);
  }
  if ((status.st_mode & 077) != 0) {
    return Status(Code::kDenied, "other users have access to " + path + " (mode " +
                                     octal(status.st_mode) + "), which holds secrets: chmod 600 " +
                                     path);
  }
  return {};
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// A temporary file in the same folder as the file that it will become. The destructor removes it
// unless it has been renamed.
class Temporary {
 public:
  explicit Temporary(const std::string& path)
      : folder_(folder_of(path)),
        path_(path + ".XXXXXX"),
        file_(::mkostemp(path_.data(), O_CLOEXEC)) {}
  ~Temporary() {
    if (file_ && !renamed_) ::unlink(path_.c_str());
  }
  Temporary(const Temporary&) = delete;

  Status fill(const std::string& text, OnDisk when = OnDisk::kNow) {
    if (!file_) return Status::from_errno(errno, "cannot make a file in " + folder_);
    const bool done = ::fchmod(file_.get(), 0600) == 0 &&
                      write_all(file_.get(), std::as_bytes(std::span(text))) &&
                      (when == OnDisk::kLater || ::fsync(file_.get()) == 0);
    return done ? Status() : Status::from_errno(errno, "cannot write " + path_);
  }
  bool rename_to(const std::string& path) {
    return renamed_ = ::rename(path_.c_str(), path.c_str()) == 0;
  }
  const std::string& path() const { return path_; }

 private:
  const std::string folder_;
  std::string path_;
  UniqueFd file_;
  bool renamed_ = false;
};

// Writes a rename or link to the disk. Ignores errors, because some file systems cannot sync a
// folder.
void sync_folder_of(const std::string& path) {
  const UniqueFd folder(::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder) (void)::fsync(folder.get());
}

}  // namespace

Result<UniqueFd> open_private_file(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not wait for its other end.
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!file) {
    if (errno == ENOENT || errno == ENOTDIR) {
      return Status(Code::kNotFound, "there is no file " + path);
    }
    return Status::from_errno(errno, "cannot open " + path);
  }
  struct stat status;
  if (::fstat(file.get(), &status) != 0) {
    return Status::from_errno(errno, "cannot read the owner of " + path);
  }
  RCUDA_RETURN_IF_ERROR(check(status, path));
  return file;
}

Result<std::string> read_to_end(int file, const std::string& path, size_t most_bytes) {
  std::string text;
  if (!append_to_end(file, &text, most_bytes)) {
    return Status::from_errno(errno, "cannot read " + path);
  }
  if (text.size() <= most_bytes) return text;
  return Status(Code::kInvalidArgument, path + " is larger than " + exact_bytes_text(most_bytes) +
                                            ", the limit for this file");
}

Result<std::string> read_private_file(const std::string& path, size_t most_bytes) {
  RCUDA_ASSIGN_OR_RETURN(const UniqueFd file, open_private_file(path));
  return read_to_end(file.get(), path, most_bytes);
}

Status replace_private_file(const std::string& path, const std::string& text, OnDisk when) {
  Temporary temporary(path);
  RCUDA_RETURN_IF_ERROR(temporary.fill(text, when));
  if (!temporary.rename_to(path)) return Status::from_errno(errno, "cannot replace " + path);
  if (when == OnDisk::kNow) sync_folder_of(path);
  return {};
}

Result<bool> create_private_file(const std::string& path, const std::string& text) {
  Temporary temporary(path);
  RCUDA_RETURN_IF_ERROR(temporary.fill(text));
  if (::link(temporary.path().c_str(), path.c_str()) != 0) {
    if (errno == EEXIST) return false;
    return Status::from_errno(errno, "cannot make the file " + path);
  }
  sync_folder_of(path);
  return true;
}

Status make_folders_above(const std::string& path) {
  const mode_t mode = ::geteuid() == 0 ? 0755 : 0700;
  for (size_t slash = path.find('/', 1); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    const std::string folder = path.substr(0, slash);
    if (::mkdir(folder.c_str(), mode) == 0 || errno == EEXIST) continue;
    struct stat status;  // a read-only disk may report another error for an existing folder
    if (const int error = errno; ::stat(folder.c_str(), &status) != 0) {
      return Status::from_errno(error, "cannot make the folder " + folder);
    }
  }
  return {};
}

Status check_can_make(const std::string& path) {
  std::string folder = folder_of(path);
  while (::access(folder.c_str(), F_OK) != 0 && folder != folder_of(folder)) {
    folder = folder_of(folder);
  }
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return {};
  return Status(Code::kInvalidArgument, "cannot make " + path + ": cannot write to the folder " +
                                            folder + ": " + std::strerror(errno));
}

}  // namespace rcuda::identity

#include "client/nccl/local_library.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include "common/base/executable.h"

namespace rcuda::client::nccl {
namespace {

constexpr char kName[] = "libnccl.so.2";
constexpr std::string_view kSystemFolders[] = {"/usr/lib/x86_64-linux-gnu",
                                               "/usr/lib/aarch64-linux-gnu",
                                               "/usr/lib64",
                                               "/usr/lib",
                                               "/usr/local/lib",
                                               "/usr/local/nccl/lib",
                                               "/usr/local/cuda/lib64"};

void add_each(std::string_view folders, const std::string& origin, std::vector<std::string>* all) {
  while (!folders.empty()) {
    const size_t end = std::min(folders.find(':'), folders.size());
    std::string folder(folders.substr(0, end));
    for (const std::string_view token : {"$ORIGIN", "${ORIGIN}"}) {
      if (folder.starts_with(token)) folder.replace(0, token.size(), origin);
    }
    if (!folder.empty()) all->push_back(std::move(folder));
    folders.remove_prefix(std::min(end + 1, folders.size()));
  }
}

// Adds the folders of a loaded library's RPATH or RUNPATH.
void add_own_folders(const dl_phdr_info& library, const std::string& origin,
                     std::vector<std::string>* all) {
  const ElfW(Dyn)* entry = nullptr;
  for (const ElfW(Phdr) & header : std::span(library.dlpi_phdr, library.dlpi_phnum)) {
    if (header.p_type != PT_DYNAMIC) continue;
    entry = reinterpret_cast<const ElfW(Dyn)*>(library.dlpi_addr + header.p_vaddr);
  }
  const char* strings = nullptr;
  std::vector<uint64_t> paths;
  for (; entry && entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(entry->d_un.d_ptr);
    if (entry->d_tag == DT_RPATH || entry->d_tag == DT_RUNPATH) paths.push_back(entry->d_un.d_val);
  }
  // The loader has relocated the address of the string table, unless the dynamic section is
  // read-only. If it is read-only, ignore the library.
  if (!strings || reinterpret_cast<uintptr_t>(strings) < library.dlpi_addr) return;
  for (const uint64_t path : paths) add_each(strings + path, origin, all);
}

int visit(dl_phdr_info* library, size_t, void* data) {
  auto* const all = static_cast<std::vector<std::string>*>(data);
  const bool is_program = !library->dlpi_name || !*library->dlpi_name;
  const std::string path = is_program ? executable_path() : library->dlpi_name;
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return 0;
  add_own_folders(*library, path.substr(0, slash), all);
  constexpr std::string_view kPackages = "/site-packages/";
  if (const size_t packages = path.find(kPackages); packages != std::string::npos) {
    all->push_back(path.substr(0, packages + kPackages.size()) + "nvidia/nccl/lib");
  }
  return 0;
}

std::vector<std::string> folders() {
  std::vector<std::string> all;
  ::dl_iterate_phdr(visit, &all);
  if (const char* const listed = ::secure_getenv("LD_LIBRARY_PATH")) add_each(listed, "", &all);
  all.insert(all.end(), std::begin(kSystemFolders), std::end(kSystemFolders));
  return all;
}

// Returns null if the library cannot be opened, or is rcuda's.
void* open_in(const std::string& folder) {
  const std::string path = folder + "/" + kName;
  if (::access(path.c_str(), R_OK) != 0) return nullptr;
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (!library || !::dlsym(library, "rcuda_nccl_stub")) return library;
  ::dlclose(library);
  return nullptr;
}

}  // namespace

Result<LocalLibrary> open_local_library() {
  for (const std::string& folder : folders()) {
    void* const library = open_in(folder);
    if (!library) continue;
    LocalLibrary found;
    rcuda::nccl::load_functions(&found.functions,
                                [library](const char* name) { return ::dlsym(library, name); });
    found.path = folder + "/" + kName;
    return found;
  }
  return Status(Code::kNotFound, std::string("this machine has no ") + kName);
}

}  // namespace rcuda::client::nccl

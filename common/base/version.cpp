#include "common/base/version.h"

#include <cstddef>
#include <cstring>
#include <string_view>

#include <elf.h>
#include <link.h>

namespace rcuda {
namespace {

constexpr size_t kBytes = 6;

size_t aligned(size_t bytes) { return (bytes + 3) & ~size_t{3}; }

// Reads the notes of one segment.
std::string find_build_id(const char* notes, size_t bytes) {
  while (bytes >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes, sizeof note);
    const size_t name_bytes = aligned(note.n_namesz), whole = name_bytes + aligned(note.n_descsz);
    notes += sizeof note;
    bytes -= sizeof note;
    if (whole > bytes) break;
    const bool is_id = note.n_type == NT_GNU_BUILD_ID && note.n_descsz >= kBytes &&
                       std::string_view(notes, note.n_namesz) == std::string_view("GNU", 4);
    if (is_id) {
      std::string text;
      for (size_t i = 0; i < kBytes; ++i) {
        const auto byte = static_cast<unsigned char>(notes[name_bytes + i]);
        text += "0123456789abcdef"[byte >> 4];
        text += "0123456789abcdef"[byte & 15];
      }
      return text;
    }
    notes += whole;
    bytes -= whole;
  }
  return {};
}

}  // namespace

const char* version() { return RCUDA_VERSION; }

std::string build_id() {
  std::string found;
  // The first object is the program.
  ::dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* to) {
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const ElfW(Phdr)& segment = object->dlpi_phdr[i];
          if (segment.p_type != PT_NOTE) continue;
          const std::string id = find_build_id(
              reinterpret_cast<const char*>(object->dlpi_addr + segment.p_vaddr), segment.p_memsz);
          if (!id.empty()) *static_cast<std::string*>(to) = id;
        }
        return 1;
      },
      &found);
  return found.empty() ? "unknown" : found;
}

std::string version_of(const char* tool) {
  return std::string(tool) + " " + version() + " (build " + build_id() + ")";
}

}  // namespace rcuda

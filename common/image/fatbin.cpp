#include "common/image/fatbin.h"

#include "common/image/byte_reader.h"

namespace rcuda::image {
namespace {

struct ContainerHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t size_bytes;  // of everything after the header
};
static_assert(sizeof(ContainerHeader) == 16);

struct EntryHeader {
  uint16_t kind;
  uint16_t version;
  uint32_t header_bytes;
  uint64_t payload_bytes;     // padded to 8 bytes
  uint32_t compressed_bytes;  // 0 if not compressed
  uint32_t options_offset;
  uint16_t minor;
  uint16_t major;
  uint32_t sm;
  uint32_t name_offset;
  uint32_t name_bytes;
  uint64_t flags;
  uint64_t reserved;
  uint64_t decompressed_bytes;  // 0 if not compressed
};
static_assert(sizeof(EntryHeader) == 64);

constexpr uint64_t kFlagLz4 = 0x2000;
constexpr uint64_t kFlagZstd = 0x8000;
constexpr uint64_t kFlagArchSpecific = 0x100000;
constexpr uint64_t kFlagFamilySpecific = 0x200000;

Status malformed(const char* what) {
  return Status(Code::kInvalidArgument, std::string("malformed fatbin: ") + what);
}

}  // namespace

Result<Bytes> container_extent(Bytes bytes) {
  ContainerHeader header;
  if (!read_at(bytes, 0, &header)) return malformed("truncated header");
  if (header.magic != kContainerMagic || header.version != 1 ||
      header.header_bytes < sizeof(ContainerHeader)) {
    return malformed("its header has an unknown magic number or version");
  }
  if (!fits(header.header_bytes, header.size_bytes, bytes.size())) {
    return malformed("it ends before the size in its header");
  }
  return bytes.first(header.header_bytes + header.size_bytes);
}

Result<std::vector<Entry>> entries(Bytes bytes) {
  RCUDA_ASSIGN_OR_RETURN(const Bytes container, container_extent(bytes));
  ContainerHeader container_header;
  read_at(container, 0, &container_header);

  std::vector<Entry> result;
  Bytes rest = container.subspan(container_header.header_bytes);
  while (!rest.empty()) {
    EntryHeader header;
    if (!read_at(rest, 0, &header)) return malformed("truncated entry");
    if (header.header_bytes < sizeof(EntryHeader) ||
        !fits(header.header_bytes, header.payload_bytes, rest.size()) ||
        header.compressed_bytes > header.payload_bytes) {
      return malformed("entry outside its container");
    }
    Entry entry;
    entry.kind = static_cast<EntryKind>(header.kind);
    entry.sm = header.sm;
    entry.arch_specific = (header.flags & kFlagArchSpecific) != 0;
    entry.family_specific = (header.flags & kFlagFamilySpecific) != 0;
    entry.version_major = header.major;
    entry.version_minor = header.minor;
    entry.flags = header.flags;
    entry.payload = rest.subspan(header.header_bytes, header.payload_bytes);
    entry.size_bytes = header.payload_bytes;
    if ((header.flags & (kFlagLz4 | kFlagZstd)) != 0) {
      entry.compression = (header.flags & kFlagZstd) != 0 ? Compression::kZstd : Compression::kLz4;
      entry.payload = entry.payload.first(header.compressed_bytes);
      entry.size_bytes = header.decompressed_bytes;
    }
    result.push_back(entry);
    rest = rest.subspan(header.header_bytes + header.payload_bytes);
  }
  return result;
}

}  // namespace rcuda::image

#include "common/image/unpack.h"

#include <limits>
#include <new>
#include <tuple>

#include <lz4.h>
#include <zstd.h>

namespace rcuda::image {
namespace {

constexpr uint64_t kLargestImage = 1ull << 30;
// The best compression ratios of the formats. In LZ4, one byte adds at most 255 bytes to a match.
constexpr uint64_t kLz4BestRatio = 255;
// In zstd, four bytes can encode a block of 128 KiB in which one byte repeats.
constexpr uint64_t kZstdBestRatio = (128u << 10) / 4;

Status malformed(const char* what) {
  return Status(Code::kInvalidArgument, std::string("damaged fatbin entry: ") + what);
}

Status unpack_zstd(const Entry& entry, std::string* output) {
  const unsigned long long content =
      ZSTD_getFrameContentSize(entry.payload.data(), entry.payload.size());
  if (content != entry.size_bytes || entry.size_bytes / kZstdBestRatio > entry.payload.size()) {
    return malformed("wrong size of the zstd frame");
  }
  output->resize(entry.size_bytes);
  const size_t size =
      ZSTD_decompress(output->data(), output->size(), entry.payload.data(), entry.payload.size());
  if (ZSTD_isError(size) || size != entry.size_bytes) return malformed("invalid zstd data");
  return {};
}

Status unpack_lz4(const Entry& entry, std::string* output) {
  if (entry.payload.size() > std::numeric_limits<int>::max() ||
      entry.size_bytes / kLz4BestRatio > entry.payload.size()) {
    return malformed("wrong size of the LZ4 block");
  }
  output->resize(entry.size_bytes);
  const int size = LZ4_decompress_safe(reinterpret_cast<const char*>(entry.payload.data()),
                                       output->data(), static_cast<int>(entry.payload.size()),
                                       static_cast<int>(entry.size_bytes));
  if (size < 0 || static_cast<uint64_t>(size) != entry.size_bytes)
    return malformed("invalid LZ4 data");
  return {};
}

bool runs_on(const Entry& entry, uint32_t sm) {
  if (entry.arch_specific) return entry.sm == sm;
  if (entry.family_specific) return entry.sm <= sm && entry.sm / 10 == sm / 10;
  return entry.sm <= sm;
}

// Among PTX for one `sm`, the text for fewer devices is better: it may use more of their features.
int specificity(const Entry& entry) {
  return entry.arch_specific ? 2 : entry.family_specific ? 1 : 0;
}

}  // namespace

Result<std::string> decompress(const Entry& entry) {
  if (entry.size_bytes > kLargestImage) return malformed("its unpacked size is more than 1 GiB");
  std::string output;
  try {
    switch (entry.compression) {
      case Compression::kNone:
        output.assign(reinterpret_cast<const char*>(entry.payload.data()), entry.payload.size());
        break;
      case Compression::kZstd:
        RCUDA_RETURN_IF_ERROR(unpack_zstd(entry, &output));
        break;
      case Compression::kLz4:
        RCUDA_RETURN_IF_ERROR(unpack_lz4(entry, &output));
        break;
    }
  } catch (const std::bad_alloc&) {
    return Status(Code::kOutOfMemory, "no memory to decompress an image of " +
                                          std::to_string(entry.size_bytes) + " bytes");
  }
  if (entry.kind == EntryKind::kPtx) {
    while (!output.empty() && output.back() == '\0') output.pop_back();
  }
  return output;
}

const Entry* select_ptx(const std::vector<Entry>& entries, uint32_t sm) {
  const Entry* best = nullptr;
  const Entry* oldest = nullptr;
  for (const Entry& entry : entries) {
    if (entry.kind != EntryKind::kPtx) continue;
    const auto rank = [](const Entry& e) { return std::tuple(e.sm, specificity(e)); };
    if (runs_on(entry, sm) && (best == nullptr || rank(entry) > rank(*best))) best = &entry;
    if (oldest == nullptr || rank(entry) < rank(*oldest)) oldest = &entry;
  }
  return best != nullptr ? best : oldest;
}

Result<std::vector<std::string>> ptx_units(const Image& image, uint32_t sm) {
  std::vector<std::string> units;
  if (image.format == Format::kText) {
    const Bytes text = image.parts.at(0);
    units.emplace_back(reinterpret_cast<const char*>(text.data()), text.size());
    return units;
  }
  if (image.format == Format::kFatbin) {
    // Part 0 of a version 2 wrapper is nvlink's container, which has no PTX that the other parts
    // (the translation units) lack. So it is used only if no other part has PTX.
    for (size_t i = image.parts.size(); i-- > 0;) {
      if (i == 0 && !units.empty()) break;
      RCUDA_ASSIGN_OR_RETURN(const std::vector<Entry> list, entries(image.parts[i]));
      const Entry* entry = select_ptx(list, sm);
      if (entry == nullptr) continue;
      RCUDA_ASSIGN_OR_RETURN(std::string text, decompress(*entry));
      units.insert(units.begin(), std::move(text));
    }
  }
  if (units.empty()) {
    return Status(Code::kNotFound,
                  "the image holds no PTX; compile with -gencode "
                  "arch=compute_XX,code=[sm_XX,compute_XX]");
  }
  return units;
}

}  // namespace rcuda::image

#include "common/image/kernel_layout.h"

#include <algorithm>
#include <tuple>
#include <unordered_set>

#include "common/image/cubin.h"
#include "common/image/ptx_kernels.h"
#include "common/image/unpack.h"

namespace rcuda::image {
namespace {

class Layouts {
 public:
  void add(Result<std::vector<KernelLayout>> kernels) {
    if (!kernels.ok()) return;
    for (KernelLayout& kernel : *kernels) {
      if (names_.insert(kernel.name).second) all_.push_back(std::move(kernel));
    }
  }
  std::vector<KernelLayout> take() { return std::move(all_); }
  size_t size() const { return all_.size(); }

 private:
  std::unordered_set<std::string> names_;
  std::vector<KernelLayout> all_;
};

std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Lower is better: first code for the device, newest first; then PTX that the device can run,
// newest first; then the rest. Entries of equal rank are units of one program.
std::tuple<int, int> rank_on(const Entry& entry, uint32_t sm) {
  const bool is_elf = entry.kind == EntryKind::kElf;
  const bool runs = entry.sm <= sm && (!is_elf || entry.sm / 10 == sm / 10);
  return {(runs ? 0 : 2) + (is_elf ? 0 : 1), -static_cast<int>(entry.sm)};
}

void add_entry(const Entry& entry, Layouts* layouts) {
  const Result<std::string> content = decompress(entry);
  if (!content.ok()) return;
  if (entry.kind == EntryKind::kPtx) {
    layouts->add(ptx_kernels(*content));
  } else {
    layouts->add(cubin_kernels(std::as_bytes(std::span(*content))));
  }
}

void add_container(Bytes container, uint32_t sm, Layouts* layouts) {
  Result<std::vector<Entry>> list = entries(container);
  if (!list.ok()) return;
  std::erase_if(*list, [](const Entry& entry) {
    return entry.kind != EntryKind::kElf && entry.kind != EntryKind::kPtx;
  });
  std::stable_sort(list->begin(), list->end(),
                   [&](const Entry& a, const Entry& b) { return rank_on(a, sm) < rank_on(b, sm); });
  const size_t before = layouts->size();
  for (size_t i = 0; i < list->size(); ++i) {
    const bool next_rank = i != 0 && rank_on((*list)[i], sm) != rank_on((*list)[i - 1], sm);
    if (next_rank && layouts->size() != before) break;
    add_entry((*list)[i], layouts);
  }
}

}  // namespace

std::vector<KernelLayout> kernel_layouts(const Image& image, uint32_t sm) {
  Layouts layouts;
  for (const Bytes part : image.parts) {
    switch (image.format) {
      case Format::kFatbin:
        add_container(part, sm, &layouts);
        break;
      case Format::kElf:
        layouts.add(cubin_kernels(part));
        break;
      case Format::kText:
        layouts.add(ptx_kernels(text_of(part)));
        break;
    }
  }
  return layouts.take();
}

}  // namespace rcuda::image

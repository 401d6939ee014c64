#include "common/messages/gpu_report.h"

#include "common/messages/message_codec.h"

namespace rcuda::wire {
namespace {

// All far above the numbers in real reports.
constexpr uint32_t kMaxFigures = 4096;
constexpr uint32_t kMaxTexts = 64;
constexpr uint32_t kMaxProcesses = 1u << 16;
constexpr uint32_t kMaxP2PStatus = 64;

}  // namespace

template <typename Visitor>
void fields(Visitor& visit, GpuReport::Process& m) {
  visit.text("host", m.host);
  visit.number("pid", m.pid);
  visit.number("used_bytes", m.used_bytes);
  visit.number("quota_bytes", m.quota_bytes);
}

template <typename Visitor>
void fields(Visitor& visit, GpuReport::Path& m) {
  visit.number("ancestor", m.ancestor);
  visit.list("p2p_status", m.p2p_status, kMaxP2PStatus);
}

template <typename Visitor>
void fields(Visitor& visit, GpuReport::Gpu& m) {
  visit.number("ordinal", m.ordinal);
  visit.text("name", m.name);
  visit.text("uuid", m.uuid);
  visit.text("pci_bus_id", m.pci_bus_id);
  visit.number("pci_device", m.pci_device);
  visit.number("pci_subsystem", m.pci_subsystem);
  visit.number("total_bytes", m.total_bytes);
  visit.number("used_bytes", m.used_bytes);
  visit.number("reserved_bytes", m.reserved_bytes);
  visit.number("quota_bytes", m.quota_bytes);
  visit.number("quota_used_bytes", m.quota_used_bytes);
  visit.list("figures", m.figures, kMaxFigures);
  visit.list("texts", m.texts, kMaxTexts);
  visit.list("processes", m.processes, kMaxProcesses);
  visit.list("paths", m.paths, kMaxDevices);
  visit.text("adapter", m.adapter);
  visit.number("adapter_ancestor", m.adapter_ancestor);
}

template <typename Visitor>
void fields(Visitor& visit, GpuReport& m) {
  visit.text("driver_version", m.driver_version);
  visit.number("cuda_version", m.cuda_version);
  visit.number("layout", m.layout);
  visit.text("host", m.host);
  visit.list("gpus", m.gpus, kMaxDevices);
  // A client looks up a path by the index of the other GPU. So a GPU has all paths or none.
  for (const GpuReport::Gpu& gpu : m.gpus) {
    visit.check(gpu.paths.empty() || gpu.paths.size() == m.gpus.size());
  }
}
template struct Codec<GpuReport>;

}  // namespace rcuda::wire

#include "common/wire/gpu_report.h"

#include "common/wire/forms.h"
#include "common/wire/message_codec.h"

namespace rcuda::wire {
namespace {

// All far above what a report has.
constexpr uint32_t kMaxFigures = 4096;
constexpr uint32_t kMaxTexts = 64;
constexpr uint32_t kMaxProcesses = 1u << 16;
constexpr uint32_t kMaxP2PStatus = 64;
constexpr size_t kLeastGpu = 64;

void write(MessageWriter& out, const GpuReport::Gpu& gpu) {
  out.number(gpu.ordinal);
  out.string(gpu.name);
  out.string(gpu.uuid);
  out.string(gpu.pci_bus_id);
  out.number(gpu.pci_device);
  out.number(gpu.pci_subsystem);
  out.number(gpu.total_bytes);
  out.number(gpu.used_bytes);
  out.number(gpu.reserved_bytes);
  out.numbers(gpu.figures);
  out.number(static_cast<uint32_t>(gpu.texts.size()));
  for (const std::string& text : gpu.texts) out.string(text);
  out.number(static_cast<uint32_t>(gpu.processes.size()));
  for (const GpuReport::Process& process : gpu.processes) {
    out.string(process.host);
    out.number(process.pid);
    out.number(process.used_bytes);
  }
  out.number(static_cast<uint32_t>(gpu.paths.size()));
  for (const GpuReport::Path& path : gpu.paths) {
    out.number(path.ancestor);
    out.numbers(path.p2p_status);
  }
  out.string(gpu.adapter);
  out.number(gpu.adapter_ancestor);
}

// After a failed read, all further ones fail.
bool read(MessageReader& in, GpuReport::Gpu* gpu) {
  in.number(&gpu->ordinal);
  in.text(&gpu->name);
  in.text(&gpu->uuid);
  in.text(&gpu->pci_bus_id);
  in.number(&gpu->pci_device);
  in.number(&gpu->pci_subsystem);
  in.number(&gpu->total_bytes);
  in.number(&gpu->used_bytes);
  in.number(&gpu->reserved_bytes);
  in.numbers(&gpu->figures, kMaxFigures);
  uint32_t count = 0;
  if (!in.count(&count, kMaxTexts, sizeof(uint32_t))) return false;
  gpu->texts.resize(count);
  for (std::string& text : gpu->texts) in.text(&text);
  if (!in.count(&count, kMaxProcesses, 16)) return false;
  gpu->processes.resize(count);
  for (GpuReport::Process& process : gpu->processes) {
    in.text(&process.host);
    in.number(&process.pid);
    in.number(&process.used_bytes);
  }
  if (!in.count(&count, kMaxDevices, 8)) return false;
  gpu->paths.resize(count);
  for (GpuReport::Path& path : gpu->paths) {
    in.number(&path.ancestor);
    in.numbers(&path.p2p_status, kMaxP2PStatus);
  }
  in.text(&gpu->adapter);
  return in.number(&gpu->adapter_ancestor);
}

}  // namespace

std::vector<std::byte> encode(const GpuReport& report) {
  MessageWriter out;
  out.number(form_of(MessageType::kGpuReport));
  out.string(report.driver_version);
  out.number(report.cuda_version);
  out.number(report.layout);
  out.string(report.host);
  out.number(static_cast<uint32_t>(report.gpus.size()));
  for (const GpuReport::Gpu& gpu : report.gpus) write(out, gpu);
  return out.take();
}

Result<GpuReport> decode_gpu_report(const std::vector<std::byte>& body) {
  MessageReader in(body);
  RCUDA_RETURN_IF_ERROR(read_form(in, MessageType::kGpuReport));
  GpuReport report;
  in.text(&report.driver_version);
  in.number(&report.cuda_version);
  in.number(&report.layout);
  in.text(&report.host);
  uint32_t count = 0;
  if (!in.count(&count, kMaxDevices, kLeastGpu)) return malformed("GPU report");
  report.gpus.resize(count);
  for (GpuReport::Gpu& gpu : report.gpus) {
    if (!read(in, &gpu)) return malformed("GPU report");
    // A client looks paths up by the place of the other GPU.
    if (!gpu.paths.empty() && gpu.paths.size() != count) return malformed("GPU report");
  }
  if (!in.complete()) return malformed("GPU report");
  return report;
}

}  // namespace rcuda::wire

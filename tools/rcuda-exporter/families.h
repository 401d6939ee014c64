// Builds the metrics of a server from its reports of sessions and GPUs.
//
// Pure; nothing blocks. Units are those of Prometheus: seconds, bytes, watts, hertz, joules,
// degrees Celsius. A figure that the server does not know is left out. Programs, client hosts and
// jobs are never labels. Only memory has one series per session, with the worker's process id as
// its label; the series ends with the session.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <prometheus/metric_family.h>

#include "common/messages/gpu_report.h"
#include "common/messages/server_status.h"

namespace rcuda::exporter {

// Collects the metrics of several servers into families, one for each name.
class Families {
 public:
  // `server`: host:port. For a server that did not answer, call add_missing(), which adds only
  // rcuda_up = 0.
  void add_server(const std::string& server, const wire::ServerStatus& status);
  void add_gpus(const std::string& server, const wire::ServerStatus& status,
                const wire::GpuReport& report);
  void add_missing(const std::string& server);
  void add_exporter();  // adds this program's version

  std::vector<prometheus::MetricFamily> take();

 private:
  using Labels = std::map<std::string, std::string>;
  void add_memory(const Labels& labels, const wire::ServerStatus& status,
                  const wire::GpuReport::Gpu& gpu);
  void add_leases(const Labels& labels, const wire::ServerStatus& status, uint32_t ordinal);
  void add_totals(const std::string& server, const wire::ServerStatus::Totals& totals);
  void add(const char* name, const Labels& labels, double value);

  std::map<std::string, prometheus::MetricFamily> families_;
};

}  // namespace rcuda::exporter

#include "integrations/slurm/spank/request.h"

#include <algorithm>

#include "common/base/list_text.h"
#include "common/base/parse_number.h"
#include "common/base/units.h"

namespace rcuda::slurm {
namespace {

bool is_type(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

bool is_lease(std::string_view text) {
  return text.size() == 8 && text.find_first_not_of("0123456789abcdef") == text.npos;
}

// Adds the devices of a text such as "gpu1:0-3,6" to the grant. Returns false if the text is
// malformed.
bool add_server(std::string_view text, Grant* grant) {
  const size_t colon = text.rfind(':');
  if (colon == text.npos || colon == 0) return false;
  const std::string server(text.substr(0, colon + 1));
  for (std::string_view devices = text.substr(colon + 1); !devices.empty();) {
    std::string_view range = take_item(&devices, ',');
    uint32_t first = 0, last = 0;
    const std::string_view start = take_item(&range, '-');
    if (!parse_number(start, &first) || !parse_number(range.empty() ? start : range, &last) ||
        last < first || last - first >= kMostDevices - grant->count) {
      return false;
    }
    // A loop up to `last` itself would not end if `last` is the largest number.
    for (uint32_t i = 0; i <= last - first; ++i, ++grant->count) {
      append_item(&grant->devices, server + std::to_string(first + i), ",");
    }
  }
  return true;
}

}  // namespace

std::optional<Request> parse_request(std::string_view text, std::string* error) {
  Request request;
  const size_t colon = text.find(':');
  if (colon != text.npos) request.type = text.substr(colon + 1);
  if (!parse_number(text.substr(0, colon), &request.count) || request.count == 0 ||
      request.count > kMostDevices || (colon != text.npos && !is_type(request.type))) {
    *error = "--rcuda=" + std::string(text) +
             " is not usable: write how many remote GPUs the job needs, and their type if there "
             "are several (--rcuda=2 or --rcuda=2:h100)";
    return std::nullopt;
  }
  return request;
}

std::optional<uint64_t> parse_memory(std::string_view text, std::string* error) {
  constexpr uint64_t kMiB = 1u << 20;
  const std::optional<uint64_t> bytes = parse_bytes(text);
  if (!bytes || *bytes < kMiB) {
    *error = "--rcuda-mem=" + std::string(text) +
             " is not usable: write how much memory each GPU must have, with its unit (20G or "
             "1.5T)";
    return std::nullopt;
  }
  return *bytes / kMiB;
}

std::optional<Bind> parse_bind(std::string_view text, std::string* error) {
  if (text == "node") return Bind::kNode;
  if (text == "task") return Bind::kTask;
  if (text == "job") return Bind::kJob;
  *error = "--rcuda-bind=" + std::string(text) +
           " is not usable: it takes node (the tasks of a node see its part of the job's GPUs), "
           "task (each task sees its own part) or job (each task sees all GPUs)";
  return std::nullopt;
}

std::optional<Grant> parse_grant(std::string_view comment) {
  Grant grant;
  grant.text = comment;
  if (take_item(&comment, ' ') != "rcuda:") return std::nullopt;
  grant.lease = take_item(&comment, ' ');
  if (!is_lease(grant.lease)) return std::nullopt;
  while (!comment.empty()) {
    if (!add_server(take_item(&comment, ' '), &grant)) return std::nullopt;
  }
  return grant.count == 0 ? std::nullopt : std::optional(grant);
}

std::vector<uint32_t> share(uint32_t count, Bind bind, const Place& place) {
  const uint64_t parts = bind == Bind::kNode ? place.nodes : bind == Bind::kTask ? place.tasks : 1;
  const uint64_t part = bind == Bind::kNode ? place.node : bind == Bind::kTask ? place.task : 0;
  std::vector<uint32_t> devices;
  if (count == 0 || part >= parts) return devices;
  if (parts > count) return {static_cast<uint32_t>(part % count)};
  for (uint64_t i = count * part / parts; i < count * (part + 1) / parts; ++i) {
    devices.push_back(static_cast<uint32_t>(i));
  }
  return devices;
}

std::string visible_devices(const std::vector<uint32_t>& devices) { return comma_list(devices); }

}  // namespace rcuda::slurm

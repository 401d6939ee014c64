#include "server/worker/session_grant.h"

#include <utility>

#include "common/wire/codec.h"
#include "server/worker/worker_messages.h"

namespace rcuda::server {
namespace {

void encode_limits(wire::Encoder* out, const SessionGrant& grant) {
  out->value(static_cast<uint32_t>(grant.allowances.size()));
  for (const Allowance& allowance : grant.allowances) {
    out->string(allowance.of.c_str());
    out->value(allowance.device_memory);
    out->value(allowance.host_memory);
    out->value(allowance.bandwidth);
    out->value(allowance.slot);
  }
  out->value(int64_t{grant.limits.session_time.count()});
  out->value(int64_t{grant.limits.idle_time.count()});
  out->value(uint8_t{grant.limits.priorities.has_value()});
  out->value(grant.limits.priorities.value_or(0));
  out->value(grant.limits.sm_percent);
}

void decode_limits(wire::Decoder* in, SessionGrant* grant) {
  const auto count = in->value<uint32_t>();
  for (uint32_t i = 0; in->ok() && i < count; ++i) {
    Allowance allowance;
    const char* const of = in->string();
    if (of) allowance.of = of;
    allowance.device_memory = in->value<uint64_t>();
    allowance.host_memory = in->value<uint64_t>();
    allowance.bandwidth = in->value<uint64_t>();
    allowance.slot = in->value<uint32_t>();
    grant->allowances.push_back(std::move(allowance));
  }
  grant->limits.session_time = std::chrono::nanoseconds(in->value<int64_t>());
  grant->limits.idle_time = std::chrono::nanoseconds(in->value<int64_t>());
  const bool has_priorities = in->value<uint8_t>() != 0;
  const auto priorities = in->value<uint32_t>();
  if (has_priorities) grant->limits.priorities = priorities;
  grant->limits.sm_percent = in->value<uint32_t>();
}

}  // namespace

Result<std::vector<std::byte>> encode_session(const SessionStart& start) {
  const SessionGrant& grant = start.grant;
  if (grant.groups.size() > SessionGrant::kMostGroups) {
    return Status(Code::kInvalidArgument, "user " + grant.user + " is in " +
                                              std::to_string(grant.groups.size()) +
                                              " groups, and a session can have " +
                                              std::to_string(SessionGrant::kMostGroups));
  }
  wire::Encoder out(kMaxWorkerMessageBytes);
  out.string(grant.user.c_str());
  out.string(grant.owner.c_str());
  out.value(grant.port);
  out.value(grant.exporter);
  out.value(uint8_t{grant.uid.has_value()});
  out.value(grant.uid.value_or(0));
  out.value(grant.gid);
  out.array(grant.groups.data(), grant.groups.size());
  out.value(uint8_t{grant.key.has_value()});
  out.value(grant.key.value_or(tls::Key{}));
  out.value(uint8_t{grant.own_user});
  out.value(uint8_t{grant.may_be_followed});
  out.value(grant.most_data_bytes);
  out.value(grant.most_processes);
  encode_limits(&out, grant);
  const std::vector<std::byte> hello = wire::encode(start.hello);
  out.array(hello.data(), hello.size());
  if (!out.ok()) return Status(Code::kInvalidArgument, "the introduction is too long");
  return std::vector<std::byte>(out.body().begin(), out.body().end());
}

Result<SessionStart> decode_session(const std::vector<std::byte>& body) {
  wire::Decoder in(body);
  SessionStart start;
  SessionGrant& grant = start.grant;
  const char* const user = in.string();
  const char* const owner = in.string();
  grant.port = in.value<uint16_t>();
  grant.exporter = in.value<wire::ExportNumber>();
  const bool has_uid = in.value<uint8_t>() != 0;
  const auto uid = in.value<uint32_t>();
  grant.gid = in.value<uint32_t>();
  const auto groups = in.array<uint32_t>();
  const bool has_key = in.value<uint8_t>() != 0;
  const auto key = in.value<tls::Key>();
  grant.own_user = in.value<uint8_t>() != 0;
  grant.may_be_followed = in.value<uint8_t>() != 0;
  grant.most_data_bytes = in.value<uint64_t>();
  grant.most_processes = in.value<uint64_t>();
  decode_limits(&in, &grant);
  const auto hello = in.array<std::byte>();
  if (!in.complete() || !user || !owner) {
    return Status(Code::kProtocol, "what the daemon grants to the session is malformed");
  }
  grant.user = user;
  grant.owner = owner;
  if (has_uid) grant.uid = uid;
  if (has_key) grant.key = key;
  grant.groups.assign(groups.begin(), groups.end());
  Result<wire::Hello> wanted = wire::decode_hello({hello.begin(), hello.end()});
  if (!wanted.ok()) return wanted.status();
  start.hello = std::move(wanted).value();
  return start;
}

}  // namespace rcuda::server

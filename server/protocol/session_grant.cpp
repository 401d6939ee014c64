#include "server/protocol/session_grant.h"

#include "common/messages/message_codec.h"
#include "server/protocol/worker_messages.h"

namespace rcuda::server {
namespace {

// Of each session, of its user, and of each of the user's groups.
constexpr uint32_t kMostAllowances = 2 + SessionGrant::kMostGroups;

}  // namespace

template <typename Visitor>
void fields(Visitor& visit, Allowance& m) {
  visit.string("of", m.of);
  visit.number("device_memory", m.device_memory);
  visit.number("host_memory", m.host_memory);
  visit.number("bandwidth", m.bandwidth);
  visit.number("slot", m.slot);
}

template <typename Visitor>
void fields(Visitor& visit, SessionLimits& m) {
  visit.number("session_time", m.session_time);
  visit.number("idle_time", m.idle_time);
  visit.optional("priorities", m.priorities);
  visit.number("sm_percent", m.sm_percent);
}

template <typename Visitor>
void fields(Visitor& visit, SessionStart& m) {
  SessionGrant& grant = m.grant;
  visit.string("user", grant.user);
  visit.string("owner", grant.owner);
  visit.number("port", grant.port);
  visit.bytes("exporter", grant.exporter);
  visit.optional("uid", grant.uid);
  visit.number("gid", grant.gid);
  visit.list("groups", grant.groups, SessionGrant::kMostGroups);
  visit.optional("key", grant.key);
  visit.flag("own_user", grant.own_user);
  visit.flag("may_be_followed", grant.may_be_followed);
  visit.number("most_data_bytes", grant.most_data_bytes);
  visit.number("most_processes", grant.most_processes);
  visit.list("allowances", grant.allowances, kMostAllowances);
  visit.object("limits", grant.limits);
  visit.message("hello", m.hello);
}

Result<std::vector<std::byte>> encode_session(const SessionStart& start) {
  const SessionGrant& grant = start.grant;
  if (grant.groups.size() > SessionGrant::kMostGroups) {
    return Status(Code::kInvalidArgument, "user " + grant.user + " is in " +
                                              std::to_string(grant.groups.size()) +
                                              " groups, and a session can have " +
                                              std::to_string(SessionGrant::kMostGroups));
  }
  std::vector<std::byte> body = wire::Codec<SessionStart>::encode(start);
  if (body.size() > kMaxWorkerMessageBytes) {
    return Status(Code::kInvalidArgument, "the introduction is too long");
  }
  return body;
}

Result<SessionStart> decode_session(const std::vector<std::byte>& body) {
  return wire::decode<SessionStart>(body);
}

}  // namespace rcuda::server

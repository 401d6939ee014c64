#include "common/messages/server_status.h"

#include "common/messages/handshake.h"
#include "common/messages/message_codec.h"
#include "common/messages/work_codec.h"

namespace rcuda::wire {
namespace {

constexpr uint32_t kMaxSessions = 100'000;
constexpr TextLimits kMedium{1, kMaxMediumName};

}  // namespace

template <typename Visitor>
void fields(Visitor& visit, ServerStatus::Session& m) {
  visit.text("user", m.user);
  visit.text("program", m.program);
  visit.text("host", m.host);
  visit.number("client_pid", m.client_pid);
  visit.number("worker_pid", m.worker_pid);
  visit.text("medium", m.medium, kMedium);
  visit.number("seconds", m.seconds);
  visit.list("devices", m.devices, kMaxDevices);
  visit.number("losses", m.losses);
  visit.optional("lost_seconds", m.lost_seconds);
  visit.text("park", m.park);
  visit.text("park_way", m.park_way);
  visit.text("park_refused", m.park_refused);
  visit.number("parked_bytes", m.parked_bytes);
  visit.number("parked_seconds", m.parked_seconds);
  visit.text("job", m.job);
  visit.number("priority", m.priority);
  visit.object("work", m.work);
}

template <typename Visitor>
void fields(Visitor& visit, ServerStatus::Leased& m) {
  visit.number("ordinal", m.ordinal);
  visit.text("id", m.id);
  visit.text("user", m.user);
  visit.number("until", m.until);
  visit.number("shared", m.shared);
}

template <typename Visitor>
void fields(Visitor& visit, ServerStatus::UserTotals& m) {
  visit.text("user", m.user);
  visit.text("medium", m.medium, kMedium);
  visit.number("sessions", m.sessions);
  visit.object("work", m.work);
}

template <typename Visitor>
void fields(Visitor& visit, ServerStatus::Totals& m) {
  visit.list("refused", m.refused, kMaxCodes);
  visit.number("worker_starts", m.worker_starts);
  visit.number("worker_failures", m.worker_failures);
  visit.number("worker_start_us", m.worker_start_us);
  visit.number("parks", m.parks);
  visit.number("wakes", m.wakes);
  visit.number("parked_seconds", m.parked_seconds);
  visit.number("parks_for_room", m.parks_for_room);
  visit.number("room_refusals", m.room_refusals);
  visit.list("accounts", m.users, kMaxUserTotals);
}

template <typename Visitor>
void fields(Visitor& visit, ServerStatus& m) {
  visit.text("server", m.server);
  visit.text("version", m.version);
  visit.text("build", m.build);
  visit.number("clock_ms", m.clock_ms);
  visit.text("user", m.user);
  visit.text("method", m.method);
  visit.text("roles", m.roles);
  visit.text("driver", m.driver);
  visit.text("nccl", m.nccl);
  visit.number("idle_workers", m.idle_workers);
  visit.number("max_sessions", m.max_sessions);
  visit.number("waiting", m.waiting);
  visit.flag("draining", m.draining);
  visit.list("leased", m.leased, kMaxDevices);
  visit.list("devices", m.devices, kMaxDevices);
  visit.list("sessions", m.sessions, kMaxSessions);
  visit.object("totals", m.totals);
}
template struct Codec<ServerStatus>;

}  // namespace rcuda::wire

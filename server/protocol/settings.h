// Settings: the settings of a server, from the environment, a TOML file or options. The daemon
// passes its settings to its workers through their environment. Read-only in a worker, so any
// thread may read them. In the daemon only the main thread may read them: a reload changes some of
// them (reload.h).
#pragma once

#include <chrono>
#include <string>

#include "common/config/settings.h"
#include "server/protocol/network_list.h"

namespace rcuda::server {

inline constexpr char kIsolateSessions[] = "session";
inline constexpr char kLogCalls[] = "log";

struct Settings {
  config::Registry registry{"RCUDA_SERVER_"};

  config::String listen{registry, "RCUDA_SERVER_LISTEN", "127.0.0.1",
                        "address to listen on; other machines reach any address but loopback"};
  config::Integer port{registry, "RCUDA_SERVER_PORT",
                       8308,     0,
                       65535,    "TCP port, and the name of the local socket; 0 picks one"};
  config::String users{registry, "RCUDA_SERVER_USERS", "",
                       "users to serve besides the server's own and root: names or numbers "
                       "separated by commas, @group, or *; root of other machines only if root "
                       "is named; empty: also all users with tokens"};
  config::String operators{
      registry, "RCUDA_SERVER_OPERATORS", "",
      "further users to serve; they may also end any session, drain and reload "
      "the server, and lease devices; the server's own user and root always "
      "may; written as for RCUDA_SERVER_USERS"};
  config::Bool require_lease{registry, "RCUDA_SERVER_REQUIRE_LEASE", false,
                             "serve only sessions that have a lease (rcuda-lease)"};
  config::String leases{registry, "RCUDA_SERVER_LEASES", "auto",
                        "file that keeps leases across a restart of the server; auto: leases-PORT "
                        "in the folder of the settings, or no file if the server picks its port "
                        "(0); none: no file"};
  config::Choice security{registry,
                          "RCUDA_SERVER_SECURITY",
                          {"tls", "insecure", "insecure-public"},
                          "what connections from other machines need: tls (identity and "
                          "encryption), insecure (neither), insecure-public (neither, also on a "
                          "public address)"};
  config::String certificate{registry, "RCUDA_SERVER_CERTIFICATE", "",
                             "PEM file with the server's certificate and key; the server makes it "
                             "if it is needed and missing"};
  config::String client_authorities{registry, "RCUDA_SERVER_CLIENT_AUTHORITIES", "",
                                    "PEM file with the authorities that sign users' certificates; "
                                    "a certificate's CN is the user"};
  config::String tokens{registry, "RCUDA_SERVER_TOKENS", "",
                        "file of the tokens, which rcuda-token writes"};
  config::String audit{registry, "RCUDA_SERVER_AUDIT", "",
                       "file that gets a line of JSON for each session, refusal, change of a lease "
                       "and action of an operator; -: stderr; empty: none"};
  config::String munge_socket{registry, "RCUDA_MUNGE_SOCKET", "",
                              "munged's socket, if not the library's default"};
  config::OrdinalList devices{registry, "RCUDA_SERVER_DEVICES",
                              "devices to offer, as the driver numbers them; empty: all"};
  config::String driver{
      registry, "RCUDA_DRIVER", "auto",
      "auto (NVIDIA's, or softgpu if the machine lacks it), nvidia, softgpu or a path"};
  config::String nccl{
      registry, "RCUDA_SERVER_NCCL", "auto",
      "the NCCL library of sessions: auto (libnccl.so.2 by the loader's path), none "
      "or a path"};
  NetworkList nccl_networks{registry, "RCUDA_SERVER_NCCL_NETWORKS",
                            "networks into which the NCCL of a session may connect, separated by "
                            "commas; auto: those of this machine's interfaces; any: all"};
  config::Choice device_isolation{registry,
                                  "RCUDA_SERVER_DEVICE_ISOLATION",
                                  {"server", kIsolateSessions, "commands"},
                                  "devices that a worker sees if the server runs as root (server: "
                                  "those that the server offers; session: those of its session; "
                                  "commands: all, so only the checks of commands separate "
                                  "sessions)"};
  config::Choice call_filter{registry,
                             "RCUDA_SERVER_CALL_FILTER",
                             {"refuse", kLogCalls},
                             "system calls that a session does not need (docs/isolation.md): "
                             "refuse them, or let the kernel log them"};
  config::String cgroup{registry, "RCUDA_SERVER_CGROUP", "auto",
                        "cgroup (v2) below which each session gets its own: auto (the server's, if "
                        "it is delegated), none, or the path of a group"};
  config::Bytes session_memory{
      registry, "RCUDA_SERVER_SESSION_MEMORY", 0, 64u << 20,
      "host memory that a worker may use, its driver's included; 0: no limit"};
  config::Integer session_processes{
      registry,
      "RCUDA_SERVER_SESSION_PROCESSES",
      0,
      0,
      4'194'304,
      "most processes and threads of a session; without a cgroup, all "
      "of its user on this machine count; 0: no limit"};
  config::Integer session_cpu_weight{registry,
                                     "RCUDA_SERVER_SESSION_CPU_WEIGHT",
                                     100,
                                     1,
                                     10'000,
                                     "weight of a session's cgroup in the use of processors "
                                     "(cpu.weight); the default of other cgroups is 100"};
  config::Integer pool{registry, "RCUDA_SERVER_POOL",
                       2,        0,
                       64,       "workers kept ready, each with its driver initialised"};
  config::Integer pool_most{registry, "RCUDA_SERVER_POOL_MOST",
                            8,        0,
                            64,       "most workers kept ready after many programs came at once"};
  config::Duration pool_time{registry, "RCUDA_SERVER_POOL_TIME", std::chrono::seconds(30),
                             "how long workers beyond RCUDA_SERVER_POOL are kept ready"};
  config::Integer max_sessions{registry, "RCUDA_SERVER_MAX_SESSIONS",     256, 1,
                               100000,   "most sessions at the same time"};
  config::Bytes staging_bytes{registry, "RCUDA_SERVER_STAGING_BYTES", 64ull << 20, 2u << 20,
                              "page-locked memory of each worker for copies"};
  config::String image_cache{registry, "RCUDA_SERVER_IMAGE_CACHE", "auto",
                             "folder that keeps module images and compiled PTX between sessions; "
                             "auto: ~/.cache/rcuda or the service's cache folder; none: no folder"};
  config::Bytes image_cache_bytes{registry, "RCUDA_SERVER_IMAGE_CACHE_BYTES", 4ull << 30, 1u << 20,
                                  "disk space that the module images may take"};
  config::Duration handshake_timeout{registry, "RCUDA_SERVER_HANDSHAKE_TIMEOUT",
                                     std::chrono::seconds(10),
                                     "how long a client may take to send its request, and how long "
                                     "a ticket is valid"};
  config::Duration start_timeout{registry, "RCUDA_SERVER_START_TIMEOUT", std::chrono::seconds(60),
                                 "how long a worker may take to initialise the driver"};
  config::Duration stop_timeout{
      registry, "RCUDA_SERVER_STOP_TIMEOUT", std::chrono::seconds(5),
      "how long a session gets to end when its client has left or the server "
      "stops"};
  config::Duration drain_timeout{registry, "RCUDA_SERVER_DRAIN_TIMEOUT", std::chrono::seconds(0),
                                 "how long sessions may go on after SIGTERM, while no new session "
                                 "begins; a second signal ends them"};
  config::Duration peer_timeout{registry, "RCUDA_SERVER_PEER_TIMEOUT", std::chrono::seconds(0),
                                "end the session of a client that is silent for this long, for "
                                "example because its process is stopped; 0: never"};
  config::Duration park_after{
      registry, "RCUDA_SERVER_PARK_AFTER", std::chrono::seconds(0),
      "park a session that has been idle for this long: its GPU memory goes "
      "to the host until it needs the GPU again; 0: never"};
  config::Bool movable_memory{
      registry, "RCUDA_SERVER_MOVABLE_MEMORY", false,
      "workers allocate GPU memory so that they can park it themselves, at the rate of page-locked "
      "copies; otherwise the driver parks it"};
  config::Bytes park_memory{registry, "RCUDA_SERVER_PARK_MEMORY", 0, 0,
                            "page-locked memory that all workers together keep for their next "
                            "parks; needs movable_memory"};
  config::Decimal oversubscribe{
      registry,
      "RCUDA_SERVER_OVERSUBSCRIBE",
      1,
      1,
      100,
      "memory that all sessions of a device may hold together, as a multiple of the device's "
      "memory: idle sessions are parked when others need memory; 1: only what the device has"};
  config::Duration stay_awake{
      registry, "RCUDA_SERVER_STAY_AWAKE", std::chrono::seconds(1),
      "for this time after a wake-up, a session is not parked to free memory for other sessions"};
  config::Bool preempt{
      registry, "RCUDA_SERVER_PREEMPT", false,
      "to free memory for a session of higher priority, also park sessions that have work"};
  config::Duration preempt_wait{
      registry, "RCUDA_SERVER_PREEMPT_WAIT", std::chrono::seconds(5),
      "how long preempt waits for the work of a session to end; after this time, the session goes "
      "on and is not parked"};
  config::Duration reconnect_timeout{
      registry, "RCUDA_SERVER_RECONNECT_TIMEOUT", std::chrono::minutes(2),
      "the longest time that a session over tcp waits for its client to connect again, if the "
      "client asks for that (RCUDA_RECONNECT); 0: a lost connection ends the session"};
  config::Bytes reconnect_memory{
      registry, "RCUDA_SERVER_RECONNECT_MEMORY", 4u << 20, 1u << 20,
      "host memory of each direction of a socket, for the bytes that are sent again when the peer "
      "connects again"};
  config::Duration spin{registry, "RCUDA_SERVER_SPIN", std::chrono::nanoseconds(0),
                        "how long a worker polls for the next command or peer copy before "
                        "sleeping; 0: a time that depends on the server's processors"};
  config::Integer bulk_streams{
      registry,
      "RCUDA_SERVER_BULK_STREAMS",
      0,
      0,
      16,
      "queue pairs (verbs) or sockets (tcp) of a connection for copies; 0: four queue pairs, "
      "or 4 to 12 sockets, depending on the server's processors (4 if the client has fewer than 8 "
      "processors)"};
  config::Bool gpudirect{registry, "RCUDA_SERVER_GPUDIRECT", true,
                         "let the RDMA adapter access GPU memory if a probe transfer succeeds"};
  config::Bool trusted_fabric{registry, "RCUDA_SERVER_TRUSTED_FABRIC", false,
                              "the RDMA network is trusted: encrypted sessions whose client has "
                              "not chosen a transport use verbs, which does not encrypt its data"};
  // These settings are only documented here. The code that uses them reads the worker's
  // environment.
  config::String verbs_device{registry, "RCUDA_VERBS_DEVICE", "",
                              "RDMA adapter to use; empty: the adapter of the route to the peer"};
  config::String verbs_gid{registry, "RCUDA_VERBS_GID", "",
                           "index of the GID (address) of the adapter to use"};
  config::String plugin_dir{registry, "RCUDA_PLUGIN_DIR", "",
                            "folder of librcuda-verbs.so; empty: lib/rcuda"};
  // The TOML file that has been read; empty: none. The daemon also reads its table `limits`.
  std::string config_file;
  // The binary from which workers are started: the daemon's own, also if its file has been replaced
  // (worker_messages.h). Tests set another binary.
  std::string worker_binary = "/proc/self/exe";
  config::Choice log{registry,
                     "RCUDA_LOG",
                     {"info", "trace", "debug", "warn", "error", "off"},
                     "the least important level that is logged"};
};

}  // namespace rcuda::server

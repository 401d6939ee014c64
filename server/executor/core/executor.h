// Executor: owns the components of a session, and the services through which handlers use them.
//
// Members are declared in the order of construction: each member uses only the members above it,
// and is destroyed before them. Apart from tests, only the session loop, dispatch.cpp and the
// generated api/server_commands.cpp include this header; other code knows the type by name only. A
// component gets everything it needs in its constructor. A handler gets the services of its family
// (services.h).
//
// Threads: everything runs on the executor thread (server/worker/session_loop.h), except where a
// component says otherwise. That thread does not wait for a GPU: a command that has to wait becomes
// a Completion. The headers of components name the rare exceptions (such as device_waits.h).
// Ownership: everything that `resources` points to outlives the Executor. Objects that the client
// created belong to the driver; those left at the session's end are freed with the worker process.
// Errors are CUresults, because they are the application's answers. HandlerResult::malformed marks
// a malformed command, which ends the session.
#pragma once

#include <memory>

#include "common/transport/arrivals.h"
#include "server/executor/answers/answers.h"
#include "server/executor/answers/blobs.h"
#include "server/executor/answers/client_resources.h"
#include "server/executor/answers/device_output.h"
#include "server/executor/core/copy_pace.h"
#include "server/executor/core/services.h"
#include "server/executor/core/session_resources.h"
#include "server/executor/graphs/graph_copies.h"
#include "server/executor/graphs/graph_keeper.h"
#include "server/executor/graphs/host_callbacks.h"
#include "server/executor/host_memory/gpu_direct.h"
#include "server/executor/host_memory/host_memory.h"
#include "server/executor/host_memory/memory_origins.h"
#include "server/executor/host_memory/opened_memory.h"
#include "server/executor/host_memory/region_puts.h"
#include "server/executor/host_memory/transfers.h"
#include "server/executor/images/image_store.h"
#include "server/executor/images/link_states.h"
#include "server/executor/metering/meters.h"
#include "server/executor/mirrors/mirrors.h"
#include "server/executor/movable/movable_memory.h"
#include "server/executor/nccl/nccl.h"
#include "server/executor/objects/device_resources.h"
#include "server/executor/objects/objects.h"
#include "server/executor/peers/device_waits.h"
#include "server/executor/peers/peer_hub.h"
#include "server/executor/peers/peer_memory.h"
#include "server/executor/streams/completions.h"
#include "server/executor/streams/idle.h"
#include "server/executor/streams/jobs.h"
#include "server/executor/streams/pool_frees.h"
#include "server/executor/streams/work_count.h"
#include "server/names/exported_names.h"

namespace rcuda::server {

class Executor {
 public:
  explicit Executor(const SessionResources& resources);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  const SessionResources resources;
  wire::Work done;  // the session's totals so far
  ExportedNames names;
  MovableMemory movable;
  Meters meters;
  const api::DriverTable& driver;  // metered: for the program's calls
  transport::Link& link;

  SessionObjects objects;
  WorkCount work;
  Answers answers;
  Jobs jobs;
  DeviceOutput output;
  MemoryOrigins origins;
  OpenedMemory opened;
  PeerHub peers;  // its threads post jobs and latch errors
  PeerMemory peer_memory;
  PoolFrees pool_frees;
  DigestMemory digest_memory;  // outlives the completions, whose actions may own digests
  Completions completions;
  IdleCheck idle;
  DeviceWaits device_waits;
  ClientResources client_resources;
  const std::shared_ptr<transport::Arrivals> arrivals;  // shared with the Link's threads
  HostMemory host_memory;
  const std::shared_ptr<RegionPuts> region_puts;  // shared with work in streams
  Mirrors mirrors;
  GraphKeeper graph_keeper;
  const std::shared_ptr<ArrivalGates> arrival_gates;  // shared with work in streams
  HostCallbacks host_callbacks;
  GpuDirect gpu_direct;
  Transfers transfers;
  GraphCopies graph_copies;
  CopyPace pace;
  ImageStore images;
  LinkStates links;
  Nccl nccl;
  DeviceResources device_resources;
  Blobs blobs;

  CommonServices common_services;
  LoopServices loop_services;
  BlobServices blob_services;
  ContextServices context_services;
  CopyServices copy_services;
  GraphServices graph_services;
  InterprocessServices interprocess_services;
  LaunchServices launch_services;
  MemoryServices memory_services;
  ModuleServices module_services;
  NcclServices nccl_services;
  PeerServices peer_services;
  StreamServices stream_services;
};

}  // namespace rcuda::server

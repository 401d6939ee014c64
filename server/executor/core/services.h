// Services: the components that the handlers of a family may use. The family of a driver function
// is its file of api/table; a custom command names its `family`. Each handler gets the services of
// its family as its first argument, and uses nothing else of the session.
//
// All references are valid as long as the session. Executor thread only.
#pragma once

#include "api/driver_table.h"
#include "common/messages/work.h"

namespace rcuda::transport {
class Arrivals;
}

namespace rcuda::server {

class Answers;
class Blobs;
class Completions;
class CopyPace;
class DeviceOutput;
class DeviceResources;
class DeviceWaits;
class ExportedNames;
class GpuDirect;
class GraphCopies;
class GraphKeeper;
class HostCallbacks;
class HostMemory;
class IdleCheck;
class ImageStore;
class Jobs;
class LinkStates;
class MemoryOrigins;
struct Meters;
class Mirrors;
class MovableMemory;
class Nccl;
class OpenedMemory;
class PeerHub;
class PeerMemory;
class PoolFrees;
class RegionPuts;
class SessionObjects;
class Transfers;
class WorkCount;
struct SessionResources;

// The services that most families use.
struct CommonServices {
  const api::DriverTable& driver;
  const SessionResources& resources;
  SessionObjects& objects;
  Answers& answers;
  DeviceOutput& output;
  Completions& completions;
};

// For the session loop (server/worker/session_loop.h).
struct LoopServices : CommonServices {
  wire::Work& done;
  Meters& meters;
  MovableMemory& movable;
  WorkCount& work;
  Jobs& jobs;
  PeerHub& peers;
  IdleCheck& idle;
  DeviceWaits& device_waits;
  transport::Arrivals& arrivals;
  RegionPuts& region_puts;
  Mirrors& mirrors;
  GpuDirect& gpu_direct;
  Transfers& transfers;
  CopyPace& pace;
};

struct BlobServices {
  Blobs& blobs;
};

struct ContextServices : CommonServices {
  PeerHub& peers;
  HostMemory& host_memory;
  Mirrors& mirrors;
  LinkStates& links;
  OpenedMemory& opened;
  DeviceResources& device_resources;
};

struct CopyServices : CommonServices {
  HostMemory& host_memory;
  GraphKeeper& graph_keeper;
  Transfers& transfers;
  transport::Arrivals& arrivals;
  wire::Work& done;
};

struct GraphServices {
  const api::DriverTable& driver;
  SessionObjects& objects;
  HostMemory& host_memory;
  GraphKeeper& graph_keeper;
  GraphCopies& graph_copies;
  HostCallbacks& host_callbacks;
};

struct InterprocessServices {
  const api::DriverTable& driver;
  ExportedNames& names;
  MemoryOrigins& origins;
  MovableMemory& movable;
  OpenedMemory& opened;
};

struct LaunchServices {
  const api::DriverTable& driver;
  SessionObjects& objects;
  Completions& completions;
  HostCallbacks& host_callbacks;
};

struct MemoryServices {
  const api::DriverTable& driver;
  Meters& meters;
  PoolFrees& pool_frees;
  HostMemory& host_memory;
  Mirrors& mirrors;
  RegionPuts& region_puts;
  ExportedNames& names;
  MemoryOrigins& origins;
};

struct ModuleServices : CommonServices {
  DeviceWaits& device_waits;
  ImageStore& images;
  LinkStates& links;
};

struct NcclServices {
  SessionObjects& objects;
  Answers& answers;
  Completions& completions;
  Nccl& nccl;
};

struct PeerServices {
  const SessionResources& resources;
  SessionObjects& objects;
  Answers& answers;
  WorkCount& work;
  IdleCheck& idle;
  PeerHub& peers;
  PeerMemory& memory;
  wire::Work& done;
};

struct StreamServices : CommonServices {
  IdleCheck& idle;
};

}  // namespace rcuda::server

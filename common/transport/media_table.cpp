#include "common/transport/media.h"
#include "common/transport/shm/medium.h"
#include "common/transport/tcp/medium.h"
#include "common/transport/verbs/medium.h"

namespace rcuda::transport {

std::span<const Medium> media() {
  static constexpr Medium kMedia[] = {
      shm::kMedium,    // processes of one machine
      tcp::kMedium,    // any two machines
      verbs::kMedium,  // machines with RDMA adapters
  };
  return kMedia;
}

}  // namespace rcuda::transport

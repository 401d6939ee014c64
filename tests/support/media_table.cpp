// Takes the place of common/transport/media_table.cpp: the same table, and a line for each medium
// of late_media.h.
#include "common/transport/verbs/medium.h"
#include "tests/support/late_media.h"

namespace rcuda::transport {

std::span<const Medium> media() {
  static constexpr Medium kMedia[] = {
      shm::kMedium,    //
      tcp::kMedium,    //
      verbs::kMedium,  //
      test::kLateShm,  // this one
      test::kLateTcp,  // and this one
  };
  return kMedia;
}

}  // namespace rcuda::transport

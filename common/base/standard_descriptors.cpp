#include "common/base/standard_descriptors.h"

#include <fcntl.h>
#include <unistd.h>

namespace rcuda {

void open_standard_descriptors() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    // open() returns the lowest free number, which is this descriptor.
    const int opened = ::open("/dev/null", O_RDWR | O_NOCTTY);
    if (opened < 0) return;
  }
}

}  // namespace rcuda

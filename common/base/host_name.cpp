#include "common/base/host_name.h"

#include <climits>

#include <unistd.h>

namespace rcuda {

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  (void)::gethostname(name, sizeof name - 1);
  std::string text = name;
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

}  // namespace rcuda

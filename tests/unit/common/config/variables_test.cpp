#include "common/config/variables.h"

#include <gtest/gtest.h>

namespace rcuda::config {
namespace {

using Lines = std::vector<std::string>;

struct Server {
  Registry registry{"RCUDA_SERVER_"};
  Integer port{registry, "RCUDA_SERVER_PORT", 8308, 0, 65535, "where"};
  String driver{registry, "RCUDA_DRIVER", "auto", "which"};
};

TEST(Variables, AnUnknownOneIsNamedWithTheNearest) {
  const std::pair<const char*, const char*> cases[] = {
      {"RCUDA_DEVICE=node1:0",
       "RCUDA_DEVICE is not a variable of rcuda; did you mean RCUDA_DEVICES?"},
      {"RCUDA_TOKENFILE=x",
       "RCUDA_TOKENFILE is not a variable of rcuda; did you mean RCUDA_TOKEN_FILE?"},
      {"RCUDA_DEVICE_X=1",
       "RCUDA_DEVICE_X is not a variable of rcuda; did you mean RCUDA_DEVICES?"},
      {"RCUDA_COLOUR=red", "RCUDA_COLOUR is not a variable of rcuda"},
      {"RCUDA_DEVICES=node1:0", ""},
      {"RCUDA_DEVICE_0=node1:0", ""},
      {"RCUDA_DEVICE_COUNT=1", ""},
      {"RCUDA_SERVER_PROT=1", ""},
      {"RCUDA_SLURM_X=1", ""},
      {"RCUDA_TEST_X=1", ""},
      {"MY_RCUDA_X=1", ""},
      {"rcuda_devices=1", ""}};
  for (const auto& [line, said] : cases) {
    const char* const environment[] = {"PATH=/bin", line, nullptr};
    EXPECT_EQ(unknown_variables(environment), *said ? Lines{said} : Lines()) << line;
  }
}

TEST(Variables, AServerKnowsItsOwn) {
  const Server server;
  const std::pair<const char*, const char*> cases[] = {
      {"RCUDA_SERVER_PROT=1",
       "RCUDA_SERVER_PROT is not a variable of rcuda; did you mean RCUDA_SERVER_PORT?"},
      {"RCUDA_SERVER_PORT=1", ""},
      {"RCUDA_DRIVER=softgpu", ""},
      {"RCUDA_DEVICES=node1:0", ""}};
  for (const auto& [line, said] : cases) {
    const char* const environment[] = {line, nullptr};
    EXPECT_EQ(unknown_variables(environment, &server.registry), *said ? Lines{said} : Lines());
  }
}

}  // namespace
}  // namespace rcuda::config

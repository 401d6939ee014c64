#include "client/settings/settings.h"

#include <utility>

#include <gtest/gtest.h>

#include "tests/support/variable.h"

namespace rcuda::client {
namespace {

using test::Variable;

TEST(ClientSettingsTest, MalformedValuesAreErrorsThatNameTheVariableAndWhatItTakes) {
  struct Case {
    const char* variable;
    const char* value;
    const char* accepted;
  };
  for (const Case& c :
       {Case{"RCUDA_TRANSPORT", "udp", "auto | shm | tcp"},
        Case{"RCUDA_P2P", "sometimes", "auto | eager | lazy"}, Case{"RCUDA_SYNC", "2", "0 or 1"},
        Case{"RCUDA_WAIT", "soon", "10s"}, Case{"RCUDA_COPY_THREADS", "0", "from 1 to 64"},
        Case{"RCUDA_COPY_THREADS", "4x", "from 1 to 64"},
        Case{"RCUDA_MANAGED", "never", "moved | in_place | tracked | compared"}}) {
    const Variable variable(c.variable, c.value);
    Settings loaded;
    const Status status = loaded.registry.load_environment();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << c.variable << "=" << c.value;
    EXPECT_NE(status.context().find(c.variable), std::string::npos) << status.context();
    EXPECT_NE(status.context().find(c.accepted), std::string::npos) << status.context();
  }
}

TEST(ClientSettingsTest, TheModesOfManagedMemoryHaveTheOrderOfTheirNames) {
  const std::pair<const char*, ManagedMode> all[] = {{"", ManagedMode::kMoved},
                                                     {"moved", ManagedMode::kMoved},
                                                     {"in_place", ManagedMode::kInPlace},
                                                     {"tracked", ManagedMode::kTracked},
                                                     {"compared", ManagedMode::kCompared}};
  for (const auto& [name, mode] : all) {
    const Variable variable("RCUDA_MANAGED", name);
    Settings loaded;
    ASSERT_TRUE(loaded.registry.load_environment().ok());
    EXPECT_EQ(loaded.managed_mode(), mode) << name;
  }
}

}  // namespace
}  // namespace rcuda::client

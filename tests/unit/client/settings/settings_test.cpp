#include "client/settings/settings.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/config/variables.h"
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
        Case{"RCUDA_MANAGED", "never", "tracked | compared"}}) {
    const Variable variable(c.variable, c.value);
    Settings loaded;
    const Status status = loaded.registry.load_environment();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << c.variable << "=" << c.value;
    EXPECT_NE(status.context().find(c.variable), std::string::npos) << status.context();
    EXPECT_NE(status.context().find(c.accepted), std::string::npos) << status.context();
  }
}

// Variables outside of this list are reported as unknown.
TEST(ClientSettingsTest, EachVariableIsAKnownOne) {
  const std::vector<std::string> known = config::program_variables();
  const Settings all;
  for (const config::SettingBase* setting : all.registry.settings()) {
    const std::string name = std::string(setting->variable()).substr(6);  // RCUDA_
    EXPECT_NE(std::ranges::find(known, name), known.end()) << name;
  }
}

}  // namespace
}  // namespace rcuda::client

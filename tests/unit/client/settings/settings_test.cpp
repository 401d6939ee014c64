#include "client/settings/settings.h"

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
        Case{"RCUDA_MANAGED", "never", "tracked | compared"}}) {
    const Variable variable(c.variable, c.value);
    Settings loaded;
    const Status status = loaded.registry.load_environment();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << c.variable << "=" << c.value;
    EXPECT_NE(status.context().find(c.variable), std::string::npos) << status.context();
    EXPECT_NE(status.context().find(c.accepted), std::string::npos) << status.context();
  }
}

}  // namespace
}  // namespace rcuda::client

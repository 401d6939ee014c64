#include <cstdio>
#include <cstdlib>

#include <gtest/gtest.h>

#include "common/transport/verbs/medium.h"

namespace rcuda::transport {
namespace {

// An upgrade may replace the plug-in while a process runs, before the process loads it.
TEST(VerbsLoaderTest, APluginOfAnotherBuildIsRefused) {
  const auto load = [] {
    ::setenv("RCUDA_PLUGIN_DIR", RCUDA_TEST_OTHER_PLUGIN_FOLDER, 1);
    std::fputs(verbs::usable_by_plugin(-1).context().c_str(), stderr);
    std::exit(0);
  };
  EXPECT_EXIT(load(), testing::ExitedWithCode(0),
              "librcuda-verbs.so is of another build of rcuda than this process: .*start it again");
}

TEST(VerbsLoaderTest, AFolderThatIsGoneIsNamed) {
  const auto load = [] {
    ::setenv("RCUDA_PLUGIN_DIR", "/nowhere", 1);
    std::fputs(verbs::usable_by_plugin(-1).context().c_str(), stderr);
    std::exit(0);
  };
  EXPECT_EXIT(load(), testing::ExitedWithCode(0), "librcuda-verbs.so: not found in /nowhere");
}

}  // namespace
}  // namespace rcuda::transport

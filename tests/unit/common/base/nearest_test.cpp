#include "common/base/nearest.h"

#include <gtest/gtest.h>

namespace rcuda {
namespace {

TEST(Nearest, FindsWhatSomebodyMeant) {
  const std::vector<std::string> names = {"port",       "pool", "listen",      "devices",
                                          "token_file", "wait", "max_sessions"};
  const std::pair<const char*, const char*> cases[] = {{"prot", "port"},
                                                       {"device", "devices"},
                                                       {"devies", "devices"},
                                                       {"lisen", "listen"},
                                                       {"token", "token_file"},
                                                       {"waits", "wait"},
                                                       {"max-sessions", "max_sessions"},
                                                       {"p", ""},
                                                       {"speed", ""},
                                                       {"", ""},
                                                       {"something_else", ""}};
  for (const auto& [word, name] : cases) EXPECT_EQ(nearest(word, names), name) << word;
  EXPECT_EQ(nearest(std::string(1000, 'x'), names), "");
  EXPECT_EQ(did_you_mean("prot", names), "; did you mean port?");
  EXPECT_EQ(did_you_mean("speed", names), "");
}

}  // namespace
}  // namespace rcuda

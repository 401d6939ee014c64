#include "server/daemon/ops/reload.h"

#include <gtest/gtest.h>

namespace rcuda::server {
namespace {

using Keys = std::vector<std::string>;

void set(Settings* settings, const std::string& key, const std::string& text) {
  const Status status = settings->registry.find_key(key)->set(text, key, "a test");
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(ReloadTest, TheSameValueIsNoChangeWhereverItComesFrom) {
  Settings now, next;
  set(&now, "staging_bytes", "64M");
  set(&next, "staging_bytes", "65536K");
  set(&next, "log", "info");
  const SettingChanges changes = compare(now, next);
  EXPECT_EQ(changes.reloaded, Keys());
  EXPECT_EQ(changes.need_restart, Keys());
}

TEST(ReloadTest, ChangesAreNamedByWhatTheyNeed) {
  Settings now, next;
  set(&now, "operators", "ada");  // `next` has the default
  set(&next, "log", "debug");
  set(&next, "users", "ada,@students");
  set(&next, "port", "9000");
  set(&next, "pool", "7");
  const SettingChanges changes = compare(now, next);
  EXPECT_EQ(changes.reloaded, (Keys{"users", "operators", "log"}));
  EXPECT_EQ(changes.need_restart, (Keys{"port", "pool"}));
}

TEST(ReloadTest, ThereIsASettingForEachKey) {
  const Settings settings;
  for (const std::string_view key : kReloaded) EXPECT_TRUE(settings.registry.find_key(key)) << key;
}

}  // namespace
}  // namespace rcuda::server

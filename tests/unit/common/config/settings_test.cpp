#include "common/config/settings.h"

#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/config/toml_file.h"
#include "common/config/toml_text.h"
#include "tests/support/temp_folder.h"
#include "tests/support/variable.h"

namespace rcuda::config {
namespace {

struct Sample {
  Registry registry{"RCUDA_TEST_"};
  String name{registry, "RCUDA_TEST_NAME", "nobody", "who"};
  Bool flag{registry, "RCUDA_TEST_FLAG", false, "whether"};
  Integer port{registry, "RCUDA_TEST_PORT", 8308, 0, 65535, "where"};
  Bytes cache{registry, "RCUDA_TEST_CACHE_BYTES", 1u << 20, 1u << 16, "how much"};
  Duration timeout{registry, "RCUDA_TEST_TIMEOUT", std::chrono::seconds(10), "how long"};
  OrdinalList devices{registry, "RCUDA_TEST_DEVICES", "which"};
  Choice driver{registry, "RCUDA_TEST_DRIVER", {"auto", "nvidia", "softgpu"}, "what"};
};

using test::Variable;

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) {
    char path[] = "/tmp/rcuda-settings-XXXXXX";
    int fd = ::mkstemp(path);
    EXPECT_GE(fd, 0);
    ::close(fd);
    path_ = path;
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { ::unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(SettingsTest, AbsentMeansDefault) {
  Sample sample;
  ASSERT_TRUE(sample.registry.load_environment().ok());
  EXPECT_EQ(sample.name.get(), "nobody");
  EXPECT_FALSE(sample.flag.get());
  EXPECT_EQ(sample.port.get(), 8308);
  EXPECT_EQ(sample.cache.get(), 1u << 20);
  EXPECT_EQ(sample.timeout.get(), std::chrono::seconds(10));
  EXPECT_TRUE(sample.devices.get().empty());
  EXPECT_EQ(sample.driver.get(), "auto");
  EXPECT_TRUE(sample.port.is_default());
  EXPECT_TRUE(sample.registry.environment().empty());
}

TEST(SettingsTest, AnEmptyVariableCountsAsAbsent) {
  Variable port("RCUDA_TEST_PORT", ""), name("RCUDA_TEST_NAME", "");
  Sample sample;
  ASSERT_TRUE(sample.registry.load_environment().ok());
  EXPECT_EQ(sample.port.get(), 8308);
  EXPECT_EQ(sample.name.get(), "nobody");
}

TEST(SettingsTest, TheEnvironmentIsTyped) {
  Variable name("RCUDA_TEST_NAME", "ada"), flag("RCUDA_TEST_FLAG", "Yes");
  Variable port("RCUDA_TEST_PORT", " 9000 "), cache("RCUDA_TEST_CACHE_BYTES", "2G");
  Variable timeout("RCUDA_TEST_TIMEOUT", "250ms"), devices("RCUDA_TEST_DEVICES", "3, 0");
  Variable driver("RCUDA_TEST_DRIVER", "softgpu");
  Sample sample;
  Status status = sample.registry.load_environment();
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(sample.name.get(), "ada");
  EXPECT_TRUE(sample.flag.get());
  EXPECT_EQ(sample.port.get(), 9000);
  EXPECT_EQ(sample.cache.get(), 2ull << 30);
  EXPECT_EQ(sample.timeout.get(), std::chrono::milliseconds(250));
  EXPECT_EQ(sample.devices.get(), (std::vector<uint32_t>{3, 0}));
  EXPECT_EQ(sample.driver.get(), "softgpu");
  EXPECT_EQ(sample.port.origin(), "the environment");
}

TEST(SettingsTest, AMalformedValueNamesTheVariableAndTheMend) {
  struct Case {
    const char* variable;
    const char* value;
    const char* mend;
  };
  for (const Case& c :
       {Case{"RCUDA_TEST_PORT", "70000", "from 0 to 65535"},
        Case{"RCUDA_TEST_PORT", "80x", "whole number"}, Case{"RCUDA_TEST_FLAG", "maybe", "0 or 1"},
        Case{"RCUDA_TEST_CACHE_BYTES", "12parsecs", "64M"},
        Case{"RCUDA_TEST_CACHE_BYTES", "99999999999999G", "64M"},
        Case{"RCUDA_TEST_TIMEOUT", "soon", "250ms"},
        Case{"RCUDA_TEST_TIMEOUT", "4233601", "49 days at most"},
        Case{"RCUDA_TEST_DEVICES", "0,0", "commas"}, Case{"RCUDA_TEST_DEVICES", "0,", "commas"},
        Case{"RCUDA_TEST_DRIVER", "amd", "auto | nvidia | softgpu"}}) {
    Variable variable(c.variable, c.value);
    Sample sample;
    Status status = sample.registry.load_environment();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << c.variable << "=" << c.value;
    EXPECT_NE(status.context().find(c.variable), std::string::npos) << status.context();
    EXPECT_NE(status.context().find(c.mend), std::string::npos) << status.context();
  }
}

TEST(SettingsTest, AFileIsFlattenedAndTheEnvironmentWins) {
  TemporaryFile file("port = 1234\ndevices = [1, 2]\nflag = true\n[cache]\nbytes = \"64M\"\n");
  Variable port("RCUDA_TEST_PORT", "4321");
  Sample sample;
  Status status = load_toml_file(sample.registry, file.path());
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(sample.port.get(), 1234);
  EXPECT_EQ(sample.port.origin(), file.path() + ":1");
  EXPECT_EQ(sample.devices.get(), (std::vector<uint32_t>{1, 2}));
  EXPECT_TRUE(sample.flag.get());
  EXPECT_EQ(sample.cache.get(), 64u << 20);
  ASSERT_TRUE(sample.registry.load_environment().ok());
  EXPECT_EQ(sample.port.get(), 4321);
}

TEST(SettingsTest, ATableThatHasNoSettingsIsPassedOver) {
  TemporaryFile file("port = 1234\n[limits.user]\nport = 1\n");
  Sample sample;
  const Status status = load_toml_file(sample.registry, file.path(), "limits");
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(sample.port.get(), 1234);
  EXPECT_NE(load_toml_file(sample.registry, file.path()).context().find("limits_user_port"),
            std::string::npos);
  TemporaryFile value("limits = 1\n");
  EXPECT_FALSE(load_toml_file(sample.registry, value.path(), "limits").ok());
}

TEST(SettingsTest, AFilesItemsComeInTheOrderOfItsLines) {
  TemporaryFile file("[b]\ny = 1\nx = [1, 'two']\n[a]\n");
  const auto items = read_toml_file(file.path());
  ASSERT_TRUE(items.ok()) << items.status().message();
  std::string all;
  for (const TomlItem& item : *items) {
    all += std::to_string(item.line) + " " + item.keys.back() + "=" + item.text + ";";
  }
  EXPECT_EQ(all, "1 b=;2 y=1;3 x=1,two;4 a=;");
  EXPECT_EQ(items->at(0).kind, TomlItem::Kind::kTable);
  EXPECT_EQ(items->at(2).kind, TomlItem::Kind::kList);
  EXPECT_EQ(items->at(2).keys, (std::vector<std::string>{"b", "x"}));
}

TEST(SettingsTest, AnErrorInAFileNamesTheLineAndTheRemedy) {
  struct Case {
    const char* text;
    const char* line;
    const char* said;
  };
  for (const Case& c :
       {Case{"port = 1\nflag = = 2\n", ":2: ", "the value of flag is not usable: write"},
        Case{"name = ada # me\n", ":1: ", "write name = \"ada\""},
        Case{"name = ada\n", ":1: ", "name = ada lacks quotes: write name = \"ada\""},
        Case{"\nname = 0.0.0.0\n", ":2: ", "write name = \"0.0.0.0\""},
        Case{"timeout = 10s\n", ":1: ", "write timeout = \"10s\""},
        Case{"cache_bytes = 1.5G\n", ":1: ", "write cache_bytes = \"1.5G\""},
        Case{"flag = yes\n", ":1: ", "write flag = \"yes\""},
        Case{"name = \"ada\n", ":1: ", "the text of name has no closing quote"},
        Case{"port =\n", ":1: ", "port has no value: write NAME = \"text\""},
        Case{"name = \x1b[2J\n", ":1: ", "the value of name is not usable: write"},
        Case{"timeout = 2024-05-01\n",
             ":1: ", "'timeout' has an invalid type: write a text in quotes"},
        Case{"port = 1.5\n", ":1)", "it takes a whole number from 0 to 65535"},
        Case{"port\n", ":1: ", "'port' is not a setting: write NAME"},
        Case{"port: 1\n", ":1: ", "'port: 1' is not a setting: write NAME"},
        Case{"port = 1\nport = 2\n", ":2: ", "'port' appears twice"},
        Case{"[cache\nbytes = 1\n", ":1: ", "'[cache' is not the name of a table"},
        Case{"devices = [1, two]\n", ":1: ", "the value of devices is not usable"},
        Case{"devices = [1,\n 2\nport = 1\n", ":3: ", "the value of port is not usable"},
        Case{"devices = [1,\n\n\n", ":", "begins above this line is not closed ("},
        Case{"[limits.users.ada smith]\n", ":1: ", "for a name with blanks"},
        Case{"timeout = 10s # it's fine\n", ":1: ", "write timeout = \"10s\""},
        Case{"name = 10.0.0.1 # a = \"b\"\n", ":1: ", "write name = \"10.0.0.1\""},
        Case{"name = \"a # b\" c\n", ":1: ", "the value of name is not usable"},
        Case{"port = 99999999999999999999\n", ":1: ", "the value of port is not usable"},
        Case{"port = 8308 9\n", ":1: ", "the value of port is not usable"},
        Case{"prot = 1\n", ":1: ", "'prot' is not a setting; did you mean port?"},
        Case{"\nspeed = 1\n", ":2: ", "the settings are: name, flag, port"},
        Case{"[a]\nport = 1\n",
             ":2: ", "'a_port' is not a setting; write port above the first [table]"},
        Case{"flag = true\nport = 70000\n", ":2)", "from 0 to 65535"}}) {
    Sample sample;
    TemporaryFile file(c.text);
    const Status status = load_toml_file(sample.registry, file.path());
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << c.text;
    EXPECT_NE(status.context().find(file.path() + c.line), std::string::npos) << status.context();
    EXPECT_NE(status.context().find(c.said), std::string::npos) << status.context();
  }
  Sample sample;
  EXPECT_EQ(load_toml_file(sample.registry, "/nonexistent/rcuda.toml").context(),
            "there is no file /nonexistent/rcuda.toml: correct its name");
}

TEST(SettingsTest, AFileThatOthersCanWriteIsRefused) {
  TemporaryFile file("port = 1\n");
  const std::pair<mode_t, bool> cases[] = {
      {0600, true}, {0644, true}, {0664, ::geteuid() != 0}, {0646, false}, {0666, false}};
  for (const auto& [mode, accepted] : cases) {
    ASSERT_EQ(::chmod(file.path().c_str(), mode), 0);
    Sample sample;
    const Status status = load_toml_file(sample.registry, file.path());
    EXPECT_EQ(status.code(), accepted ? Code::kOk : Code::kDenied) << mode;
    if (!accepted) {
      EXPECT_NE(status.context().find("chmod go-w " + file.path()), std::string::npos);
    }
  }
}

// Needs root, because only root can make a file of another user.
TEST(SettingsTest, RootTakesNoFileOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  constexpr uid_t kOwner = 4242, kServer = 4243;
  TemporaryFile file("port = 1\n");
  ASSERT_EQ(::chmod(file.path().c_str(), 0644), 0);
  const auto load_as = [&](uid_t user) {
    EXPECT_EQ(::seteuid(user), 0);
    Sample sample;
    const Code code = load_toml_file(sample.registry, file.path()).code();
    EXPECT_EQ(::seteuid(0), 0);
    return code;
  };
  EXPECT_EQ(load_as(kServer), Code::kOk);  // root's file
  ASSERT_EQ(::chown(file.path().c_str(), kOwner, 0), 0);
  EXPECT_EQ(load_as(kOwner), Code::kOk);
  EXPECT_EQ(load_as(kServer), Code::kOk);  // as in a container
  EXPECT_EQ(load_as(0), Code::kDenied);
}

TEST(SettingsTest, OnlyNothingIsNoMillisecond) {
  const std::pair<const char*, int> cases[] = {{"0", 0}, {"1ns", 1}, {"500us", 1}, {"2ms", 2}};
  for (const auto& [text, milliseconds] : cases) {
    Variable timeout("RCUDA_TEST_TIMEOUT", text);
    Sample sample;
    ASSERT_TRUE(sample.registry.load_environment().ok());
    EXPECT_EQ(sample.timeout.milliseconds().count(), milliseconds) << text;
  }
}

TEST(SettingsTest, TextsAreForPeopleAndParseBack) {
  const std::pair<const char*, std::pair<const char*, const char*>> cases[] = {
      {"RCUDA_TEST_TIMEOUT", {"10000ms", "10s"}},
      {"RCUDA_TEST_TIMEOUT", {"90m", "90m"}},
      {"RCUDA_TEST_TIMEOUT", {"2d", "2d"}},
      {"RCUDA_TEST_TIMEOUT", {"0", "0s"}},
      {"RCUDA_TEST_TIMEOUT", {"1500us", "1500us"}},
      {"RCUDA_TEST_CACHE_BYTES", {"65536K", "64 MiB"}},
      {"RCUDA_TEST_CACHE_BYTES", {"1.5G", "1.5 GiB"}},
      {"RCUDA_TEST_CACHE_BYTES", {"65537", "65537 B"}}};
  for (const auto& [variable, texts] : cases) {
    Variable given(variable, texts.first);
    Sample sample;
    ASSERT_TRUE(sample.registry.load_environment().ok()) << texts.first;
    EXPECT_EQ(sample.registry.environment(),
              std::vector<std::string>{std::string(variable) + "=" + texts.second});
    Variable again(variable, texts.second);
    Sample other;
    ASSERT_TRUE(other.registry.load_environment().ok()) << texts.second;
    EXPECT_EQ(other.timeout.get(), sample.timeout.get());
    EXPECT_EQ(other.cache.get(), sample.cache.get());
  }
}

TEST(SettingsTest, ANumberMayHaveAFraction) {
  struct WithFactor {
    Registry registry{"RCUDA_TEST_"};
    Decimal factor{registry, "RCUDA_TEST_FACTOR", 1, 1, 100, "how many times"};
  };
  for (const auto& [text, value] : {std::pair("2.0", 2.0),
                                    {"2", 2.0},
                                    {"1.5", 1.5},
                                    {"0.5", 0.0},
                                    {"nan", 0.0},
                                    {"inf", 0.0}}) {
    const TemporaryFile file(std::string("factor = ") + text);
    WithFactor sample;
    const Status status = load_toml_file(sample.registry, file.path());
    EXPECT_EQ(status.ok(), value != 0) << text;
    EXPECT_EQ(sample.factor.get(), status.ok() ? value : 1) << text;
    if (!status.ok()) {
      EXPECT_NE(status.context().find("a number from 1 to 100, such as 1.5"), std::string::npos);
    }
  }
  Variable given("RCUDA_TEST_FACTOR", "1.25");
  WithFactor sample;
  ASSERT_TRUE(sample.registry.load_environment().ok());
  EXPECT_EQ(sample.registry.environment(), std::vector<std::string>{"RCUDA_TEST_FACTOR=1.25"});
}

TEST(SettingsTest, ASizeWithoutItsUnitIsRefused) {
  struct WithoutLimit {
    Registry registry{"RCUDA_TEST_"};
    Bytes memory{registry, "RCUDA_TEST_MEMORY", 0, 1u << 20, "0: any"};
  };
  for (const auto& [text, accepted] :
       {std::pair("64", false), {"1023K", false}, {"1M", true}, {"0", true}, {"0.5M", false}}) {
    Variable given("RCUDA_TEST_MEMORY", text);
    WithoutLimit sample;
    const Status status = sample.registry.load_environment();
    EXPECT_EQ(status.ok(), accepted) << text;
    if (!accepted) {
      EXPECT_NE(status.context().find("at least 1 MiB, or 0"), std::string::npos)
          << status.context();
    }
  }
  Variable zero("RCUDA_TEST_CACHE_BYTES", "0");
  Sample sample;
  EXPECT_FALSE(sample.registry.load_environment().ok());
}

TEST(SettingsTest, TheLongestTimeFitsAMessageInMilliseconds) {
  Variable timeout("RCUDA_TEST_TIMEOUT", "7w");
  Sample sample;
  ASSERT_TRUE(sample.registry.load_environment().ok());
  EXPECT_EQ(sample.timeout.get(), Duration::kLongest);
  EXPECT_LE(sample.timeout.milliseconds().count(), std::numeric_limits<uint32_t>::max());
}

TEST(SettingsTest, AFolderIsNoFile) {
  Sample sample;
  const Status status = load_toml_file(sample.registry, "/tmp");
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.context(), "/tmp is a folder: name a file");
}

TEST(SettingsTest, AByteOrderMarkIsNoSetting) {
  const test::TempFolder folder;
  for (const auto& [text, said] : std::initializer_list<std::pair<std::string, std::string>>{
           {"\xef\xbb\xbfport = 1234\n", ""},
           {"\xef\xbb\xbfport = 1234\nprot = 1\n", ":2: 'prot' is not a setting"},
           {std::string("\xff\xfep\0", 4), " is in UTF-16: save it as UTF-8"},
           {std::string("\xfe\xff\0p", 4), " is in UTF-16: save it as UTF-8"}}) {
    folder.write("server.toml", text);
    Sample sample;
    const Status status = load_toml_file(sample.registry, folder.file("server.toml"));
    EXPECT_EQ(status.ok(), said.empty()) << status.message();
    EXPECT_NE(status.context().find(said), std::string::npos) << status.message();
    if (said.empty() || said.front() == ':') {
      EXPECT_EQ(sample.port.get(), 1234);
    }
  }
}

TEST(TomlFileTest, OtherCharactersThanAsciiAreForComments) {
  EXPECT_EQ(foreign_character("# \xd1\xa8\na = \"b\" # c\n  # \xc2\xa0\n"), std::nullopt);
  EXPECT_EQ(foreign_character("a = 1\n\xd1\xa8 = 2\n"), 2u);
  EXPECT_EQ(foreign_character("a = \"\xc3\xa9\"\n"), 1u);
  EXPECT_EQ(foreign_character("a = 1 # \xc3\xa9\n"), 1u);
}

TEST(SettingsTest, AChildReadsBackWhatItsParentHas) {
  Sample parent;
  ASSERT_TRUE(parent.timeout.set("80us", "--timeout", "the command line").ok());
  ASSERT_TRUE(parent.cache.set("3M", "--cache", "the command line").ok());
  ASSERT_TRUE(parent.devices.set("2,1", "--devices", "the command line").ok());
  Sample child;
  for (const std::string& line : parent.registry.environment()) {
    const size_t equals = line.find('=');
    const std::string name = line.substr(0, equals);
    for (SettingBase* setting : child.registry.settings()) {
      if (name == setting->variable()) {
        EXPECT_TRUE(setting->set(line.substr(equals + 1), name, "its parent").ok());
      }
    }
  }
  EXPECT_EQ(child.timeout.get(), std::chrono::microseconds(80));
  EXPECT_EQ(child.cache.get(), 3u << 20);
  EXPECT_EQ(child.devices.get(), (std::vector<uint32_t>{2, 1}));
}

}  // namespace
}  // namespace rcuda::config

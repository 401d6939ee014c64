#include "client/pool/device_list.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rcuda::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Environment environment(std::map<std::string, std::string> variables) {
  return [kept = std::move(variables)](const char* name) {
    const auto found = kept.find(name);
    return found == kept.end() ? nullptr : found->second.c_str();
  };
}

std::string error_of(const std::string& devices) {
  const auto list = devices_from(environment({{"RCUDA_DEVICES", devices}}));
  return list.ok() ? "none" : list.status().context();
}

TEST(DeviceListTest, ReadsEveryFormOfAnEntry) {
  const auto list = devices_from(environment(
      {{"RCUDA_DEVICES", "node1:0, node2@9000:3,tcp:node1:1,[fe80::1]@8309:2,verbs:[::1]:0,"}}));
  ASSERT_TRUE(list.ok()) << list.status().message();
  ASSERT_EQ(list->size(), 5u);
  const auto& all = *list;
  EXPECT_EQ(all[0].host, "node1");
  EXPECT_EQ(all[0].port, wire::kDefaultPort);
  EXPECT_EQ(all[0].medium, nullptr);
  EXPECT_EQ(all[1].host, "node2");
  EXPECT_EQ(all[1].port, 9000);
  EXPECT_EQ(all[1].gpu, 3u);
  EXPECT_EQ(all[2].medium, transport::find_medium("tcp"));
  EXPECT_EQ(all[2].gpu, 1u);
  EXPECT_EQ(all[3].host, "fe80::1");
  EXPECT_EQ(all[3].port, 8309);
  EXPECT_EQ(all[4].medium, transport::find_medium("verbs"));
  EXPECT_EQ(all[4].host, "::1");
}

TEST(DeviceListTest, TheTextOfADeviceParsesBackToIt) {
  for (const char* text : {"node1:0", "tcp:node2@9000:3", "[fe80::1]@8309:2", "local:1"}) {
    const auto device = parse_device(text);
    ASSERT_TRUE(device.ok());
    const auto again = parse_device(device_text(*device));
    ASSERT_TRUE(again.ok()) << device_text(*device);
    EXPECT_EQ(device_text(*again), device_text(*device));
    EXPECT_EQ(again->medium, device->medium);
    EXPECT_EQ(again->host, device->host);
    EXPECT_EQ(again->port, device->port);
    EXPECT_EQ(again->gpu, device->gpu);
  }
}

TEST(DeviceListTest, AHostMayBeCalledLikeAMedium) {
  const auto list = devices_from(environment({{"RCUDA_DEVICES", "tcp:0,shm@9000:1"}}));
  ASSERT_TRUE(list.ok());
  EXPECT_EQ((*list)[0].host, "tcp");
  EXPECT_EQ((*list)[0].medium, nullptr);
  EXPECT_EQ((*list)[1].host, "shm");
  EXPECT_EQ((*list)[1].port, 9000);
}

TEST(DeviceListTest, LocalIsThisMachineOverSharedMemory) {
  const auto list =
      devices_from(environment({{"RCUDA_DEVICES", "local:0,local@9000:1,tcp:local:2,locals:3"}}));
  ASSERT_TRUE(list.ok());
  ASSERT_EQ(list->size(), 4u);
  EXPECT_EQ((*list)[0].host, "localhost");
  ASSERT_NE((*list)[0].medium, nullptr);
  EXPECT_EQ((*list)[0].medium->traits.reach, transport::Reach::kThisMachine);
  EXPECT_EQ((*list)[1].port, 9000);
  EXPECT_EQ((*list)[1].medium, (*list)[0].medium);
  EXPECT_EQ((*list)[2].host, "localhost");
  EXPECT_EQ((*list)[2].medium->traits.reach, transport::Reach::kNetwork);
  EXPECT_EQ((*list)[3].host, "locals");
  EXPECT_EQ((*list)[3].medium, nullptr);
}

TEST(DeviceListTest, ErrorsNameTheEntryAndWhatItShouldLookLike) {
  EXPECT_THAT(error_of("node1:0,node2"),
              testing::AllOf(HasSubstr("RCUDA_DEVICES"), HasSubstr("\"node2\""),
                             HasSubstr("\":gpu\" is missing"), HasSubstr("host[@port]:gpu")));
  EXPECT_THAT(error_of("node1:first"), HasSubstr("\"first\" is not a GPU number"));
  EXPECT_THAT(error_of("node1:"), HasSubstr("is not a GPU number"));
  EXPECT_THAT(error_of("node1:-1"), HasSubstr("is not a GPU number"));
  EXPECT_THAT(error_of("node1:4294967296"), HasSubstr("is not a GPU number"));
  EXPECT_THAT(error_of("node1@0:0"), HasSubstr("\"0\" is not a port"));
  EXPECT_THAT(error_of("node1@65536:0"), HasSubstr("is not a port"));
  EXPECT_THAT(error_of("node1@:0"), HasSubstr("is not a port"));
  EXPECT_THAT(error_of(":0"), HasSubstr("the host is missing"));
  EXPECT_THAT(error_of("[]:0"), HasSubstr("the host is missing"));
  EXPECT_THAT(error_of("fe80::1:0"), HasSubstr("an IPv6 address needs brackets"));
  EXPECT_THAT(error_of(" ,\n"), HasSubstr("RCUDA_DEVICES is empty"));
}

TEST(DeviceListTest, EachEntryIsReadOrExplained) {
  struct Case {
    const char* entry;
    const char* read;  // the devices' texts, or a part of the error
  };
  for (const Case& c : {
           Case{"node1:9000:0", "node1@9000:0"},
           Case{"tcp:node1:9000:0", "tcp:node1@9000:0"},
           Case{"[fe80::1]:9000:2", "[fe80::1]@9000:2"},
           Case{"node1:0-2", "node1@8308:0 node1@8308:1 node1@8308:2"},
           Case{"node1@9000:3-3", "node1@9000:3"},
           Case{"shm:node1:4294967294-4294967295",
                "shm:node1@8308:4294967294 shm:node1@8308:4294967295"},
           Case{"node1:GPU-8f2c", "node1@8308:GPU-8f2c"},
           Case{"node1:9000:MIG-8f2cab12-0000-0000-0000-000000000001",
                "node1@9000:MIG-8f2cab12-0000-0000-0000-000000000001"},
           Case{"node1:3-1", "\"3-1\" is not a range of GPUs"},
           Case{"node1:0-1024", "\"0-1024\" is not a range of GPUs"},
           Case{"node1:0-", "\"0-\" is not a GPU number"},
           Case{"node1:0-x", "\"0-x\" is not a GPU number"},
           Case{"node1:70000:0", "\"70000\" is not a port"},
           Case{"node1:0;node2:0", "commas separate devices"},
           Case{"ib:node1:0", "\"ib\" is not a medium (shm, tcp or verbs)"},
           Case{"ib:node1:9000:0", "\"ib\" is not a medium"},
           Case{"ib:[fe80::1]:0", "\"ib\" is not a medium"},
           Case{"fe80::1:9000:0", "an IPv6 address needs brackets"},
           Case{"[fe80::1:0", "brackets"},
           Case{"[fe80::1]x:0", "an IPv6 address needs brackets"},
       }) {
    const auto list = devices_from(environment({{"RCUDA_DEVICES", c.entry}}));
    std::string read;
    if (list.ok()) {
      for (const auto& device : *list) read += (read.empty() ? "" : " ") + device_text(device);
      EXPECT_EQ(read, c.read) << c.entry;
    } else {
      EXPECT_THAT(list.status().context(), testing::AllOf(HasSubstr(c.read), HasSubstr(c.entry)));
    }
  }
}

TEST(DeviceListTest, ANumberedVariableNamesOneDevice) {
  const auto range = devices_from(environment({{"RCUDA_DEVICE_0", "node1:0-1"}}));
  EXPECT_THAT(range.status().context(),
              testing::AllOf(HasSubstr("RCUDA_DEVICE_0"), HasSubstr("names several devices")));
  const auto uuid = parse_device("node1:GPU-8f2c");
  ASSERT_TRUE(uuid.ok());
  EXPECT_EQ(uuid->uuid, "GPU-8f2c");
}

TEST(DeviceListTest, WithoutACountThePoolHasTheNumbersThatAreSet) {
  const auto list = devices_from(environment(
      {{"RCUDA_DEVICE_10", "c:0"}, {"RCUDA_DEVICE_0", "a:1"}, {"RCUDA_DEVICE_1023", "d:2"}}));
  ASSERT_TRUE(list.ok()) << list.status().context();
  ASSERT_EQ(list->size(), 3u);
  EXPECT_EQ((*list)[0].host, "a");
  EXPECT_EQ((*list)[1].host, "c");
  EXPECT_EQ((*list)[2].gpu, 2u);
  const auto bad = devices_from(environment({{"RCUDA_DEVICE_3", "a"}}));
  EXPECT_THAT(bad.status().context(), HasSubstr("RCUDA_DEVICE_3"));
}

TEST(DeviceListTest, ACountNamesWhatIsMissing) {
  const auto list = devices_from(environment(
      {{"RCUDA_DEVICE_COUNT", "2"}, {"RCUDA_DEVICE_0", "a:1"}, {"RCUDA_DEVICE_1", "b@9:0"}}));
  ASSERT_TRUE(list.ok());
  EXPECT_EQ((*list)[1].port, 9);
  const auto error = [](std::map<std::string, std::string> variables) {
    const auto bad = devices_from(environment(std::move(variables)));
    return bad.ok() ? "none" : bad.status().context();
  };
  EXPECT_THAT(error({{"RCUDA_DEVICE_COUNT", "2"}, {"RCUDA_DEVICE_0", "a:1"}}),
              HasSubstr("RCUDA_DEVICE_1 is not set"));
  EXPECT_THAT(error({{"RCUDA_DEVICE_COUNT", "1"}, {"RCUDA_DEVICE_0", "a"}}),
              HasSubstr("RCUDA_DEVICE_0"));
  for (const char* count : {"0", "1025", "two", "", "1 "}) {
    EXPECT_THAT(error({{"RCUDA_DEVICE_COUNT", count}}), HasSubstr("is not a number of devices"));
  }
  EXPECT_EQ(devices_from(environment({})).status().code(), Code::kNotFound);
}

TEST(DeviceListTest, TheNewerFormIsPreferred) {
  const auto list = devices_from(environment(
      {{"RCUDA_DEVICES", "a:0"}, {"RCUDA_DEVICE_COUNT", "1"}, {"RCUDA_DEVICE_0", "b:0"}}));
  ASSERT_TRUE(list.ok());
  EXPECT_EQ((*list)[0].host, "a");
}

TEST(DeviceListTest, GroupsByServerAndKeepsTheOrder) {
  const auto list = devices_from(environment({{"RCUDA_DEVICES", "a:1,b:0,a:0,a@9000:0,tcp:a:0"}}));
  ASSERT_TRUE(list.ok());
  const auto servers = group_by_server(*list);
  ASSERT_TRUE(servers.ok());
  ASSERT_EQ(servers->size(), 4u);  // another port or medium is another session
  EXPECT_THAT((*servers)[0].gpus, ElementsAre(1, 0));
  EXPECT_THAT((*servers)[0].ordinals, ElementsAre(0, 2));
  EXPECT_THAT((*servers)[1].ordinals, ElementsAre(1));
  EXPECT_EQ((*servers)[2].port, 9000);
  EXPECT_EQ((*servers)[3].medium, transport::find_medium("tcp"));
}

TEST(DeviceListTest, AGpuIsNamedOnce) {
  const auto list = devices_from(environment({{"RCUDA_DEVICES", "a:0,b:0,a:0"}}));
  ASSERT_TRUE(list.ok());
  EXPECT_THAT(group_by_server(*list).status().context(), HasSubstr("GPU 0 of a is named twice"));
}

TEST(DeviceListTest, VisibleDevicesAreSelectedByPositionOrUuid) {
  const auto pool = devices_from(environment({{"RCUDA_DEVICES", "a:0,b:0,a:1"}}));
  ASSERT_TRUE(pool.ok());
  int asked = 0;
  const PoolUuids uuids = [&]() -> Result<std::vector<std::string>> {
    ++asked;
    return std::vector<std::string>{"GPU-1a", "GPU-2b", "GPU-1c"};
  };
  const auto seen = [&](std::map<std::string, std::string> variables) {
    std::string text;
    const auto selection = visible_devices(*pool, environment(std::move(variables)), uuids);
    EXPECT_TRUE(selection.ok());
    for (const DeviceAddress& device : selection->devices) {
      text += device.host + std::to_string(device.gpu) + " ";
    }
    return text;
  };
  EXPECT_EQ(seen({}), "a0 b0 a1 ");
  EXPECT_EQ(seen({{"CUDA_VISIBLE_DEVICES", "2,1,3"}}), "a1 b0 ");
  EXPECT_EQ(seen({{"CUDA_VISIBLE_DEVICES", ""}}), "");
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(seen({{"CUDA_VISIBLE_DEVICES", "GPU-2,GPU-1a"}}), "b0 a0 ");
  EXPECT_EQ(seen({{"CUDA_VISIBLE_DEVICES", "GPU-1"}}), "");
  EXPECT_EQ(asked, 2);
}

TEST(DeviceListTest, AServerThatTellsNoUuidIsAnError) {
  const auto pool = devices_from(environment({{"RCUDA_DEVICES", "a:0"}}));
  ASSERT_TRUE(pool.ok());
  const PoolUuids uuids = []() -> Result<std::vector<std::string>> {
    return Status(Code::kUnavailable, "a is gone");
  };
  EXPECT_EQ(visible_devices(*pool, environment({{"CUDA_VISIBLE_DEVICES", "GPU-1"}}), uuids)
                .status()
                .code(),
            Code::kUnavailable);
  EXPECT_TRUE(visible_devices(*pool, environment({{"CUDA_VISIBLE_DEVICES", "0"}}), uuids).ok());
}

}  // namespace
}  // namespace rcuda::client

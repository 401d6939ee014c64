// The output of rcuda-smi for the state of one server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tools/rcuda-smi/figures.h"
#include "tools/rcuda-smi/look.h"

namespace rcuda::smi {
namespace {

using testing::HasSubstr;

Look sample() {
  Look look;
  look.server = "node1:8308";
  look.status.server = "node1";
  look.status.version = "0.1.0";
  look.status.build = "1a2b3c4d5e6f";
  look.status.driver = "CUDA 13.0";
  look.status.max_sessions = 256;
  look.status.devices = {{2, "NVIDIA H200", 141ull << 30}};
  wire::ServerStatus::Session session;
  session.user = "ada";
  session.program = "./train";
  session.host = "login1";
  session.client_pid = 42;
  session.worker_pid = 4711;
  session.medium = "tcp";
  session.devices = {2};
  look.status.sessions = {session};
  wire::GpuReport::Gpu gpu;
  gpu.ordinal = 2;
  gpu.uuid = "GPU-1";
  gpu.total_bytes = 141ull << 30;
  gpu.used_bytes = 3ull << 30;
  gpu.processes = {{"login1", 42, 2ull << 30, 12ull << 30}};
  look.gpus.gpus = {gpu};
  return look;
}

TEST(ViewsTest, TheListHasMemoryWorkersAndTheBuild) {
  const std::string text = text_of(sample());
  EXPECT_THAT(text, HasSubstr("rcuda 0.1.0 (build 1a2b3c4d5e6f), CUDA 13.0\n"));
  EXPECT_THAT(text,
              HasSubstr("  device 2   NVIDIA H200                  3 GiB of 141 GiB      -      "
                        "-  1 session\n"));
  EXPECT_THAT(
      text, HasSubstr("  session 2        ada on login1, pid 42, over tcp, 0s, 2 GiB, worker 4711: "
                      "./train\n"));
}

// The device's line for reports with and without a quota.
TEST(ViewsTest, AQuotaIsNotTheGpu) {
  Look look = sample();
  look.gpus.gpus[0].quota_bytes = 12ull << 30;
  look.gpus.gpus[0].quota_used_bytes = 2ull << 30;
  const wire::ServerStatus::Device& device = look.status.devices[0];
  EXPECT_THAT(
      device_line(look, device),
      HasSubstr("      3 GiB of 141 GiB      -      -  1 session, your quota: 2 GiB of 12 GiB\n"));
  look.gpus.gpus[0].used_bytes = wire::kUnknownFigure;
  EXPECT_THAT(
      device_line(look, device),
      HasSubstr("          - of 141 GiB      -      -  1 session, your quota: 2 GiB of 12 GiB\n"));
  const nlohmann::json json = json_of(look);
  EXPECT_EQ(json["devices"][0]["total_bytes"], 141ull << 30);
  EXPECT_TRUE(json["devices"][0]["used_bytes"].is_null());
  EXPECT_EQ(json["devices"][0]["quota_bytes"], 12ull << 30);
  EXPECT_EQ(json["sessions"][0]["used_bytes"], 2ull << 30);
  EXPECT_EQ(json["sessions"][0]["quota_bytes"], 12ull << 30);
  EXPECT_TRUE(json_of(sample())["devices"][0]["quota_bytes"].is_null());
}

// The end of a device's line, and its JSON, for each kind of lease that the server reports.
TEST(ViewsTest, ALeasedDeviceDoesNotLookFree) {
  using Leased = wire::ServerStatus::Leased;
  struct Row {
    std::vector<Leased> leased;
    const char* text;
    const char* json;  // of lease, lease_user, lease_until, shared_leases
  };
  const std::vector<Row> rows = {
      {{}, "  1 session\n", "[null,null,null,0]"},
      {{Leased{1, "1a2b3c4d"}}, "  1 session\n", "[null,null,null,0]"},
      {{Leased{2, "1a2b3c4d"}},
       "  1 session, leased (lease 1a2b3c4d)\n",
       R"(["1a2b3c4d",null,null,0])"},
      {{Leased{2, "1a2b3c4d", "ada", 1'800'000'000}},
       "  1 session, leased to ada until 2027-01-15T08:00:00Z (lease 1a2b3c4d)\n",
       R"(["1a2b3c4d","ada","2027-01-15T08:00:00Z",0])"},
      {{Leased{2, "", "", 0, 1}}, "  1 session, 1 shared lease\n", "[null,null,null,1]"},
      {{Leased{2, "", "", 0, 2}}, "  1 session, 2 shared leases\n", "[null,null,null,2]"}};
  for (const Row& row : rows) {
    Look look = sample();
    look.status.leased = row.leased;
    EXPECT_THAT(device_line(look, look.status.devices[0]), testing::EndsWith(row.text));
    EXPECT_THAT(top_of({}, {look}), HasSubstr(row.text));
    const nlohmann::json device = json_of(look)["devices"][0];
    const nlohmann::json all = {device["lease"], device["lease_user"], device["lease_until"],
                                device["shared_leases"]};
    EXPECT_EQ(all.dump(), row.json);
  }
}

TEST(ViewsTest, ADeviceThatDrainsIsShown) {
  Look look = sample();
  EXPECT_EQ(json_of(look)["devices"][0]["draining"], false);
  look.status.devices[0].draining = true;
  EXPECT_THAT(text_of(look), HasSubstr("  1 session, draining\n"));
  EXPECT_THAT(top_of({}, {look}), HasSubstr("  1 session, draining\n"));
  EXPECT_EQ(json_of(look)["devices"][0]["draining"], true);
}

TEST(ViewsTest, APriorityIsShown) {
  Look look = sample();
  EXPECT_EQ(json_of(look)["sessions"][0]["priority"], 0);
  look.status.sessions[0].priority = 10;
  EXPECT_THAT(text_of(look), HasSubstr("worker 4711: ./train, priority 10\n"));
  EXPECT_EQ(json_of(look)["sessions"][0]["priority"], 10);
}

TEST(ViewsTest, ColumnsOfTopAreAsWideAsTheirTexts) {
  const std::string text = top_of({}, {sample()});
  EXPECT_THAT(text, testing::EndsWith("SERVER      WORKER  USER  PID  GPU  OVER  MEMORY  PEAK  "
                                      "LAUNCH/s  GRAPH/s  TO GPU/s  FROM/s  TIME  PROGRAM\n"
                                      "node1:8308    4711  ada    42  2    tcp    2 GiB   0 B     "
                                      "    0        0       0 B     0 B    0s  login1: ./train\n"));
}

TEST(ViewsTest, GpusAreListedAsByNvidiaSmi) {
  EXPECT_EQ(list_of(sample()), "GPU 2: NVIDIA H200 (UUID: GPU-1) node1@8308:2\n");
}

}  // namespace
}  // namespace rcuda::smi

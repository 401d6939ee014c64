// Sessions of a real server that try to reach one another: with names of exported memory that are
// not theirs, with names and handles that they made up, and with floods of introductions.
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "api/opcodes.h"
#include "common/reach/connect.h"
#include "common/wire/codec.h"
#include "common/wire/exported_name.h"
#include "tests/support/server_process.h"
#include "tests/support/session_harness.h"

namespace rcuda::server {
namespace {

using api::Opcode;
using test::patience;
using test::ServerProcess;
using wire::Encoder;

constexpr size_t kBytes = 4096;

// The client end of a session that speaks the protocol only.
class RealSession {
 public:
  RealSession(const ServerProcess& server, const char* client_host,
              std::vector<uint32_t> devices = {0}) {
    wire::Hello hello = test::hello("shm");
    hello.devices = std::move(devices);
    hello.host = client_host;
    UniqueFd socket = server.connect_local();
    EXPECT_TRUE(wire::write_message(socket.get(), wire::MessageType::kHello, wire::encode(hello),
                                    patience())
                    .ok());
    const auto answer = test::read_answer(socket.get());
    if (!answer.ok() || answer->first != wire::MessageType::kWelcome) {
      ADD_FAILURE() << "no session";
      return;
    }
    welcome_ = *wire::decode<wire::Welcome>(answer->second);
    transport::LinkOptions options;
    options.window_bytes = wire::ClientWindow::kBytes;
    constexpr std::chrono::seconds kPatience(60);
    auto link = wire::link_to_worker({std::move(socket), transport::find_medium("shm")},
                                     welcome_.token, options, {kPatience, kPatience});
    if (!link.ok()) {
      ADD_FAILURE() << link.status().message();
      return;
    }
    link_ = std::move(link).value();
    client_ = std::make_unique<test::ProtocolClient>(*link_);
    EXPECT_EQ(client_->next_event().size(), sizeof(wire::ReadyEvent));
  }

  test::ProtocolClient& client() { return *client_; }
  uint32_t worker_pid() const { return welcome_.worker_pid; }

  template <typename... Values>
  test::ProtocolClient::Answer call(Opcode opcode, const Values&... values) {
    Encoder body;
    (body.value(values), ...);
    auto answer = client_->call(static_cast<uint16_t>(opcode), body.body());
    if (!answer) ADD_FAILURE() << "the session ended";
    return answer.value_or(test::ProtocolClient::Answer{});
  }
  template <typename Output, typename... Values>
  Output get(Opcode opcode, const Values&... values) {
    const auto answer = call(opcode, values...);
    EXPECT_EQ(answer.result, CUDA_SUCCESS) << static_cast<int>(opcode);
    Output output{};
    if (answer.body.size() >= sizeof output)
      std::memcpy(&output, answer.body.data(), sizeof output);
    return output;
  }
  CUresult open(const CUipcMemHandle& handle) {
    return call(Opcode::cuIpcOpenMemHandle_v2, handle, 1u).result;
  }
  CUresult open(const CUipcEventHandle& handle) {
    return call(Opcode::cuIpcOpenEventHandle, handle, wire::ObjectId{next_id_++}).result;
  }
  // Imports an allocation or a pool by this token.
  CUresult import(Opcode opcode, const std::vector<char>& token, wire::ObjectId id) {
    Encoder body;
    body.array(token.data(), token.size());
    body.value(token.size());
    body.value(id);
    const auto answer = client_->call(static_cast<uint16_t>(opcode), body.body());
    EXPECT_TRUE(answer);
    return answer ? answer->result : CUDA_ERROR_UNKNOWN;
  }
  CUresult import_allocation(const std::vector<char>& token) {
    return import(Opcode::rcuda_allocation_import, token, next_id_++);
  }
  std::vector<char> token_of(Opcode opcode, wire::ObjectId object) {
    constexpr auto kBytesOfToken = static_cast<uint32_t>(sizeof(wire::ExportedName));
    const auto answer = call(opcode, object, kBytesOfToken, size_t{kBytesOfToken});
    EXPECT_EQ(answer.result, CUDA_SUCCESS);
    EXPECT_GE(answer.body.size(), kBytesOfToken);
    std::vector<char> token(kBytesOfToken);
    // The token follows the number of elements.
    std::memcpy(token.data(), answer.body.data() + answer.body.size() - token.size(), token.size());
    return token;
  }
  // Returns whether the memory holds this byte only.
  bool holds(CUdeviceptr address, uint8_t value) {
    wire::CopyToReplyBody body{};
    body.source = address;
    body.bytes = kBytes;
    const auto answer = client_->call(wire::Custom::kCopyToReply, body);
    return answer && answer->result == CUDA_SUCCESS &&
           answer->body == std::vector<std::byte>(kBytes, std::byte{value});
  }

 private:
  wire::Welcome welcome_;
  std::unique_ptr<transport::Link> link_;
  std::unique_ptr<test::ProtocolClient> client_;
  uint32_t next_id_ = 1;
};

// A session of the client host "one" has exported memory and an event.
class HostileNamesTest : public ::testing::Test {
 protected:
  HostileNamesTest() : server_({"--pool", "2"}), exporter_(std::in_place, server_, "one") {
    address_ = exporter_->get<CUdeviceptr>(Opcode::cuMemAlloc_v2, size_t{kBytes});
    EXPECT_EQ(
        exporter_->call(Opcode::cuMemsetD8Async, address_, uint8_t{42}, size_t{kBytes}, 0u).result,
        CUDA_SUCCESS);
    EXPECT_TRUE(exporter_->holds(address_, 42));  // the fill is over
    memory_ = exporter_->get<CUipcMemHandle>(Opcode::cuIpcGetMemHandle, address_);
    const unsigned flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    EXPECT_EQ(exporter_->call(Opcode::cuEventCreate, flags, wire::ObjectId{1}).result,
              CUDA_SUCCESS);
    event_ = exporter_->get<CUipcEventHandle>(Opcode::cuIpcGetEventHandle, wire::ObjectId{1});
  }

  ServerProcess server_;
  std::optional<RealSession> exporter_;
  CUdeviceptr address_ = 0;
  CUipcMemHandle memory_{};
  CUipcEventHandle event_{};
};

TEST_F(HostileNamesTest, AnotherSessionOfTheOwnerOpensTheNames) {
  RealSession other(server_, "one");
  const auto opened = other.get<CUdeviceptr>(Opcode::cuIpcOpenMemHandle_v2, memory_, 1u);
  EXPECT_TRUE(other.holds(opened, 42));
  EXPECT_EQ(other.open(event_), CUDA_SUCCESS);
  // The exporting process itself gets a driver's usual error.
  EXPECT_EQ(exporter_->open(memory_), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(HostileNamesTest, ASessionOfAnotherOwnerDoesNot) {
  RealSession stranger(server_, "two");
  EXPECT_EQ(stranger.open(memory_), CUDA_ERROR_MAP_FAILED);
  EXPECT_EQ(stranger.open(event_), CUDA_ERROR_MAP_FAILED);
  EXPECT_TRUE(exporter_->holds(address_, 42));
}

TEST_F(HostileNamesTest, NamesEndWithTheirSession) {
  exporter_.reset();
  RealSession other(server_, "one");
  // The worker ends shortly after its client.
  const auto end = patience();
  while (other.open(memory_) == CUDA_SUCCESS && std::chrono::steady_clock::now() < end) {
  }
  EXPECT_EQ(other.open(memory_), CUDA_ERROR_MAP_FAILED);
  EXPECT_EQ(other.open(event_), CUDA_ERROR_MAP_FAILED);
}

TEST_F(HostileNamesTest, MadeUpNamesOpenNothing) {
  RealSession other(server_, "one");
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    CUipcMemHandle memory = memory_;
    CUipcEventHandle event = event_;
    // The magic and the kind stay as they are in the first rounds.
    const size_t from = round < 200 ? offsetof(wire::ExportedName, worker) : 0;
    for (size_t i = from; i < sizeof(wire::ExportedName); ++i) {
      memory.reserved[i] = static_cast<char>(random());
      event.reserved[i] = static_cast<char>(random());
    }
    EXPECT_EQ(other.open(memory), from ? CUDA_ERROR_MAP_FAILED : CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(other.open(event), CUDA_ERROR_MAP_FAILED);
  }
  CUipcMemHandle memory{};
  std::memcpy(&memory, &event_, sizeof memory);
  EXPECT_EQ(other.open(memory), CUDA_ERROR_INVALID_VALUE) << "the name of an event";
  const std::vector<char> token(memory_.reserved, memory_.reserved + sizeof(wire::ExportedName));
  EXPECT_EQ(other.import_allocation(token), CUDA_ERROR_INVALID_VALUE) << "the name of a handle";
}

// Handles of the driver instead of rcuda's names: a handle that this process made with softgpu, and
// a handle in a former format, which named a process and a descriptor.
TEST_F(HostileNamesTest, HandlesOfTheDriverOpenNothing) {
  RealSession other(server_, "one");
  const api::DriverTable& driver = test::TestDriver::get().table;
  CUcontext context = nullptr;
  CUdeviceptr mine = 0;
  CUipcMemHandle raw{};
  ASSERT_EQ(driver.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver.cuCtxSetCurrent(context), CUDA_SUCCESS);
  ASSERT_EQ(driver.cuMemAlloc_v2(&mine, kBytes), CUDA_SUCCESS);
  ASSERT_EQ(driver.cuIpcGetMemHandle(&raw, mine), CUDA_SUCCESS);
  EXPECT_EQ(other.open(raw), CUDA_ERROR_INVALID_VALUE);
  const struct {
    uint32_t magic = 0x31637069;
    uint32_t process = 0;
    int32_t file = 3;
    uint32_t reserved = 0;
    uint64_t inode = 1, offset = 0, bytes = 4096;
  } chosen{.process = exporter_->worker_pid()};
  raw = {};
  std::memcpy(&raw, &chosen, sizeof chosen);
  EXPECT_EQ(other.open(raw), CUDA_ERROR_INVALID_VALUE);
  driver.cuMemFree_v2(mine);
  driver.cuDevicePrimaryCtxRelease_v2(0);
}

TEST_F(HostileNamesTest, TheClientSeesNoHandleOfTheDriver) {
  for (const char* bytes : {memory_.reserved, event_.reserved}) {
    uint64_t magic = 0;
    std::memcpy(&magic, bytes, sizeof magic);
    EXPECT_EQ(magic, wire::ExportedName::kMagic);
    EXPECT_EQ(std::string(bytes + sizeof(wire::ExportedName), 16), std::string(16, '\0'));
  }
}

// ---- devices -----------------------------------------------------------------------------------

// Memory, an allocation and a pool that a session of the second device exports.
struct Exports {
  explicit Exports(RealSession& session) {
    const auto address = session.get<CUdeviceptr>(Opcode::cuMemAlloc_v2, size_t{kBytes});
    memory = session.get<CUipcMemHandle>(Opcode::cuIpcGetMemHandle, address);

    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    session.call(Opcode::cuMemCreate, size_t{2u << 20}, properties, 0ull, wire::ObjectId{100});
    allocation = session.token_of(Opcode::rcuda_allocation_export, 100);

    CUmemPoolProps pool_properties{};
    pool_properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    pool_properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    pool_properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    session.call(Opcode::cuMemPoolCreate, pool_properties, wire::ObjectId{101});
    pool = session.token_of(Opcode::rcuda_pool_export, 101);
    const auto pooled =
        session.get<CUdeviceptr>(Opcode::cuMemAllocFromPoolAsync, size_t{kBytes}, 101u, 0u);
    pointer = session.get<CUmemPoolPtrExportData>(Opcode::cuMemPoolExportPointer, pooled);
  }
  CUipcMemHandle memory{};
  std::vector<char> allocation, pool;
  CUmemPoolPtrExportData pointer{};
};

TEST(ForeignDeviceTest, ASessionImportsMemoryOfItsOwnDevicesOnly) {
  const ServerProcess server({"--pool", "3"}, {"SOFTGPU_DEVICES=2"});
  RealSession exporter(server, "one", {1});
  const Exports exports(exporter);
  RealSession without(server, "one", {0}), with(server, "one", {0, 1});
  for (const auto& [session, expected] :
       {std::pair(&without, CUDA_ERROR_INVALID_DEVICE), std::pair(&with, CUDA_SUCCESS)}) {
    EXPECT_EQ(session->open(exports.memory), expected);
    EXPECT_EQ(session->import_allocation(exports.allocation), expected);
    // A pool by itself gives access to nothing.
    EXPECT_EQ(session->import(Opcode::rcuda_pool_import, exports.pool, 200), CUDA_SUCCESS);
    EXPECT_EQ(session->call(Opcode::rcuda_pool_import_pointer, 200u, exports.pointer).result,
              expected);
  }
}

// ---- introductions -----------------------------------------------------------------------------

int threads_of(uint32_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("Threads:")) return std::stoi(line.substr(8));
  }
  return 0;
}

TEST_F(HostileNamesTest, AFloodOfIntroductionsStaysItsSessionsOwnTrouble) {
  RealSession hostile(server_, "two");
  const int before = threads_of(hostile.worker_pid());
  const std::string host = "127.0.0.1";
  for (uint32_t link = 1; link <= 5000; ++link) {
    wire::PeerIntroduceBody body{};
    body.link = link;
    body.worker = 1 + link % 15;
    body.connects = 1;
    body.port = server_.port();  // a server, but not one of this session's
    body.host_bytes = static_cast<uint16_t>(host.size());
    ASSERT_TRUE(hostile.client()
                    .post(wire::Custom::kPeerIntroduce, body, std::as_bytes(std::span(host)))
                    .ok());
    if (link % 500 == 0) {
      EXPECT_TRUE(exporter_->holds(address_, 42));
    }
  }
  const auto pong = hostile.client().call(static_cast<uint16_t>(wire::Custom::kPing), {});
  EXPECT_TRUE(pong && pong->result == CUDA_SUCCESS);
  // The new threads: those of the engine, and one for each connection in progress.
  EXPECT_LE(threads_of(hostile.worker_pid()), before + 64 + 8);
  RealSession another(server_, "one");
  const auto opened = another.get<CUdeviceptr>(Opcode::cuIpcOpenMemHandle_v2, memory_, 1u);
  EXPECT_TRUE(another.holds(opened, 42));
}

}  // namespace
}  // namespace rcuda::server

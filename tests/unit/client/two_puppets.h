// The client library in this process, connected to two puppets (tests/support/puppet_server.h).
// RCUDA_DEVICES lists GPU 1 of the first server, GPU 0 of the second, and GPU 0 of the first.
// Initialised at the first use, once per process; every test must leave the sessions alive.
#pragma once

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "client/process/process.h"
#include "client/session/session.h"
#include "common/base/peer_order.h"
#include "tests/support/puppet_server.h"

namespace rcuda::client {

struct TwoPuppets {
  test::PuppetServer first, second;

  static TwoPuppets& get();

 private:
  TwoPuppets();
};

// The current context is one of device 0, which belongs to the first server.
class TwoPuppetsTest : public ::testing::Test {
 protected:
  using Command = test::PuppetServer::Command;

  void SetUp() override;
  void TearDown() override;

  Process& process() { return Process::get(); }
  test::PuppetServer& first() { return TwoPuppets::get().first; }
  test::PuppetServer& second() { return TwoPuppets::get().second; }
  Session& first_session() { return *process().sessions()[0]; }
  Session& second_session() { return *process().sessions()[1]; }

  // An address that the client knows as memory allocated by the session's worker.
  CUdeviceptr allocate(Session& session, uint64_t offset, size_t bytes);

  // The commands of this kind that the first server has received since the last call.
  template <typename Opcode>
  std::vector<Command> sent(Opcode opcode) {
    settle(first_session());
    return first().taken(opcode);
  }
  template <typename Opcode>
  std::vector<Command> sent_to_second(Opcode opcode) {
    settle(second_session());
    return second().taken(opcode);
  }
  // Blocks until the worker has received everything that was posted.
  static void settle(Session& session);

 private:
  std::vector<CUdeviceptr> allocated_;
};

// Makes a call during which the puppet's thread uses objects of the test, and shows the order to
// ThreadSanitizer.
template <typename Call>
CUresult ordered_with(const test::PuppetServer& puppet, const Call& call) {
  before_peer(&puppet);
  const CUresult result = call();
  after_peer(&puppet);
  return result;
}

// A separate session with its own puppet, for tests that may lose it.
struct LoneSession {
  explicit LoneSession(const char* medium = "shm");

  test::PuppetServer puppet;
  std::unique_ptr<Session> session;

  CUresult ping();
};

}  // namespace rcuda::client

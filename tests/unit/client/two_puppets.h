// A process of the client library on two puppets (tests/support/puppet_server.h): what
// RCUDA_DEVICES lists is GPUs 1 and 0 of the first server with GPU 0 of the second between them.
// Initialised at the first use, once per process; every test must leave the sessions alive.
#pragma once

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "client/process/process.h"
#include "client/channel/session.h"
#include "tests/support/puppet_server.h"

namespace rcuda::client {

struct TwoPuppets {
  test::PuppetServer first, second;

  static TwoPuppets& get();

 private:
  TwoPuppets();
};

// With a context of device 0 current, which the first server has.
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

  // An address of memory that the server's worker would have allocated, known to the client.
  CUdeviceptr allocate(Session& session, uint64_t offset, size_t bytes);

  // What of this kind the first server was sent since it was last asked.
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
  // Until the worker has seen everything that was posted.
  static void settle(Session& session);

 private:
  std::vector<CUdeviceptr> allocated_;
};

// A session of its own with a puppet of its own, for tests that may lose it.
struct LoneSession {
  LoneSession();

  test::PuppetServer puppet;
  std::unique_ptr<Session> session;

  CUresult ping();
};

}  // namespace rcuda::client

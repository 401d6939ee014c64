// HostName: a name whose addresses a test chooses, which are of this machine. MovingHost: such a
// name of two hosts in turn, as name servers give out the hosts of a pool.
//
// Programs that link this (rcuda_test_host_name) have getaddrinfo wrapped by the linker. One name
// at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/unique_fd.h"

namespace rcuda::test {

class HostName {
 public:
  static constexpr char kName[] = "host.test";
  using Addresses = std::vector<std::string>;

  // Who resolves the name gets the next of these, or the last one again.
  explicit HostName(std::vector<Addresses> answers);
  ~HostName();
  HostName(const HostName&) = delete;
};

// A TCP socket bound to this port of this machine's address, or to a free one if it is 0.
UniqueFd bind_tcp(const std::string& address, uint16_t* port);

class MovingHost {
 public:
  MovingHost();

  uint16_t port() const { return port_; }
  // A connection to either host; whether it is to the one that the name stood for at first.
  struct Caller {
    UniqueFd socket;
    bool to_first = false;
  };
  Caller accept() const;

 private:
  HostName name_;
  uint16_t port_ = 0;
  UniqueFd first_, second_;
};

}  // namespace rcuda::test

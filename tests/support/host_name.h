// HostName: a host name that resolves to addresses of this machine, which a test chooses.
// MovingHost: a HostName that resolves first to one host and then to another, as name servers do
// for a pool of hosts.
//
// In programs that link this (rcuda_test_host_name), the linker wraps getaddrinfo. Only one name
// may exist at a time.
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

  // Each resolution of the name returns the next of these answers; the last answer is repeated.
  explicit HostName(std::vector<Addresses> answers);
  ~HostName();
  HostName(const HostName&) = delete;
};

// Returns a TCP socket bound to `address` and to `port`, or to a free port if `port` is 0.
UniqueFd bind_tcp(const std::string& address, uint16_t* port);

class MovingHost {
 public:
  MovingHost();

  uint16_t port() const { return port_; }
  // Accepts a connection to either host. `to_first`: to the host that the name resolved to first.
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

// Reads and writes the name of a server, as users write it. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rcuda {

// Parses host, host:port or [address]:port. `marks`: the characters that may precede the port.
// Without a port, *port keeps its value. Returns false if the text is malformed.
bool parse_host_port(std::string_view text, std::string_view marks, std::string* host,
                     uint16_t* port);

// Returns the host as it is written before a port: an IPv6 address gets brackets.
inline std::string bracketed(const std::string& host) {
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

inline std::string host_and_port(const std::string& host, uint16_t port) {
  return host + ":" + std::to_string(port);
}

}  // namespace rcuda

// NetworkList: a setting that names the networks to which a worker may connect.
//
// Threads: any, after the setting has been read. Blocking: contains() with `auto`, while the kernel
// lists the interfaces. Errors: none; an interface that cannot be read is ignored.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <sys/socket.h>

#include "common/config/settings.h"

namespace rcuda::server {

class NetworkList : public config::SettingBase {
 public:
  NetworkList(config::Registry& registry, const char* variable, const char* help)
      : SettingBase(registry, variable, help) {}

  // Whether the address is in one of the networks. `uses_loopback`: `auto` includes the networks of
  // loopback interfaces.
  bool contains(const sockaddr& address, bool uses_loopback) const;

  std::string text() const override { return text_; }
  std::string accepted() const override {
    return "auto, any, or networks separated by commas, such as 10.0.0.0/8,fd00::/8";
  }

 protected:
  bool parse(std::string_view text) override;

 private:
  // An IPv4 address is kept as an IPv4-mapped IPv6 address (::ffff:0:0/96).
  struct Network {
    std::array<uint8_t, 16> address{};
    unsigned bits = 0;
    bool contains(const std::array<uint8_t, 16>& other) const;
  };
  static bool parse_one(std::string_view text, Network* network);
  static bool read(const sockaddr& address, std::array<uint8_t, 16>* bytes);
  static std::vector<Network> own_networks(bool uses_loopback);

  std::string text_ = "auto";
  std::vector<Network> networks_;
};

}  // namespace rcuda::server

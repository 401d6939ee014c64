#include "tools/base/server_query.h"

#include <charconv>
#include <chrono>
#include <utility>

#include "common/base/unique_fd.h"
#include "common/wire/connect.h"
#include "common/wire/identify.h"

namespace rcuda::tools {
namespace {

constexpr auto kPatience = std::chrono::seconds(5);

}  // namespace

Result<Server> parse_server(const std::string& text) {
  Server server;
  const size_t host_end = text.find(']') == std::string::npos ? 0 : text.find(']');
  const size_t mark = text.find_first_of(":@", host_end);
  server.host = text.substr(0, mark);
  if (server.host.size() > 2 && server.host.front() == '[') {
    server.host = server.host.substr(1, server.host.size() - 2);
  }
  if (mark == std::string::npos) return server;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + mark + 1, end, server.port);
  if (error == std::errc() && rest == end && server.port != 0 && !server.host.empty()) {
    return server;
  }
  return Status(
      Code::kInvalidArgument,
      "\"" + text + "\" is not a server: write host or host:port, [address]:port for IPv6");
}

Result<std::vector<std::byte>> ask(const Server& server, wire::MessageType question,
                                   const std::vector<std::byte>& body, wire::MessageType wanted) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  Result<UniqueFd> socket = wire::connect_tcp(server.host, server.port, deadline);
  if (!socket.ok()) return socket.status();
  wire::Connection connection;
  connection.socket = std::move(socket).value();
  wire::Credentials credentials;
  RCUDA_RETURN_IF_ERROR(credentials.registry.load_environment());
  RCUDA_RETURN_IF_ERROR(wire::identify(&connection, server.host, server.port, credentials, deadline)
                            .with_context(server.text()));
  RCUDA_RETURN_IF_ERROR(wire::write_message(connection.socket, question, body, deadline));
  auto answer = wire::read_message(connection.socket, deadline);
  if (!answer.ok()) return Status(answer.status()).with_context(server.text());
  if (answer->first == wire::MessageType::kRefusal) {
    Result<wire::Refusal> refusal = wire::decode_refusal(answer->second);
    if (!refusal.ok()) return refusal.status();
    const bool for_now = refusal->code == static_cast<uint32_t>(Code::kUnavailable);
    return Status(for_now ? Code::kUnavailable : Code::kDenied,
                  server.text() + ": " + refusal->reason);
  }
  if (answer->first != wanted) {
    return Status(Code::kProtocol, server.text() + " answered with the wrong message");
  }
  return std::move(answer->second);
}

std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
  }
  return text;
}

}  // namespace rcuda::tools

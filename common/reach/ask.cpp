#include "common/reach/ask.h"

#include <chrono>
#include <utility>

#include "common/base/host_port.h"
#include "common/base/unique_fd.h"
#include "common/messages/forms.h"
#include "common/messages/message_codec.h"
#include "common/messages/refusal.h"
#include "common/reach/connect.h"
#include "common/reach/identify.h"

namespace rcuda::wire {
namespace {

constexpr auto kPatience = std::chrono::seconds(5);

}  // namespace

Result<std::vector<std::byte>> ask(const std::string& host, uint16_t port, MessageType question,
                                   const std::vector<std::byte>& body, MessageType wanted) {
  const std::string server = host_and_port(host, port);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  RCUDA_ASSIGN_OR_RETURN(UniqueFd socket, connect_tcp(host, port, deadline));
  Connection connection;
  connection.socket = std::move(socket);
  Credentials credentials;
  RCUDA_RETURN_IF_ERROR(credentials.registry.load_environment());
  RCUDA_RETURN_IF_ERROR(
      identify(&connection, host, port, credentials, deadline).with_context(server));
  RCUDA_RETURN_IF_ERROR(write_message(connection.socket, question, body, deadline));
  auto answer = read_message(connection.socket, deadline);
  if (!answer.ok()) {
    return Status(Code::kTimeout, server + " did not answer a query: " + answer.status().context());
  }
  if (answer->first == MessageType::kRefusal) {
    return refusal_error(answer->second, server, Code::kDenied, {Code::kUnavailable});
  }
  if (answer->first != wanted) {
    return Status(Code::kProtocol, server + " answered a query with message type " +
                                       std::to_string(static_cast<uint32_t>(answer->first)) +
                                       ", not " + std::to_string(static_cast<uint32_t>(wanted)) +
                                       ": install the same build of rcuda on both sides");
  }
  MessageReader in(answer->second);
  if (form_of(wanted) != 0) RCUDA_RETURN_IF_ERROR(read_form(in, wanted).with_context(server));
  return std::move(answer->second);
}

}  // namespace rcuda::wire

// The messages that make a verbs Link, over the control socket. Each side sends a Hello (window,
// timeout, the server's address, the token for its queue pairs) and then a ready message. In place
// of either it may send a refusal, which says why making the Link failed. The receiving functions
// check the messages. All functions block until their deadline at most.
#pragma once

#include <cstdint>

#include "common/base/socket.h"
#include "common/base/status.h"
#include "common/transport/greeting.h"
#include "common/transport/verbs/connection.h"
#include "common/transport/verbs/device.h"

namespace rcuda::transport::verbs {

inline constexpr uint64_t kHelloMagic = 0x3173627276637572;    // "rucvrbs1"
inline constexpr uint64_t kReadyMagic = 0x2b73627276637572;    // "rucvrbs+"
inline constexpr uint64_t kRefusalMagic = 0x5f73627276637572;  // "rucvrbs_"

struct Hello {
  Greeting greeting;
  uint64_t window_address = 0;
  uint32_t window_rkey = 0;
  uint16_t family = 0;  // of the server's address
  uint16_t port = 0;
  uint8_t address[16] = {};
  Token token{};
};
static_assert(sizeof(Hello) == 72);

// The private data of rdma_cm's connection request.
struct PrivateData {
  Token token;
  uint32_t index;
};
static_assert(sizeof(PrivateData) == 20);

struct Refusal {
  uint64_t magic = kRefusalMagic;
  char why[512] = {};
};
static_assert(sizeof(Refusal) == 520);

void write_address(const Address& address, uint16_t port, Hello* hello);
Address read_address(const Hello& hello);

// Sent in place of a Hello or of ready: `status` says why making the Link failed, so that both
// sides can report it.
void send_refusal(const Socket& control, const Status& status);
// A refusal of the peer is returned as kUnavailable, with the peer's reason.
Status receive_hello(const Socket& control, Hello* peer, Deadline deadline);

// Ready: the sender's queue pairs are connected. The peer may send a refusal instead.
Status send_ready(const Socket& control, Deadline deadline);
Status receive_ready(const Socket& control, Deadline deadline);
// Whether the peer's ready has arrived. Leaves it in the socket.
bool ready_has_come(const Socket& control);

}  // namespace rcuda::transport::verbs

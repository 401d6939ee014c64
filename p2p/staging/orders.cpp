#include "p2p/staging/orders.h"

#include <algorithm>

namespace rcuda::p2p {

void Orders::add(Order order, StreamRef stream) {
  if (order == Order::kNone) return;
  const auto number = static_cast<uint64_t>(order);
  const Stream key{stream.stream, stream.context, stream.event ? number : 0};
  streams_[key].orders.push_back(order);
  stream_of_[number] = key;
}

Result<bool> Orders::reached(Order order) {
  const auto known = stream_of_.find(static_cast<uint64_t>(order));
  if (known == stream_of_.end()) return true;
  Waiting& waiting = streams_[known->second];
  if (waiting.orders.front() != order || waiting.asked == round_) return false;
  const Result<bool> reached = ops_.reached(order);
  if (reached && !*reached) {
    waiting.asked = round_;
    return false;
  }
  remove(order);
  return reached;
}

void Orders::release(Order order, const Status& status) {
  if (order == Order::kNone) return;
  remove(order);
  ops_.release(order, status);
}

void Orders::remove(Order order) {
  const auto known = stream_of_.find(static_cast<uint64_t>(order));
  if (known == stream_of_.end()) return;
  const auto stream = streams_.find(known->second);
  auto& orders = stream->second.orders;
  orders.erase(std::find(orders.begin(), orders.end(), order));
  if (orders.empty()) streams_.erase(stream);
  stream_of_.erase(known);
}

}  // namespace rcuda::p2p

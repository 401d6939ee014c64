// Models of the legs between two GPUs, for the machines that the planner's tests use.
#pragma once

#include "p2p/plan/planner.h"

namespace rcuda::p2p {

// Measured by the engine between two workers of a machine with two H200s, PCIe 5 and NVLink
// (docs/p2p_measurements.md): 4 KB take 8.1 us out, 7.4 us in, and 8.2 us mapped over NVLink. Large
// copies reach 55.4 GB/s out, 55.6 GB/s in, and 368 GB/s over NVLink. The split into a latency and
// a delay (LegModel::linear()) is assumed, because the overlap of successive copies was not
// recorded. TCP is the loopback interface, with one bulk stream.
inline PairModel h200() {
  PairModel model;
  model.copy_out = LegModel::linear(3, 55.4, 5);
  model.copy_in = LegModel::linear(3, 55.6, 4.3);
  model.ipc = LegModel::linear(3, 368, 5.2);
  model.wire_tcp = LegModel::linear(8, 5.7, 7);
  model.message_us = 0.3;
  return model;
}

// Approximates the testbed on which the strategies v1 to v4b were published: PCIe 2 x16 and FDR
// InfiniBand. GPUDirect reads GPU memory slowly there.
inline PairModel published_testbed() {
  PairModel model;
  model.copy_out = LegModel::linear(8, 6.3);
  model.copy_in = LegModel::linear(8, 6.0);
  model.wire_verbs = LegModel::linear(1, 6.0, 1);
  model.gpudirect = LegModel::linear(1, 0.9, 1);
  model.device_out = LegModel::linear(4, 100);
  model.device_in = LegModel::linear(4, 100);
  model.wire_tcp = LegModel::linear(15, 1.2, 10);
  model.registration = LegModel::linear(200, 50);
  model.message_us = 1;
  return model;
}

}  // namespace rcuda::p2p

// The table of methods: every pair of staging and route with which a copy can be made, its
// requirements on the two ends, and its cost. `rcuda-p2p plan` prints the table for two GPUs.
//
// Pure values and functions; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "p2p/plan/leg_model.h"
#include "p2p/plan/plan.h"
#include "p2p/plan/predict.h"

namespace rcuda::p2p {

// The measurements of one device. A leg that has not been measured is empty.
struct DeviceLegs {
  LegModel copy_out;      // to page-locked host memory
  LegModel copy_in;       // from page-locked host memory
  LegModel within;        // to or from a staging buffer of the device
  LegModel registration;  // register and deregister a range of the device's memory
};

// The legs of one direction, from source GPU to destination GPU.
struct PairModel {
  LegModel copy_out;      // of the source
  LegModel copy_in;       // of the destination
  LegModel wire_tcp;      // host memory to host memory over sockets
  LegModel wire_verbs;    // host memory to host memory by RDMA write
  LegModel gpudirect;     // GPU memory to GPU memory by RDMA write
  LegModel device_out;    // within the source
  LegModel device_in;     // within the destination
  LegModel ipc;           // a device copy from the mapped memory of the peer
  LegModel registration;  // of the source
  double message_us = 1;  // a control message, from the send to the reaction
};

// The common abilities of the two ends, as found when they connected.
struct Capabilities {
  bool shm = false;
  bool tcp = false;
  bool verbs = false;
  bool gpudirect = false;  // proven by a probe transfer; only with verbs
  bool ipc = false;
};

using Leg = LegModel PairModel::*;

// A row of the table: one method.
struct Method {
  Staging staging;
  Route route;
  bool Capabilities::*needs;
  const char* need;                          // the name of `needs` in messages
  std::array<Leg, Pipeline::kMaxLegs> legs;  // in the order of a chunk's path; the rest is null
  uint32_t setup_messages = 0;               // messages that do not overlap with chunks
};

// Returns all methods. Of methods with equal cost, the planner takes the first.
std::span<const Method> methods();
// Returns the method of a plan.
const Method& method_of(const Plan& plan);

// Returns the name of a requirement of the method that the two ends do not meet, or null if they
// meet all. `contiguous`: both halves of the copy are contiguous ranges.
const char* lacking(const Method& method, const Capabilities& can, bool contiguous);

// Returns the predicted time of a copy; 0 if a leg has not been measured.
double cost_us(const Method& method, const PairModel& model, uint64_t bytes, Chunking chunking);

}  // namespace rcuda::p2p

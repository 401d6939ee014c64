// DriverDecorator: a driver's table with overrides of some entries.
//
// An override of an entry is a function whose parameters are a Context (an object of the worker,
// not a CUDA context) and those of the entry. Through the Context, it calls the same entry of the
// table below. The lists of overrides are generated from api/table/driver_overrides.toml. An entry
// without an override is the pointer of the table below, so it costs nothing more.
//
// The entries of a table are plain functions, so the process has one Context of each type: the
// Context of the newest decorator of this type, until that decorator is destroyed.
// Threads: constructed and destroyed while no thread uses the table. An entry may be called from
// any thread if its override allows that.
#pragma once

#include "api/driver_table.h"

namespace rcuda::server {

template <typename Context>
class DriverDecorator {
 public:
  // Copies the table `below`. `context` outlives this object.
  DriverDecorator(const api::DriverTable& below, Context& context) : table_(below), own_(&context) {
    context_ = own_;
  }
  ~DriverDecorator() {
    if (context_ == own_) context_ = nullptr;
  }
  DriverDecorator(const DriverDecorator&) = delete;
  DriverDecorator& operator=(const DriverDecorator&) = delete;

  // Whether the process has a context of this type.
  static bool exists() { return context_ != nullptr; }

  // Overrides an entry, unless the table below lacks it.
  template <auto kOverride, typename... Arguments>
  void override_entry(CUresult (*api::DriverTable::*entry)(Arguments...)) {
    if (!(table_.*entry)) return;
    table_.*entry = [](Arguments... arguments) { return kOverride(*context_, arguments...); };
  }

  const api::DriverTable& table() const { return table_; }

 private:
  static inline Context* context_ = nullptr;
  api::DriverTable table_;
  Context* const own_;
};

}  // namespace rcuda::server

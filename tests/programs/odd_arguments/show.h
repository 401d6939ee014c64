// For the lists of calls of this program: each prints a line with its result.
//
// The lists run in a child process. A call that ends it is reported, and the lists run again
// without the call.
#pragma once

#include <cstdio>

#include <cuda.h>

#include "driver_checks.h"

// Prints the call. Returns false if this child must skip it.
bool announce(const char* call);
void show(CUresult result);

#define SHOW(call)                   \
  do {                               \
    if (announce(#call)) show(call); \
  } while (0)

// A call that the next ones need. Prints a line only if the call fails, and the list continues.
void expect_success(const char* call, CUresult result);
#undef CU
#define CU(call) expect_success(#call, call)

// Prints a value after a call, such as a count that the call has changed.
void show_value(const char* name, long long number);
#define VALUE(expression) show_value(#expression, static_cast<long long>(expression))

// Returns a value that the enumeration does not define.
template <typename Enumeration>
Enumeration odd(int number = 9999) {
  return static_cast<Enumeration>(number);
}

extern const char kPtx[];

// The objects that the calls use.
struct World {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  CUfunction function = nullptr;
  CUkernel kernel = nullptr;
  CUmemLocation here{};
};

void devices(const World& world);
void contexts(const World& world);
void code(const World& world);
void linking(const World& world);
void launches(const World& world);
void memory(const World& world);
void attributes(const World& world);
void copies(const World& world);
void managed(const World& world);
void pools(const World& world);
void virtual_memory(const World& world);
void mapped_in_pieces(const World& world);
void arrays(const World& world);
void streams(const World& world);
void events(const World& world);
void graphs(const World& world);
void graph_nodes(const World& world);

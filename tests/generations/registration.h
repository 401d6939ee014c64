// The kernels and variables of kernels.cu, as host code of this folder names them.
//
// From one source, nvcc makes such stubs itself, for the runtime of one generation. Here g++
// compiles the host code against the headers of the runtime that it is linked with, so the stubs
// and their registration are written by hand (registration.cpp). cudaLaunchKernel launches a kernel
// by the address of its stub.
#pragma once

extern "C" {
void scale();           // (float* data, int count)
void add();             // (const float* a, const float* b, float* sum, int count)
void count_threads();   // ()
void add_to_managed();  // (int amount)
void fill_table();      // (float start)
void sum_blocks();      // (const int* values, int* sums)
void exchange();        // (int* values)
void bounded();         // (int* out)
}

// The host's shadows of the variables. The address of a shadow stands for its variable in calls;
// managed_value points to its variable.
extern int counter;
extern float table[256];
extern float factors[4];
extern int* managed_value;

// The fatbin, for programs that load it themselves.
extern "C" const unsigned char kernels_fatbin[];

// The kernels and variables of kernels.cu, as host code of this folder names them.
//
// nvcc makes such stubs of its own from one source for one generation's runtime. Host code here is
// compiled by g++ against the headers of the runtime that it is linked with, so the stubs and their
// registration are written out (registration.cpp). A kernel is launched by cudaLaunchKernel with
// the address of its stub.
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

// Shadows of the variables: their addresses name them; managed_value points to the variable.
extern int counter;
extern float table[256];
extern float factors[4];
extern int* managed_value;

// The fatbin, for programs that load it themselves.
extern "C" const unsigned char kernels_fatbin[];

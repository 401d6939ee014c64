#pragma once

#include "program.h"

extern __device__ int visits;
extern __device__ int offsets[4];
extern __constant__ float factors[3];
__device__ int scale(int value);
__device__ int apply(int which, int value);
void run_other_kernel();

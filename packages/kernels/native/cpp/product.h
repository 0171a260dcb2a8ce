// Copyright 2026 The Dovetail Authors
// SPDX-License-Identifier: Apache-2.0
// What the handler asks of a kernel. Kernels are one template, compiled once for each level of
// instructions in a file of its own: a function that such a file shared with others (anything of
// the standard library) could be linked in its AVX-512 form and stop an older processor.

#ifndef DOVETAIL_KERNELS_CPU_PRODUCT_H_
#define DOVETAIL_KERNELS_CPU_PRODUCT_H_

#include <stdint.h>

namespace dovetail {

// y[rows, out] = x[rows, in] w[in, out]; weights as dovetail_kernels.quantized.layout packs them.
struct Product {
  const float* x;
  const void* values;
  const float* scales;  // [out, groups]; null for 16 bits
  const float* zeros;   // [out, groups]; null where they are 0
  float* y;
  int64_t rows;  // 1 to kMostRows
  int64_t in;    // in / groups is a multiple of kWidth (twice that for 4 bits)
  int64_t out;
  int64_t groups;
  int bits;
};

constexpr int64_t kWidth = 16;
constexpr int64_t kMostRows = 4;

// Each computes the output channels begin..end. A channel's sum is added up in one order, whatever
// the range, so results do not depend on how a call is divided among threads.
using Kernel = void (*)(const Product&, int64_t begin, int64_t end);

void ProductPortable(const Product& p, int64_t begin, int64_t end);
void ProductAvx2(const Product& p, int64_t begin, int64_t end);
void ProductAvx512(const Product& p, int64_t begin, int64_t end);

}  // namespace dovetail

#endif  // DOVETAIL_KERNELS_CPU_PRODUCT_H_

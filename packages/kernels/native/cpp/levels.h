// Copyright 2026 The Dovetail Authors
// SPDX-License-Identifier: Apache-2.0
// Which kernel this processor can run.

#ifndef DOVETAIL_KERNELS_CPU_LEVELS_H_
#define DOVETAIL_KERNELS_CPU_LEVELS_H_

#include "product.h"

namespace dovetail {

// 0 portable, 1 AVX2, 2 AVX-512: the best that the processor and the system support.
inline int BestLevel() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return 2;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
  return 0;
}

// The kernel of a level from 0 to BestLevel().
inline Kernel KernelOf(int level) {
#if defined(__x86_64__)
  if (level == 2) return ProductAvx512;
  if (level == 1) return ProductAvx2;
#endif
  return ProductPortable;
}

}  // namespace dovetail

#endif  // DOVETAIL_KERNELS_CPU_LEVELS_H_

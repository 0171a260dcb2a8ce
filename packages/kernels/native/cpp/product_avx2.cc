// Copyright 2026 The Dovetail Authors
// SPDX-License-Identifier: Apache-2.0
// AVX2 and FMA, two registers a vector. Compiled with its flags, called only where they are
// supported.

#include "product.h"

#ifdef __AVX2__
#include <immintrin.h>

#include "kernel.h"

namespace dovetail {
namespace {

struct Vector {
  __m256 a, b;

  using Shift = __m256;
  static Shift ShiftBy(float shift) { return _mm256_set1_ps(shift); }
  static void LoadNibbles(const uint8_t* at, Shift shift, Vector* low, Vector* high) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    const __m128i mask = _mm_set1_epi8(15);
    *low = Shifted(_mm_and_si128(bytes, mask), shift);
    *high = Shifted(_mm_and_si128(_mm_srli_epi16(bytes, 4), mask), shift);
  }
  static Vector Shifted(__m128i bytes, Shift shift) {
    const Vector wide = FromInt8(bytes);
    return {_mm256_sub_ps(wide.a, shift), _mm256_sub_ps(wide.b, shift)};
  }
  static Vector FromInt8(__m128i bytes) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
  }
  static __m256 FromBfloat16(__m128i halves) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }

  static Vector Fill(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Vector Load(const float* at) { return {_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)}; }
  static Vector LoadInt8(const uint8_t* at) {
    return FromInt8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  }
  static Vector LoadBfloat16(const uint8_t* at) {
    return {FromBfloat16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))),
            FromBfloat16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 16)))};
  }
  static Vector Subtract(Vector x, Vector y) {
    return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
  }
  static Vector MultiplyAdd(Vector x, Vector y, Vector z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
  }
  static float Sum(Vector x) {
    const __m256 eight = _mm256_add_ps(x.a, x.b);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
};

}  // namespace

void ProductAvx2(const Product& p, int64_t begin, int64_t end) { Rows<Vector>(p, begin, end); }

}  // namespace dovetail
#endif  // __AVX2__

// Copyright 2026 The Dovetail Authors
// SPDX-License-Identifier: Apache-2.0
// AVX-512 F, one register a vector. Compiled with its flags, called only where it is supported.

#include "product.h"

#ifdef __AVX512F__
#include <immintrin.h>

#include "kernel.h"

namespace dovetail {
namespace {

struct Vector {
  __m512 v;

  // What the sixteen values of a nibble mean: a permutation of this table looks sixteen of them up,
  // by the low four bits of each index, without masking or converting.
  using Shift = __m512;
  static Shift ShiftBy(float shift) {
    const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_sub_ps(values, _mm512_set1_ps(shift));
  }
  static void LoadNibbles(const uint8_t* at, Shift table, Vector* low, Vector* high) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    const __m512i wide = _mm512_cvtepu8_epi32(bytes);
    low->v = _mm512_permutexvar_ps(wide, table);
    high->v = _mm512_permutexvar_ps(_mm512_srli_epi32(wide, 4), table);
  }

  static Vector Fill(float x) { return {_mm512_set1_ps(x)}; }
  static Vector Load(const float* at) { return {_mm512_loadu_ps(at)}; }
  static Vector LoadInt8(const uint8_t* at) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
  }
  static Vector LoadBfloat16(const uint8_t* at) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
  }
  static Vector Subtract(Vector a, Vector b) { return {_mm512_sub_ps(a.v, b.v)}; }
  static Vector MultiplyAdd(Vector a, Vector b, Vector c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
  }
  static float Sum(Vector a) { return _mm512_reduce_add_ps(a.v); }
};

}  // namespace

void ProductAvx512(const Product& p, int64_t begin, int64_t end) { Rows<Vector>(p, begin, end); }

}  // namespace dovetail
#endif  // __AVX512F__

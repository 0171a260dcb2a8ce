// Copyright 2026 The Dovetail Authors
// SPDX-License-Identifier: Apache-2.0
// The kernel, over a vector V of sixteen floats that the including file defines.
//
// A few output channels are computed together, so that a vector of x that is loaded once serves
// them all, and their sums do not wait for each other. Weights become float32 in registers; a
// group is summed up without its scale, which is multiplied once. Reading the weights from memory
// is what takes the time; one row's conversion and multiplication keep up with it.

#ifndef DOVETAIL_KERNELS_CPU_KERNEL_H_
#define DOVETAIL_KERNELS_CPU_KERNEL_H_

#include "product.h"

namespace dovetail {
namespace {

constexpr int kChannels = 4;  // computed together; four rows of them fill the registers of AVX-512
constexpr int64_t kLine = 64;  // bytes of a cache line

// Asks for the line `ahead` bytes further on: the same place of the channels that come next. The
// processor follows too few streams by itself, and stops at each page. Measured on 2 Sapphire
// Rapids cores, weights not in a cache: 4 bits take 0.6 of the time, 8 bits 0.8. An address behind
// the end is harmless, but as a pointer it would not be defined.
inline void Prefetch(const uint8_t* at, int64_t ahead) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(at) + ahead));
}

// int8 weights, or bfloat16 ones (kBits 16), which have no scales. kZero: they have zero points.
template <class V, int kBits, bool kZero, int kRows, int kTile>
void WholeTile(const Product& p, int64_t f) {
  constexpr int64_t kBytes = kBits / 8;
  const int64_t size = p.in / p.groups;
  V total[kTile][kRows];
  for (int t = 0; t < kTile; ++t)
    for (int m = 0; m < kRows; ++m) total[t][m] = V::Fill(0.0f);
  for (int64_t g = 0; g < p.groups; ++g) {
    V zero[kTile], sum[kTile][kRows];
    for (int t = 0; t < kTile; ++t) {
      zero[t] = V::Fill(kZero ? p.zeros[(f + t) * p.groups + g] : 0.0f);
      for (int m = 0; m < kRows; ++m) sum[t][m] = V::Fill(0.0f);
    }
    for (int64_t d = g * size; d < (g + 1) * size; d += kWidth) {
      V x[kRows];
      for (int m = 0; m < kRows; ++m) x[m] = V::Load(p.x + m * p.in + d);
      for (int t = 0; t < kTile; ++t) {
        const uint8_t* at = static_cast<const uint8_t*>(p.values) + ((f + t) * p.in + d) * kBytes;
        if (d * kBytes % kLine == 0) Prefetch(at, kTile * p.in * kBytes);
        V w = kBits == 16 ? V::LoadBfloat16(at) : V::LoadInt8(at);
        if (kZero) w = V::Subtract(w, zero[t]);
        for (int m = 0; m < kRows; ++m) sum[t][m] = V::MultiplyAdd(w, x[m], sum[t][m]);
      }
    }
    for (int t = 0; t < kTile; ++t) {
      const V scale = V::Fill(kBits == 16 ? 1.0f : p.scales[(f + t) * p.groups + g]);
      for (int m = 0; m < kRows; ++m)
        total[t][m] = V::MultiplyAdd(sum[t][m], scale, total[t][m]);
    }
  }
  for (int t = 0; t < kTile; ++t)
    for (int m = 0; m < kRows; ++m) p.y[m * p.out + f + t] = V::Sum(total[t][m]);
}

// Four-bit weights: the bytes of a group hold its first half in their low nibbles, its second in
// the high ones, both 8 above the value.
template <class V, bool kZero, int kRows, int kTile>
void NibbleTile(const Product& p, int64_t f) {
  const int64_t half = p.in / p.groups / 2;
  V total[kTile][kRows];
  for (int t = 0; t < kTile; ++t)
    for (int m = 0; m < kRows; ++m) total[t][m] = V::Fill(0.0f);
  for (int64_t g = 0; g < p.groups; ++g) {
    typename V::Shift shift[kTile];
    V sum[kTile][kRows];
    for (int t = 0; t < kTile; ++t) {
      shift[t] = V::ShiftBy(8.0f + (kZero ? p.zeros[(f + t) * p.groups + g] : 0.0f));
      for (int m = 0; m < kRows; ++m) sum[t][m] = V::Fill(0.0f);
    }
    const float* x = p.x + 2 * g * half;
    const uint8_t* bytes = static_cast<const uint8_t*>(p.values) + f * (p.in / 2) + g * half;
    for (int64_t d = 0; d < half; d += kWidth) {
      V first[kRows], second[kRows];
      for (int m = 0; m < kRows; ++m) {
        first[m] = V::Load(x + m * p.in + d);
        second[m] = V::Load(x + m * p.in + half + d);
      }
      for (int t = 0; t < kTile; ++t) {
        V low, high;
        const uint8_t* at = bytes + t * (p.in / 2) + d;
        if (d % kLine == 0) Prefetch(at, kTile * (p.in / 2));
        V::LoadNibbles(at, shift[t], &low, &high);
        for (int m = 0; m < kRows; ++m) {
          sum[t][m] = V::MultiplyAdd(low, first[m], sum[t][m]);
          sum[t][m] = V::MultiplyAdd(high, second[m], sum[t][m]);
        }
      }
    }
    for (int t = 0; t < kTile; ++t) {
      const V scale = V::Fill(p.scales[(f + t) * p.groups + g]);
      for (int m = 0; m < kRows; ++m)
        total[t][m] = V::MultiplyAdd(sum[t][m], scale, total[t][m]);
    }
  }
  for (int t = 0; t < kTile; ++t)
    for (int m = 0; m < kRows; ++m) p.y[m * p.out + f + t] = V::Sum(total[t][m]);
}

template <class V, int kRows, int kTile>
void Tile(const Product& p, int64_t f) {
  if (p.bits == 16) return WholeTile<V, 16, false, kRows, kTile>(p, f);
  if (p.bits == 8 && p.zeros == nullptr) return WholeTile<V, 8, false, kRows, kTile>(p, f);
  if (p.bits == 8) return WholeTile<V, 8, true, kRows, kTile>(p, f);
  if (p.zeros == nullptr) return NibbleTile<V, false, kRows, kTile>(p, f);
  return NibbleTile<V, true, kRows, kTile>(p, f);
}

template <class V, int kRows>
void Channels(const Product& p, int64_t begin, int64_t end) {
  int64_t f = begin;
  for (; f + kChannels <= end; f += kChannels) Tile<V, kRows, kChannels>(p, f);
  for (; f < end; ++f) Tile<V, kRows, 1>(p, f);
}

template <class V>
void Rows(const Product& p, int64_t begin, int64_t end) {
  switch (p.rows) {
    case 1: return Channels<V, 1>(p, begin, end);
    case 2: return Channels<V, 2>(p, begin, end);
    case 3: return Channels<V, 3>(p, begin, end);
    default: return Channels<V, 4>(p, begin, end);
  }
}

}  // namespace
}  // namespace dovetail

#endif  // DOVETAIL_KERNELS_CPU_KERNEL_H_

// Copyright 2026 The Dovetail Authors
// SPDX-License-Identifier: Apache-2.0
// Plain C++, for any processor: sixteen floats in an array, which compilers turn into the vectors
// that their target has.

#include <string.h>

#include "kernel.h"

namespace dovetail {
namespace {

struct Vector {
  float v[kWidth];

  using Shift = float;
  static Shift ShiftBy(float shift) { return shift; }
  static void LoadNibbles(const uint8_t* at, Shift shift, Vector* low, Vector* high) {
    for (int i = 0; i < kWidth; ++i) {
      low->v[i] = static_cast<float>(at[i] & 15) - shift;
      high->v[i] = static_cast<float>(at[i] >> 4) - shift;
    }
  }

  static Vector Fill(float x) {
    Vector r;
    for (float& e : r.v) e = x;
    return r;
  }
  static Vector Load(const float* at) {
    Vector r;
    memcpy(r.v, at, sizeof r.v);
    return r;
  }
  static Vector LoadInt8(const uint8_t* at) {
    Vector r;
    for (int i = 0; i < kWidth; ++i) r.v[i] = static_cast<int8_t>(at[i]);
    return r;
  }
  static Vector LoadBfloat16(const uint8_t* at) {
    Vector r;
    for (int i = 0; i < kWidth; ++i) {
      uint16_t half;
      memcpy(&half, at + 2 * i, sizeof half);
      const uint32_t bits = static_cast<uint32_t>(half) << 16;
      memcpy(&r.v[i], &bits, sizeof bits);
    }
    return r;
  }
  static Vector Subtract(const Vector& a, const Vector& b) {
    Vector r;
    for (int i = 0; i < kWidth; ++i) r.v[i] = a.v[i] - b.v[i];
    return r;
  }
  static Vector MultiplyAdd(const Vector& a, const Vector& b, const Vector& c) {
    Vector r;
    for (int i = 0; i < kWidth; ++i) r.v[i] = a.v[i] * b.v[i] + c.v[i];
    return r;
  }
  // By halves, as the vector units add.
  static float Sum(Vector a) {
    for (int width = kWidth / 2; width > 0; width /= 2)
      for (int i = 0; i < width; ++i) a.v[i] += a.v[i + width];
    return a.v[0];
  }
};

}  // namespace

void ProductPortable(const Product& p, int64_t begin, int64_t end) { Rows<Vector>(p, begin, end); }

}  // namespace dovetail

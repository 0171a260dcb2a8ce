// Copyright 2026 The Dovetail Authors
// SPDX-License-Identifier: Apache-2.0
// Every kernel of every level that this processor has, over heap buffers of exactly their size,
// against sums in double; and products divided among threads that come soon, late or never. Meant to
// be built with sanitizers.

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "../cpp/levels.h"
#include "../cpp/work.h"

namespace {

std::mt19937 generator(0);

float Random() { return std::normal_distribution<float>()(generator); }

int Random(int low, int high) { return std::uniform_int_distribution<int>(low, high)(generator); }

struct Shape {
  int rows, in, out, groups, bits;
  bool zeros;
};

// Weights as integers or floats, and the same packed.
void Fill(const Shape& s, std::vector<double>* weights, std::vector<uint8_t>* packed) {
  const int size = s.in / s.groups;
  for (int f = 0; f < s.out; ++f) {
    for (int d = 0; d < s.in; ++d) {
      double& w = (*weights)[f * s.in + d];
      if (s.bits == 16) {
        const float value = Random();
        uint32_t bits;
        std::memcpy(&bits, &value, 4);
        bits &= 0xFFFF0000u;
        const uint16_t half = static_cast<uint16_t>(bits >> 16);
        std::memcpy(packed->data() + 2 * (f * s.in + d), &half, 2);
        float cut;
        std::memcpy(&cut, &bits, 4);
        w = cut;
      } else if (s.bits == 8) {
        const int q = Random(-128, 127);
        (*packed)[f * s.in + d] = static_cast<uint8_t>(q);
        w = q;
      } else {
        const int q = Random(-8, 7), in_group = d % size, half = size / 2;
        const int byte = f * s.in / 2 + d / size * half + in_group % half;
        (*packed)[byte] |= static_cast<uint8_t>((q + 8) << (in_group < half ? 0 : 4));
        w = q;
      }
    }
  }
}

bool Check(const Shape& s, int level) {
  const size_t weights_count = static_cast<size_t>(s.in) * s.out;
  std::vector<double> weights(weights_count);
  std::vector<uint8_t> packed(weights_count * s.bits / 8);
  std::vector<float> x(s.rows * s.in), y(s.rows * s.out, NAN), scales(s.out * s.groups);
  std::vector<float> zeros(s.out * s.groups);
  Fill(s, &weights, &packed);
  for (float& v : x) v = Random();
  for (float& v : scales) v = s.bits == 16 ? 1 : std::fabs(Random());
  for (float& v : zeros) v = s.zeros ? Random(-8, 7) : 0;
  dovetail::Product p = {x.data(), packed.data(), s.bits == 16 ? nullptr : scales.data(),
                         s.zeros ? zeros.data() : nullptr, y.data(), s.rows, s.in, s.out,
                         s.groups, s.bits};
  const int middle = s.out / 3;  // two ranges, as two threads would have
  dovetail::KernelOf(level)(p, 0, middle);
  dovetail::KernelOf(level)(p, middle, s.out);
  for (int m = 0; m < s.rows; ++m) {
    for (int f = 0; f < s.out; ++f) {
      double exact = 0, size = 0;
      for (int d = 0; d < s.in; ++d) {
        const int at = f * s.groups + d / (s.in / s.groups);
        const double w = (weights[f * s.in + d] - zeros[at]) * scales[at];
        exact += x[m * s.in + d] * w;
        size += std::fabs(x[m * s.in + d] * w);
      }
      if (!(std::fabs(y[m * s.out + f] - exact) <= 1.2e-7 * s.in * size)) {
        std::fprintf(stderr, "level %d, %d bits, %dx%dx%d, %d groups: y[%d,%d] = %g, not %g\n",
                     level, s.bits, s.rows, s.in, s.out, s.groups, m, f, y[m * s.out + f], exact);
        return false;
      }
    }
  }
  return true;
}

// A kernel that counts how often each channel is computed, slower on every second chunk.
void Count(const dovetail::Product& p, int64_t begin, int64_t end) {
  if (begin / (end - begin) % 2) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  for (int64_t f = begin; f < end; ++f) p.y[f] += 1;
}

bool EachOnce(const char* name, const std::function<void(std::function<void()>)>& schedule) {
  for (int64_t out : {257, 512, 1031}) {
    std::vector<float> y(out);
    dovetail::Product p = {};
    p.in = 4096, p.out = out, p.y = y.data();
    dovetail::RunOn(p, Count, 4, schedule);
    for (float count : y)
      if (count != 1) {
        std::fprintf(stderr, "%s: a channel of %d is computed %g times\n", name, (int)out, count);
        return false;
      }
  }
  return true;
}

bool Threads() {
  std::vector<std::thread> threads;
  std::vector<std::function<void()>> late;
  const bool right =
      EachOnce("soon", [&](auto task) { threads.emplace_back(task); }) &&
      EachOnce("late", [&](auto task) { late.push_back(task); }) &&
      EachOnce("never", [](auto) {});
  for (auto& task : late) task();  // their product is gone
  for (auto& thread : threads) thread.join();
  return right;
}

}  // namespace

int main() {
  if (!Threads()) return 1;
  const int levels = dovetail::BestLevel();
  for (int level = 0; level <= levels; ++level)
    for (int rows = 1; rows <= 4; ++rows)
      for (int out : {1, 4, 11, 14}) {
        for (int bits : {8, 4, 16})
          for (int groups : {1, 3})
            for (bool zeros : {false, true})
              for (int size : {32, 96, 160}) {
                if (bits == 16 && (groups > 1 || zeros)) continue;
                if (!Check({rows, groups * size, out, groups, bits, zeros}, level)) return 1;
              }
        if (!Check({rows, 16, out, 1, 8, true}, level)) return 1;
      }
  std::printf("ok, levels 0 to %d\n", levels);
  return 0;
}

// Copyright 2026 The Dovetail Authors
// SPDX-License-Identifier: Apache-2.0
// The XLA FFI handler: checks its buffers, chooses a kernel, and runs it on XLA's threads.

#include <cstdint>
#include <utility>

#include "levels.h"
#include "product.h"
#include "work.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace dovetail {
namespace {

ffi::Error Invalid(const char* what) { return ffi::Error::InvalidArgument(what); }

ffi::Error Matmul(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::AnyBuffer values,
                  ffi::Buffer<ffi::F32> scales, ffi::Buffer<ffi::F32> zeros,
                  ffi::ResultBuffer<ffi::F32> y, int32_t bits, int32_t level) {
  const ffi::DataType stored = bits == 16  ? ffi::BF16
                               : bits == 8 ? ffi::S8
                               : bits == 4 ? ffi::U8
                                           : ffi::DataType::INVALID;
  if (values.element_type() != stored) return Invalid("values do not have the type of their bits");
  const auto shape = x.dimensions(), packed = values.dimensions(), result = y->dimensions();
  if (shape.size() != 2 || packed.size() != 2 || result.size() != 2 ||
      scales.dimensions().size() != 2 || zeros.dimensions().size() != 2)
    return Invalid("every buffer must be a matrix");
  Product p;
  p.x = x.typed_data();
  p.values = values.untyped_data();
  p.scales = scales.element_count() == 0 ? nullptr : scales.typed_data();
  p.zeros = zeros.element_count() == 0 ? nullptr : zeros.typed_data();
  p.y = y->typed_data();
  p.rows = shape[0];
  p.in = shape[1];
  p.out = packed[0];
  p.groups = p.scales == nullptr ? 1 : scales.dimensions()[1];
  p.bits = bits;
  const int64_t whole = bits == 4 ? 2 * kWidth : kWidth;
  if (p.rows < 1 || p.rows > kMostRows) return Invalid("rows must be 1 to 4");
  if (packed[1] * (bits == 4 ? 2 : 1) != p.in || result[0] != p.rows || result[1] != p.out)
    return Invalid("shapes of x, values and y do not fit");
  if (p.in % (p.groups * whole) != 0) return Invalid("a group must be a whole number of vectors");
  if ((p.scales == nullptr) != (bits == 16) ||
      (p.scales != nullptr && scales.dimensions()[0] != p.out))
    return Invalid("scales do not fit");
  if (p.zeros != nullptr &&
      (p.scales == nullptr || zeros.dimensions()[0] != p.out || zeros.dimensions()[1] != p.groups))
    return Invalid("zeros do not fit");
  if (level > BestLevel()) return Invalid("this processor does not have that level");
  RunOn(p, KernelOf(level < 0 ? BestLevel() : level), pool.num_threads(),
        [&pool](auto task) { pool.Schedule(std::move(task)); });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace dovetail

// What the arguments and the layout of weights are: changes with them. Its counterpart is ABI in
// dovetail_kernels/quantized/native.py.
extern "C" int dovetail_kernels_cpu_abi() { return 1; }

extern "C" int dovetail_kernels_cpu_level() { return dovetail::BestLevel(); }

// The pool, which level of instructions (-1 the best) and the matrices of Product, absent ones empty.
XLA_FFI_DEFINE_HANDLER_SYMBOL(dovetail_kernels_cpu_matmul, dovetail::Matmul,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<int32_t>("bits")
                                  .Attr<int32_t>("level"));

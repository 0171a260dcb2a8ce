// Copyright 2026 The Dovetail Authors
// SPDX-License-Identifier: Apache-2.0
// The XLA FFI handler: checks its buffers, chooses a kernel, divides the channels among threads.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "levels.h"
#include "product.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace dovetail {
namespace {

// Weights for which another thread is worth waking: some ten microseconds of work.
constexpr int64_t kWeightsOfTask = 1 << 17;

// Output channels that any thread may take, a chunk at a time.
//
// The calling thread takes chunks too, and waits at the end for those alone that another thread has
// taken and is therefore computing. So it never waits for a task that is still queued: it may be
// a thread of the pool itself, and all the others may be doing the same. A task that starts late
// finds nothing to take and touches nothing but this object, which it shares.
class Work {
 public:
  Work(const Product& product, Kernel kernel, int64_t chunk)
      : product_(product), kernel_(kernel), chunk_(chunk), left_(product.out) {}

  void Take() {
    for (;;) {
      const int64_t begin = next_.fetch_add(chunk_);
      if (begin >= product_.out) return;
      const int64_t end = begin + chunk_ < product_.out ? begin + chunk_ : product_.out;
      kernel_(product_, begin, end);
      if (left_.fetch_sub(end - begin) == end - begin) {
        std::lock_guard<std::mutex> lock(mutex_);
        done_.notify_all();
      }
    }
  }

  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return left_.load() == 0; });
  }

 private:
  const Product product_;
  const Kernel kernel_;
  const int64_t chunk_;
  std::atomic<int64_t> next_{0};
  std::atomic<int64_t> left_;
  std::mutex mutex_;
  std::condition_variable done_;
};

void Run(const Product& product, Kernel kernel, ffi::ThreadPool pool) {
  const int64_t tasks = product.in * product.out / kWeightsOfTask;
  const int64_t threads = pool.num_threads() < tasks ? pool.num_threads() : tasks;
  if (threads <= 1) return kernel(product, 0, product.out);
  // Four chunks a thread even out what else the machine does; whole sets of a kernel's channels.
  const int64_t chunk = (product.out / (4 * threads) + 3) / 4 * 4;
  auto work = std::make_shared<Work>(product, kernel, chunk > 0 ? chunk : 4);
  for (int64_t i = 1; i < threads; ++i) pool.Schedule([work] { work->Take(); });
  work->Take();
  work->Wait();
}

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
  Run(p, KernelOf(level < 0 ? BestLevel() : level), pool);
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

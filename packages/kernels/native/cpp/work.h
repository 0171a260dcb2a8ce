// Copyright 2026 The Dovetail Authors
// SPDX-License-Identifier: Apache-2.0
// One product on several threads.

#ifndef DOVETAIL_KERNELS_CPU_WORK_H_
#define DOVETAIL_KERNELS_CPU_WORK_H_

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "product.h"

namespace dovetail {

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

// Computes the product on at most `threads` threads: this one, and those on which `schedule(task)`
// runs its tasks, soon, late or never.
template <class Schedule>
void RunOn(const Product& product, Kernel kernel, int64_t threads, Schedule schedule) {
  const int64_t tasks = product.in * product.out / kWeightsOfTask;
  if (tasks < threads) threads = tasks;
  if (threads <= 1) return kernel(product, 0, product.out);
  // Four chunks a thread even out what else the machine does; whole sets of a kernel's channels.
  const int64_t chunk = (product.out / (4 * threads) + 3) / 4 * 4;
  auto work = std::make_shared<Work>(product, kernel, chunk > 0 ? chunk : 4);
  for (int64_t i = 1; i < threads; ++i) schedule([work] { work->Take(); });
  work->Take();
  work->Wait();
}

}  // namespace dovetail

#endif  // DOVETAIL_KERNELS_CPU_WORK_H_

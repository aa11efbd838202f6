// Operations over all elements of tensors on the CPU, run by run. Private to kernels/ops.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/execution.h"

namespace quantgate {

/// Elements that stay in the L1 cache from load to store.
inline constexpr int64_t kElementRun = 2048;

/// Calls body(begin, count) for runs of at most kElementRun elements.
template <class Body>
absl::Status ForRuns(const ExecutionContext& context, int64_t count, const Body& body) {
  constexpr int64_t kGrainElements = 1 << 16;
  ParallelFor(context, count, kGrainElements, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kElementRun) {
      body(at, std::min(kElementRun, end - at));
    }
  });
  return context.CheckCancelled();
}

}  // namespace quantgate

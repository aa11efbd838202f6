// ParallelForEach: pieces of work taken one by one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "kernels/base/execution.h"

namespace quantgate {

/// Gives out [0, count) in increasing order, to several threads, until the context is cancelled.
class WorkFeed {
 public:
  WorkFeed(const ExecutionContext& context, int64_t count) : context_(context), count_(count) {}

  std::optional<int64_t> Next();
  /// Pieces that nobody has taken.
  int64_t left() const { return std::max<int64_t>(0, count_ - next_); }

 private:
  const ExecutionContext& context_;
  const int64_t count_;
  std::atomic<int64_t> next_{0};
};

/// Calls worker(feed) on at most context.threads threads, and on helpers where the calling thread
/// shares its loops (kernels/base/loop_sharing.h). They take what there is of [0, count) from it,
/// each as soon as it is free, and may keep working memory meanwhile. For few pieces of much work,
/// of which the last may be smaller. Workers and cancellation as ParallelFor's.
void ParallelForEach(const ExecutionContext& context, int64_t count,
                     absl::FunctionRef<void(WorkFeed& feed)> worker);

}  // namespace quantgate

#include "kernels/base/parallel_for_each.h"

#include <algorithm>

#include "kernels/base/loop_sharing.h"

namespace quantgate {

std::optional<int64_t> WorkFeed::Next() {
  if (!context_.CheckCancelled().ok()) return std::nullopt;
  const int64_t i = next_++;
  return i < count_ ? std::optional(i) : std::nullopt;
}

void ParallelForEach(const ExecutionContext& context, int64_t count,
                     absl::FunctionRef<void(WorkFeed&)> worker) {
  WorkFeed feed(context, count);
  const LoopSharing::OpenLoop open(feed, worker);
  const int64_t threads = std::min<int64_t>(std::max(1, context.threads), count);
  ParallelFor(context, threads, 1, [&](int64_t, int64_t) {
    // A thread that comes late needs no working memory.
    if (feed.left() > 0) worker(feed);
  });
}

}  // namespace quantgate

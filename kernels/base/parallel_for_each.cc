#include "kernels/base/parallel_for_each.h"

#include <algorithm>
#include <atomic>

namespace quantgate {

void ParallelForEach(const ExecutionContext& context, int64_t count,
                     absl::FunctionRef<void(int64_t)> body) {
  std::atomic<int64_t> next{0};
  const int64_t threads = std::min<int64_t>(std::max(1, context.threads), count);
  ParallelFor(context, threads, 1, [&](int64_t, int64_t) {
    for (int64_t i = next++; i < count && context.CheckCancelled().ok(); i = next++) body(i);
  });
}

}  // namespace quantgate

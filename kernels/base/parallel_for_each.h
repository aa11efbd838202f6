// ParallelForEach: pieces of work taken one by one.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "kernels/base/execution.h"

namespace quantgate {

/// Calls body(i) for i in [0, count) on at most context.threads threads: they begin i in increasing
/// order, each as soon as a thread is free. For few pieces of much work, of which the last may be
/// smaller. Workers and cancellation as ParallelFor's.
void ParallelForEach(const ExecutionContext& context, int64_t count,
                     absl::FunctionRef<void(int64_t i)> body);

}  // namespace quantgate

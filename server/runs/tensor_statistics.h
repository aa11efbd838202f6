// Statistics of the values of a floating tensor.
#pragma once

#include <cstdint>
#include <map>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

struct TensorStatistics {
  double amax = 0;  ///< Over the finite values, like mean and rms.
  double mean = 0;
  double rms = 0;
  int64_t zero_count = 0;
  int64_t subnormal_count = 0;
  int64_t infinite_count = 0;
  int64_t nan_count = 0;
  /// Number of finite non-zero values by floor(log2 |value|).
  std::map<int, int64_t> exponent_histogram;
};

/// f32, bf16, f16 and FP8; INVALID_ARGUMENT for any other dtype. Sums are fp64 in order of index.
absl::StatusOr<TensorStatistics> MeasureStatistics(const Tensor& tensor,
                                                   const Cancellation* cancellation);

}  // namespace quantgate

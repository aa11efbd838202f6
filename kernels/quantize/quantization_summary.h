// What a report says of one quantization, read from its result.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "kernels/tensor/quantized_tensor.h"

namespace quantgate {

struct QuantizationSummary {
  /// Of the whole tensor, where the format has them: per-tensor FP8, and the amax of nvfp4 unless
  /// row-scaled. The columnwise amax only where it is another one (after a Hadamard transform).
  std::optional<float> amax;
  std::optional<float> amax_columnwise;
  std::optional<float> scale;
  std::optional<float> scale_inv;
  QuantizationCounts counts;
  /// Of the block scales of the direction that `counts` is of: how many have each code (E8M0,
  /// E4M3) or, for fp32 ones, each biased exponent. Absent codes are left out.
  std::map<int, int64_t> scale_codes;
};

/// Of a tensor in host memory with at least one direction.
QuantizationSummary SummarizeCpu(const QuantizedTensor& quantized);

}  // namespace quantgate

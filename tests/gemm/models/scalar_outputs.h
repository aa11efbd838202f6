// Outputs of a tensor-core GEMM by the scalar rule alone, for tests of every faster path.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {

struct OutputCoordinate {
  int64_t m = 0, n = 0;
};

/// The codes, in desc.out_dtype, of `outputs`, which must lie within the GEMM's shape. Takes some 5
/// ns a product.
absl::StatusOr<std::vector<uint32_t>> ScalarOutputs(const GemmDesc& desc,
                                                    const std::vector<OutputCoordinate>& outputs);

}  // namespace quantgate

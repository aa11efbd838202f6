// What ExplainCodes needs for NVFP4 beside the rules on a block's amax: the block scales that
// 4over6 picks by its errors, and the values after the Hadamard transform (docs/quantizers.md
// sections 6.4 and 6.7).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/tensor/tensor.h"
#include "kernels/validate/explain/explain_candidates.h"

namespace quantgate {

/// One setting of 4over6's knobs.
struct FourOverSixKnobs {
  FourOverSix error;
  int e4m3_max;

  /// The knobs as recipe nvfp4 spells them.
  std::string Text() const;
};
inline constexpr std::array kAllFourOverSixKnobs = {
    FourOverSixKnobs{FourOverSix::kMae, 256}, FourOverSixKnobs{FourOverSix::kMae, 448},
    FourOverSixKnobs{FourOverSix::kMse, 256}, FourOverSixKnobs{FourOverSix::kMse, 448}};

/// Rows of `values`, a matrix of so many columns, as f32 padded with zeros to multiples of 16 rows
/// and columns, which the quantizer needs; `transposed`: as columns. Zeros change no block's amax
/// and add 0 to its errors.
absl::StatusOr<Tensor> PaddedLines(const std::vector<float>& values, int64_t columns,
                                   const std::vector<int64_t>& rows, bool transposed);

/// The scale codes that the quantizer itself gives a padded source: [lines][length / 16], where
/// lines are rows or columns. With block_dim 2, every line of a tile repeats the tile's scale.
/// Without `global_amax` each line has its own tensor scale.
absl::StatusOr<Tensor> FourOverSixScaleCodes(const Tensor& padded, const FourOverSixKnobs& knobs,
                                             int block_dim, Usage usage,
                                             std::optional<float> global_amax,
                                             const ExecutionContext& context);

/// Every 16 values replaced by their Hadamard transform, which is bf16 widened to f32. `values`
/// must be values of bf16, and their number a multiple of 16.
std::vector<float> HadamardTransformed(const std::vector<float>& values,
                                       const ExecutionContext& context);

/// Whether of the sample at most a quarter of the codes have another sign than the transformed
/// values, where half would by chance. No rounding changes the sign of what it does not make 0.
/// `stored` has whole groups of 16 columns.
bool MayBeTransformed(uint8_t sign_bit, const StoredCodes& stored, const ExecutionContext& context);

}  // namespace quantgate

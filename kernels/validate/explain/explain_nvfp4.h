// What ExplainCodes needs of NVFP4 beyond rules of a block's amax: the block scales that 4over6
// picks by its errors, and the values of the Hadamard transform (docs/quantizers.md sections 6.4
// and 6.7).
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

namespace quantgate {

/// One setting of 4over6's knobs.
struct FourOverSixKnobs {
  FourOverSix error;
  int e4m3_max;

  /// As the recipe nvfp4 spells them.
  std::string Text() const;
};
inline constexpr std::array kAllFourOverSixKnobs = {
    FourOverSixKnobs{FourOverSix::kMae, 256}, FourOverSixKnobs{FourOverSix::kMae, 448},
    FourOverSixKnobs{FourOverSix::kMse, 256}, FourOverSixKnobs{FourOverSix::kMse, 448}};

/// An f32 source with zeros up to multiples of 16 rows and columns, which the quantizer needs; they
/// change no block's amax and add 0 to its errors.
absl::StatusOr<Tensor> PaddedToBlocks(const Tensor& f32);

/// The scale codes of the quantizer itself, [lines][length / 16] of a padded source's rows or
/// columns; block_dim 2 has tiles, whose scale each of their lines repeats. Without `global_amax`
/// each line has a tensor scale of its own.
absl::StatusOr<Tensor> FourOverSixScaleCodes(const Tensor& padded, const FourOverSixKnobs& knobs,
                                             int block_dim, Usage usage,
                                             std::optional<float> global_amax,
                                             const ExecutionContext& context);

/// Every 16 values in place of their transform, widened from its bf16. The values are bf16's, and
/// their number is a multiple of 16.
std::vector<float> HadamardTransformed(const std::vector<float>& values,
                                       const ExecutionContext& context);

}  // namespace quantgate

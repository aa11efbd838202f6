// Quantization with ideal scales: the same element format and the same blocks, but every scale is
// the fp32 number amax / max. The distance from its result to the original is the error of the
// elements; the distance to the quantizer's result is the error of the scale rule.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/quantize/quantizer.h"

namespace quantgate {

/// `matrix` (f32, 2-D) with each element rounded to nearest even on its block's grid: the code
/// times f32(amax / max), in f32. Blocks are those of spec.format and spec.block_dim; with
/// `along_rows` they run along the last dim. All-zero blocks stay zero; blocks whose amax is
/// infinite take scale 1, as the quantizers do.
absl::StatusOr<Tensor> WithIdealScales(const Tensor& matrix, const QuantizerSpec& spec,
                                       bool along_rows, const ExecutionContext& context);

/// `matrix` (f32, 2-D, columns a multiple of 16) with every 16 neighbours of a row transformed by
/// docs/quantizers.md section 6.4, but in fp64 and rounded once to f32. The transform of tensor
/// cores approximates this.
absl::StatusOr<Tensor> WithHadamard(const Tensor& matrix, const ExecutionContext& context);

}  // namespace quantgate

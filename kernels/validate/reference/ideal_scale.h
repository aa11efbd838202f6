// What quantization would make of a matrix if scales cost nothing: the same element format and the
// same blocks, every scale the fp32 number amax / max. The distance from here to the original is
// the price of the elements; the distance to what the quantizer made is the price of its scale
// rule.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/quantize/quantizer.h"

namespace quantgate {

/// `matrix` (f32, 2-D) with each element rounded to nearest even on its block's grid, in f32: the
/// code times f32(amax / max). `along_rows`: blocks run along the last dim. Blocks are those of
/// spec.format and spec.block_dim. All-zero blocks stay zero; blocks whose amax is infinite take
/// scale 1, as the quantizers do.
absl::StatusOr<Tensor> WithIdealScales(const Tensor& matrix, const QuantizerSpec& spec,
                                       bool along_rows, const ExecutionContext& context);

/// `matrix` (f32, 2-D, columns a multiple of 16) with each 16 neighbours of a row transformed as
/// docs/quantizers.md section 6.4 says, but in fp64 and rounded once to f32: what the transform of
/// tensor cores approximates.
absl::StatusOr<Tensor> WithHadamard(const Tensor& matrix, const ExecutionContext& context);

}  // namespace quantgate

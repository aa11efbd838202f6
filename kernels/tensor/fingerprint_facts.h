// The part of a fingerprint that is about the tensor and not about its data
// (docs/file-formats.md section 1.2).
#pragma once

#include "kernels/numerics/mix.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// The mixes of dtype, byte count and dims.
MixSum FingerprintFacts(const Tensor& tensor);

}  // namespace quantgate

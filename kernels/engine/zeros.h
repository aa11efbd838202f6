// Zeros in an engine's memory.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"

namespace quantgate {

/// Made there: nothing is uploaded.
inline absl::StatusOr<Tensor> Zeros(Engine& engine, const Shape& shape,
                                    const Cancellation* cancellation, DType dtype = DType::kF32) {
  GeneratorSpec zeros;
  zeros.distribution = Distribution::kAllZero;
  zeros.dtype = dtype;
  zeros.shape = shape;
  return engine.Generate(zeros, cancellation);
}

}  // namespace quantgate

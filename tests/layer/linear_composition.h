// A linear layer composed by hand from the CPU operations, without the layer: one rowwise
// quantization per tensor, columnwise operands as explicit byte transposes, every GEMM in TN.
#pragma once

#include <map>
#include <string>

#include "kernels/layer/layer.h"

namespace quantgate {

/// Outputs by name for all gradients; fp8_current with its defaults (HYBRID; fprop fast, dgrad and
/// wgrad split), or without quantization where `is_quantized` is false. `activation` is the
/// activation dtype.
std::map<std::string, Tensor> ComposeLinear(const LayerRequest& request, bool is_quantized,
                                            BackwardOverride override_mode, DType activation,
                                            const Arithmetic& arithmetic);

}  // namespace quantgate

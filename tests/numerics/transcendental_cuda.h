// exp, tanh, sigmoid, rsqrt and sigmoid in fp32 operations on a device, for whole ranges of inputs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace quantgate {

enum class FloatFunction { kExp, kTanh, kSigmoid, kReciprocalSqrt, kSigmoidByFloats };

/// values[i] = f(the float of bits first + i).
cudaError_t LaunchFloatFunction(FloatFunction function, uint32_t first, int64_t count,
                                float* values, cudaStream_t stream);

}  // namespace quantgate

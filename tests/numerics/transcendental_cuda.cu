#include <bit>

#include "kernels/numerics/transcendental.h"
#include "tests/numerics/transcendental_cuda.h"

namespace quantgate {
namespace {

template <float (*kFunction)(float)>
__global__ void FillValues(uint32_t first, int64_t count, float* values) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) values[i] = kFunction(std::bit_cast<float>(first + static_cast<uint32_t>(i)));
}

template <float (*kFunction)(float)>
void Launch(uint32_t first, int64_t count, float* values, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((count + 255) / 256);
  FillValues<kFunction><<<blocks, 256, 0, stream>>>(first, count, values);
}

}  // namespace

cudaError_t LaunchFloatFunction(FloatFunction function, uint32_t first, int64_t count,
                                float* values, cudaStream_t stream) {
  switch (function) {
    case FloatFunction::kExp:
      Launch<Exp>(first, count, values, stream);
      break;
    case FloatFunction::kTanh:
      Launch<Tanh>(first, count, values, stream);
      break;
    case FloatFunction::kSigmoid:
      Launch<Sigmoid>(first, count, values, stream);
      break;
    case FloatFunction::kReciprocalSqrt:
      Launch<ReciprocalSqrt>(first, count, values, stream);
      break;
    case FloatFunction::kSigmoidByFloats:
      Launch<SigmoidByFloats>(first, count, values, stream);
      break;
  }
  return cudaGetLastError();
}

}  // namespace quantgate

#include "tests/quantize/nvfp4/nvfp4_steps_cuda.h"

#include "kernels/numerics/stochastic_rounding.h"
#include "kernels/quantize/nvfp4/nvfp4_steps_cuda.h"

namespace quantgate::testing {
namespace {

constexpr uint32_t kInfinity = 0x7F800000;
constexpr int kThreads = 256;

__device__ uint32_t AtMost7(uint32_t code) { return min(code, 7u); }

template <Nvfp4Step kStep>
__device__ int DifferencesAt(float value) {
  // What the kernels' product with an eighth of the factor gives.
  const float eighth = value * 0.125f;
  if constexpr (kStep == Nvfp4Step::kScale) {
    return nvfp4_steps::EncodeE4M3(value) != EncodeFloat<E4M3>(value);
  } else if constexpr (kStep == Nvfp4Step::kNearest) {
    const uint32_t sum = nvfp4_steps::NearestSum(fminf(eighth, 1.0f));
    return AtMost7((sum - nvfp4_steps::kNearestBias) & 0xFF) != EncodeFloat<E2M1>(value);
  } else {
    int differences = 0;
    for (uint32_t random = 0; random < 256; ++random) {
      const uint32_t sum = nvfp4_steps::StochasticSum(eighth, random << 16);
      differences += AtMost7(sum >> 24) != EncodeE2m1Stochastic(value, random);
    }
    return differences;
  }
}

template <Nvfp4Step kStep>
__global__ void CompareStep(unsigned long long* differences) {
  const uint32_t stride = gridDim.x * kThreads;
  int64_t count = 0;
  for (uint32_t bits = blockIdx.x * kThreads + threadIdx.x; bits <= kInfinity; bits += stride) {
    count += DifferencesAt<kStep>(__uint_as_float(bits));
  }
  if (count != 0) atomicAdd(differences, static_cast<unsigned long long>(count));
}

/// Differences of a word of two elements, i and i + 1.
__device__ int CompareWord(uint32_t word, const uint16_t* expected, int i) {
  return ((word & 0xFFFF) != expected[i]) + ((word >> 16) != expected[i + 1]);
}

/// The fragment of operand A that has groups as rows.
__device__ void LoadGroups(const uint16_t* groups, uint32_t* words) {
  const int group = threadIdx.x / 4, i = threadIdx.x % 4 * 2;
  for (int k = 0; k < 4; ++k) {
    const uint16_t* at = groups + (group + k % 2 * 8) * 16 + i + k / 2 * 8;
    words[k] = at[0] | uint32_t{at[1]} << 16;
  }
}

/// A warp per sixteen groups.
__global__ void CompareTransform(const uint16_t* groups, unsigned long long* differences) {
  groups += int64_t{blockIdx.x} * 256;
  __shared__ uint16_t expected[16][16];
  if (threadIdx.x < 16) HadamardTransform(groups + threadIdx.x * 16, expected[threadIdx.x]);
  __syncwarp();
  const int group = threadIdx.x / 4, place = threadIdx.x % 4;
  uint32_t words[4], transformed[4];
  LoadGroups(groups, words);
  const uint4 transform = nvfp4_steps::MakeTransform(threadIdx.x);
  nvfp4_steps::TileTransform(&transform).Apply(words, transformed);
  int wrong = 0;
  for (int k = 0; k < 4; ++k) {
    wrong += CompareWord(transformed[k], expected[group + k / 2 * 8], place * 4 + k % 2 * 2);
  }
  if (wrong != 0) atomicAdd(differences, static_cast<unsigned long long>(wrong));
  // As the survey: rows of A are outputs, columns of B groups.
  const int i = place * 2;
  const uint32_t signs[4] = {
      nvfp4_steps::HadamardPair(i, group), nvfp4_steps::HadamardPair(i, group + 8),
      nvfp4_steps::HadamardPair(i + 8, group), nvfp4_steps::HadamardPair(i + 8, group + 8)};
  const uint32_t b[2] = {words[0], words[2]};  // Groups 0 to 7.
  float d[4];
  nvfp4_steps::MultiplyTile(signs, b, d);
  wrong = 0;
  for (int k = 0; k < 4; ++k) {
    const uint32_t output = nvfp4_steps::PackBF16(d[k], 0.0f) & 0xFFFF;
    wrong += output != expected[place * 2 + k % 2][group + k / 2 * 8];
  }
  if (wrong != 0) atomicAdd(differences + 1, static_cast<unsigned long long>(wrong));
}

}  // namespace

cudaError_t LaunchCompareStep(Nvfp4Step step, unsigned long long* differences,
                              cudaStream_t stream) {
  constexpr int kBlocks = 132 * 64;
  if (step == Nvfp4Step::kStochastic) {
    CompareStep<Nvfp4Step::kStochastic><<<kBlocks, kThreads, 0, stream>>>(differences);
  } else if (step == Nvfp4Step::kNearest) {
    CompareStep<Nvfp4Step::kNearest><<<kBlocks, kThreads, 0, stream>>>(differences);
  } else {
    CompareStep<Nvfp4Step::kScale><<<kBlocks, kThreads, 0, stream>>>(differences);
  }
  return cudaGetLastError();
}

cudaError_t LaunchCompareTransform(const uint16_t* groups, int64_t count,
                                   unsigned long long* differences, cudaStream_t stream) {
  CompareTransform<<<static_cast<unsigned>(count / 16), 32, 0, stream>>>(groups, differences);
  return cudaGetLastError();
}

}  // namespace quantgate::testing

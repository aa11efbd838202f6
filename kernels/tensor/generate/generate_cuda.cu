// Generated tensors: four elements, one block of Philox, a thread.
#include <algorithm>

#include "kernels/tensor/encode_lanes.h"
#include "kernels/tensor/tensor_kernels_cuda.h"

namespace quantgate {
namespace {

constexpr int kThreads = 256;

__device__ void QuadValues(const GenerationRule& rule, int64_t quad, float (&values)[4]) {
  const auto counter = static_cast<uint64_t>(quad);
  const PhiloxCounter words = PhiloxBlock(rule.seed, counter, kValueStream);
  PhiloxCounter choices{};
  if (rule.needs_choices) choices = PhiloxBlock(rule.seed, counter, kChoiceStream);
  for (int lane = 0; lane < 4; ++lane) {
    float value = GeneratedValue(rule.formula, words.word[lane], choices.word[lane], rule.range);
    if (4 * quad + lane == rule.huge.index) value = rule.huge.value;
    values[lane] = value * rule.scale;
  }
}

template <class F>
__global__ void __launch_bounds__(kThreads)
    GenerateQuads(const __grid_constant__ GenerateParameters parameters) {
  auto* out = static_cast<typename F::Storage*>(parameters.out);
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t quad = int64_t{blockIdx.x} * kThreads + threadIdx.x; 4 * quad < parameters.count;
       quad += stride) {
    float values[4];
    QuadValues(parameters.rule, quad, values);
    if (4 * quad + 4 <= parameters.count) {
      EncodeQuad<F>(values).Store(out + 4 * quad);
    } else {
      for (int i = 0; 4 * quad + i < parameters.count; ++i) {
        out[4 * quad + i] = StoredCode<F>(values[i]);
      }
    }
  }
}

/// 16-byte units of one repeated code, then the bytes that are left; `word` holds the code as often
/// as it fits.
__global__ void __launch_bounds__(kThreads) FillWords(void* out, uint32_t word, int64_t bytes) {
  const uint4 unit = make_uint4(word, word, word, word);
  const int64_t units = bytes / 16;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (int64_t i = first; i < units; i += stride) static_cast<uint4*>(out)[i] = unit;
  const int64_t at = units * 16 + first;
  if (at < bytes) static_cast<uint8_t*>(out)[at] = static_cast<uint8_t>(word >> (8 * (at % 4)));
}

unsigned BlocksFor(int64_t threads) {
  return static_cast<unsigned>(std::min<int64_t>((threads + kThreads - 1) / kThreads, 1 << 20));
}

template <class F>
void Fill(const GenerateParameters& parameters, cudaStream_t stream) {
  const int64_t bytes = parameters.count * static_cast<int64_t>(sizeof(typename F::Storage));
  uint32_t word = 0;
  for (size_t at = 0; at < 4; at += sizeof(typename F::Storage)) {
    word |= uint32_t{StoredCode<F>(0.0f * parameters.rule.scale)} << (8 * at);
  }
  FillWords<<<BlocksFor(bytes / 16 + 16), kThreads, 0, stream>>>(parameters.out, word, bytes);
}

}  // namespace

cudaError_t LaunchGenerate(const GenerateParameters& parameters, KernelPath path,
                           cudaStream_t stream) {
  if (parameters.count == 0) return cudaSuccess;
  VisitFormat<ElementFormats>(parameters.format, [&]<class F>() {
    if (path == KernelPath::kTuned && parameters.rule.formula == ValueFormula::kZero) {
      Fill<F>(parameters, stream);
    } else {
      GenerateQuads<F><<<BlocksFor((parameters.count + 3) / 4), kThreads, 0, stream>>>(parameters);
    }
  });
  return cudaGetLastError();
}

}  // namespace quantgate

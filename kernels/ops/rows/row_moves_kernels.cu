#include "kernels/numerics/reduction.h"
#include "kernels/ops/launch_cuda.h"
#include "kernels/ops/rows/row_moves_kernels.h"

namespace quantgate {
namespace {

/// Word is what every row is a multiple of.
template <class Word>
__global__ void GatherWords(const RowGatherParameters parameters) {
  const int64_t words = parameters.row_bytes / static_cast<int64_t>(sizeof(Word));
  const auto* from = reinterpret_cast<const Word*>(parameters.from);
  auto* to = reinterpret_cast<Word*>(parameters.to);
  for (int64_t i = FirstItem(); i < parameters.count * words; i += ItemStride()) {
    const int64_t row = parameters.rows[i / words];
    to[i] = row < 0 ? Word{} : from[row * words + i % words];
  }
}

__device__ float Rounded(NumberEncoding encoding, float value) {
  if (encoding == NumberEncoding::kBF16) return RoundedPartial<BFloat16>(value);
  if (encoding == NumberEncoding::kF16) return RoundedPartial<Float16>(value);
  return value;
}

__device__ float TermOf(const RowSumParameters& parameters, int64_t choice, int64_t column) {
  const int64_t row = parameters.positions == nullptr ? choice : parameters.positions[choice];
  if (row < 0) return 0.0f;
  float term = LoadFloat(parameters.rows, row * parameters.columns + column);
  if (parameters.weights != nullptr) term *= parameters.weights[choice];
  return parameters.rounds_terms ? Rounded(parameters.rows.encoding, term) : term;
}

__global__ void SumRows(const RowSumParameters parameters) {
  const int64_t elements = parameters.count * parameters.columns;
  for (int64_t i = FirstItem(); i < elements; i += ItemStride()) {
    const int64_t first = i / parameters.columns * parameters.choices;
    const int64_t column = i % parameters.columns;
    float sum = TermOf(parameters, first, column);
    for (int64_t choice = 1; choice < parameters.choices; ++choice) {
      sum += TermOf(parameters, first + choice, column);
      if (parameters.rounds_terms) sum = Rounded(parameters.rows.encoding, sum);
    }
    StoreFloat(parameters.to, i, sum);
  }
}

template <class Word>
void Gather(const RowGatherParameters& parameters, cudaStream_t stream) {
  const int64_t words =
      parameters.count * parameters.row_bytes / static_cast<int64_t>(sizeof(Word));
  GatherWords<Word><<<BlocksFor(words), kItemThreads, 0, stream>>>(parameters);
}

}  // namespace

cudaError_t LaunchGatherRows(const RowGatherParameters& parameters, cudaStream_t stream) {
  if (parameters.count * parameters.row_bytes == 0) return cudaSuccess;
  const bool is_aligned = parameters.row_bytes % 4 == 0 &&
                          reinterpret_cast<uintptr_t>(parameters.from) % 4 == 0 &&
                          reinterpret_cast<uintptr_t>(parameters.to) % 4 == 0;
  if (is_aligned) {
    Gather<uint32_t>(parameters, stream);
  } else {
    Gather<uint8_t>(parameters, stream);
  }
  return cudaGetLastError();
}

cudaError_t LaunchSumRows(const RowSumParameters& parameters, cudaStream_t stream) {
  const int64_t elements = parameters.count * parameters.columns;
  if (elements == 0) return cudaSuccess;
  SumRows<<<BlocksFor(elements), kItemThreads, 0, stream>>>(parameters);
  return cudaGetLastError();
}

}  // namespace quantgate

// Rounds outputs of the exact GEMM from its fp64 dot products: those that an interval certifies,
// and the others by wide integers.
#include "kernels/gemm/exact/exact_cuda_kernels.h"
#include "kernels/gemm/exact/exact_output.h"

namespace quantgate {
namespace {

using Vector = double;
using Words = int64_t;

QG_HOST_DEVICE inline double Load(const double* p) { return *p; }
QG_HOST_DEVICE inline double Broadcast(double x) { return x; }
QG_HOST_DEVICE inline int64_t Bits(double x) { return std::bit_cast<int64_t>(x); }
QG_HOST_DEVICE inline double Number(int64_t x) { return std::bit_cast<double>(x); }
QG_HOST_DEVICE inline double ProductError(double a, double b, double product) {
  return fma(a, b, -product);
}

#include "kernels/gemm/exact/exact_certify_body.h"

constexpr int kThreads = 256;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

__device__ void StoreCode(const ExactRoundTask& task, int64_t index, uint32_t code) {
  switch (task.output) {
    case ExactOutput::kF32:
      static_cast<uint32_t*>(task.d)[index] = code;
      return;
    case ExactOutput::kBF16:
    case ExactOutput::kF16:
      static_cast<uint16_t*>(task.d)[index] = static_cast<uint16_t>(code);
      return;
    default:
      static_cast<uint8_t*>(task.d)[index] = static_cast<uint8_t>(code);
  }
}

__device__ Certified CertifyOutput(const ExactRoundTask& task, int64_t row, int64_t column,
                                   const double* s) {
  const ExactOutputTerms& terms = task.terms;
  const double scale = terms.BScale(column);
  const double scale_b = terms.divisor == 1 ? scale : scale / static_cast<double>(terms.divisor);
  const double addend =
      terms.beta == 0 ? 0.0
                      : static_cast<double>(terms.beta) * terms.C(row * task.strip.n + column);
  const double bias = terms.Bias(column);
  const ExactRow exact_row = {1,
                              s,
                              task.norm_a[row],
                              task.lowest_bit_a[row] * 0x1p53,
                              task.norm_b + column,
                              task.lowest_bit_b + column,
                              task.relative_error,
                              static_cast<double>(terms.alpha) * terms.AScale(row),
                              terms.divisor == 1 ? 0.0 : 0x1p-52,
                              &scale_b,
                              &addend,
                              &bias,
                              terms.DScale()};
  switch (task.output) {
    case ExactOutput::kBF16:
      return CertifyAt<OutBF16>(exact_row, 0);
    case ExactOutput::kF16:
      return CertifyAt<OutF16>(exact_row, 0);
    case ExactOutput::kE4M3:
      return CertifyAt<OutE4M3>(exact_row, 0);
    case ExactOutput::kE5M2:
      return CertifyAt<OutE5M2>(exact_row, 0);
    case ExactOutput::kF32:
      break;
  }
  return CertifyAt<OutF32>(exact_row, 0);
}

__device__ ExactTerms TermsOf(const ExactRoundTask& task, int64_t row, int64_t column) {
  ExactTerms terms;
  terms.alpha = task.terms.alpha;
  terms.scale_a = task.terms.AScale(row);
  terms.scale_b = task.terms.BScale(column);
  terms.beta = task.terms.beta;
  terms.c = task.terms.C(row * task.strip.n + column);
  terms.bias = task.terms.Bias(column);
  terms.d_scale = task.terms.DScale();
  terms.divisor = static_cast<uint64_t>(task.terms.divisor);
  return terms;
}

__global__ void CertifyStrip(const ExactRoundTask task) {
  const ExactStrip& strip = task.strip;
  const int64_t column = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  uint32_t amax = 0;
  if (column < strip.n) {
    for (int64_t i = blockIdx.y; i < strip.rows; i += gridDim.y) {
      const double* s = strip.sums + i * strip.stride + column;
      const int64_t row = strip.begin + i;
      ExactCode result;
      if (error_bound::IsFinite(*s)) {
        const Certified certified = CertifyOutput(task, row, column, s);
        if (certified.doubt != 0) {
          task.doubtful[atomicAdd(&task.counts->doubts, 1ull)] = i * strip.n + column;
          continue;
        }
        result = {static_cast<uint32_t>(certified.codes), static_cast<uint32_t>(certified.amax)};
      } else {
        result = RoundSpecialOutput(*s, TermsOf(task, row, column), task.output);
      }
      StoreCode(task, row * strip.n + column, result.code);
      amax = max(amax, result.amax);
    }
  }
  if (task.amax == nullptr) return;
  amax = __reduce_max_sync(kAllLanes, amax);
  if (threadIdx.x % 32 == 0 && amax != 0) atomicMax(task.amax, amax);
}

/// An output that is computed again.
struct Doubtful {
  int64_t row, column;
  double s;
  bool is_exact;  // Whether s is exact.
};
__device__ Doubtful DoubtfulAt(const ExactRoundTask& task, int64_t i) {
  const ExactStrip& strip = task.strip;
  const int64_t index = task.doubtful[i];
  Doubtful output;
  output.row = strip.begin + index / strip.n;
  output.column = index % strip.n;
  output.s = strip.sums[index / strip.n * strip.stride + output.column];
  output.is_exact = task.norm_a[output.row] * task.norm_b[output.column] <
                    task.lowest_bit_a[output.row] * 0x1p53 * task.lowest_bit_b[output.column];
  return output;
}

__device__ void RoundAgain(const ExactRoundTask& task, const Doubtful& output,
                           const ExactDot& dot) {
  const ExactTerms terms = TermsOf(task, output.row, output.column);
  const ExactCode result = RoundExactOutput(dot, terms, task.output);
  StoreCode(task, output.row * task.strip.n + output.column, result.code);
  if (task.amax != nullptr) atomicMax(task.amax, result.amax);
}

/// Rounds the outputs whose fp64 dot product is exact, with a thread for each output.
__device__ void RedoEpilogues(const ExactRoundTask& task) {
  const auto count = static_cast<int64_t>(task.counts->doubts);
  const int64_t threads = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += threads) {
    const Doubtful output = DoubtfulAt(task, i);
    if (!output.is_exact) continue;
    ExactDot dot;
    dot.AddDouble(output.s);
    RoundAgain(task, output, dot);
    atomicAdd(&task.counts->wide_epilogues, 1ull);
  }
}

/// Adds the lanes' sums to that of lane 0.
__device__ void AddLanes(int lane, ExactDot& dot) {
  constexpr int kWords = ExactDot::Magnitude::kWordCount;
  for (int offset = 16; offset > 0; offset /= 2) {
    const ExactDot::Magnitude total = dot.Total();
    uint64_t words[kWords];
    for (int i = 0; i < kWords; ++i) {
      words[i] =
          __shfl_down_sync(kAllLanes, static_cast<unsigned long long>(total.words[i]), offset);
    }
    const bool negative = __shfl_down_sync(kAllLanes, int(total.negative), offset) != 0;
    if (lane < offset) dot.AddWords(negative, words, kWords, ExactDot::Magnitude::kLsb);
  }
}

/// Computes whole dot products in wide integers, with a warp for each output.
__device__ void RedoDots(const ExactRoundTask& task) {
  const auto count = static_cast<int64_t>(task.counts->doubts);
  const int lane = threadIdx.x % 32;
  const int64_t warps = int64_t(gridDim.x) * (blockDim.x / 32);
  const int64_t first = int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  for (int64_t i = first; i < count; i += warps) {
    const Doubtful output = DoubtfulAt(task, i);
    if (output.is_exact) continue;
    ExactDot dot;
    for (int64_t k = lane; k < task.k; k += 32) {
      const double a = task.a.At(output.row, k), b = task.b.At(output.column, k);
      const double product = a * b;
      dot.AddDouble(product);
      // Under fp32 block scales a product has up to 56 bits; its rounding error is an fp64 number.
      if (task.has_block_scales) dot.AddDouble(fma(a, b, -product));
    }
    AddLanes(lane, dot);
    if (lane != 0) continue;
    RoundAgain(task, output, dot);
    atomicAdd(&task.counts->wide_dots, 1ull);
  }
}

__global__ void Redo(const ExactRoundTask task) {
  RedoEpilogues(task);
  RedoDots(task);
}

}  // namespace

cudaError_t LaunchExactCertify(const ExactRoundTask& task, cudaStream_t stream) {
  if (task.strip.rows == 0) return cudaSuccess;
  const int64_t rows = task.strip.rows < 65535 ? task.strip.rows : 65535;
  const dim3 grid(static_cast<unsigned>((task.strip.n + kThreads - 1) / kThreads),
                  static_cast<unsigned>(rows));
  CertifyStrip<<<grid, kThreads, 0, stream>>>(task);
  return cudaGetLastError();
}

cudaError_t LaunchExactRedo(const ExactRoundTask& task, cudaStream_t stream) {
  if (task.strip.rows == 0) return cudaSuccess;
  // A multiple of the 132 SMs; only the device knows how many outputs there are.
  constexpr int kBlocks = 528;
  Redo<<<kBlocks, 128, 0, stream>>>(task);
  return cudaGetLastError();
}

}  // namespace quantgate

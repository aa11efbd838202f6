// Accumulators by the scalar rule, and the outputs that the fused kernels leave to it: those that a
// NaN or an infinity reaches.
#include "kernels/gemm/models/cuda_kernels.h"
#include "kernels/numerics/fused_step.h"

namespace quantgate {
namespace {

constexpr int kThreads = 256;

int BlocksFor(int64_t count) {
  constexpr int64_t kBlocksMax = 1 << 20;
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  return static_cast<int>(blocks < kBlocksMax ? blocks : kBlocksMax);
}

template <class Body>
__device__ void ForEach(int64_t count, const Body& body) {
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) body(i);
}

/// A row of an operand as DotUnder takes it, decoded element by element: slow, and the definition.
struct CudaRow {
  const CudaOperand& operand;
  ScaleUse use;
  int64_t row;
  int fraction_bits;
  int group_scale_fraction_bits;

  __device__ CudaRow(const CudaOperand& of, ScaleUse scale_use, int64_t row_index)
      : operand(of),
        use(scale_use),
        row(row_index),
        fraction_bits(MantissaBitsOf(of.format)),
        group_scale_fraction_bits(scale_use == ScaleUse::kGroups ? E4M3::kMantissaBits : 0) {}

  __device__ __noinline__ FusedElement element(int64_t k) const {
    int scale_exponent = 0;
    if (use == ScaleUse::kExponents) {
      const FusedElement scale = operand.ScaleElementAt(row, k);
      if (scale.kind == FloatClass::kNan) return {0, 0, FloatClass::kNan, false};
      scale_exponent = scale.exponent;
    }
    const uint32_t code = operand.CodeAt(row, k);
    return VisitFormatIn(OperandFormats{}, operand.format, [&]<class Format>() {
      using Storage = typename Format::Storage;
      if constexpr (Format::kMantissaBits == Float32::kMantissaBits) {
        return UnpackElement<Format>(RoundToTf32(code), scale_exponent);
      } else {
        return UnpackElement<Format>(static_cast<Storage>(code), scale_exponent);
      }
    });
  }
  __device__ FusedElement group_scale(int64_t group) const {
    return use == ScaleUse::kGroups ? operand.ScaleElementAt(row, group * operand.k_block)
                                    : FusedElement{1, 0, FloatClass::kFinite, false};
  }
  __device__ float block_scale(int64_t block) const {
    return use == ScaleUse::kSums ? operand.ScaleAt(row, block * operand.k_block) : 1.0f;
  }
};

/// The accumulator of output (m, n).
__device__ __noinline__ float ScalarDot(const FusedRule& rule, const OperandPair& operands,
                                        int64_t m, int64_t n) {
  return DotUnder(rule, CudaRow(operands.a, operands.use, m), CudaRow(operands.b, operands.use, n),
                  operands.a.k);
}

/// The NaN and infinities among the products of one output.
struct SpecialProducts {
  bool nan, positive_infinity, negative_infinity;
};

__device__ SpecialProducts FindSpecialProducts(const SpecialOutputsTask& task, int64_t m,
                                               int64_t n) {
  const auto* const a = reinterpret_cast<const uint4*>(task.a_classes) + m * task.words;
  const auto* const b = reinterpret_cast<const uint4*>(task.b_classes) + n * task.words;
  uint32_t nan = 0, positive = 0, negative = 0;
  for (int64_t i = 0; i < task.words; ++i) {
    // x: NaN, y: infinite, z: zero, w: negative.
    const uint4 of_a = a[i], of_b = b[i];
    nan |= of_a.x | of_b.x | (of_a.y & of_b.z) | (of_a.z & of_b.y);
    // A product that is NaN may count as an infinity here too, since NaN takes precedence.
    const uint32_t infinite = of_a.y | of_b.y;
    positive |= infinite & ~(of_a.w ^ of_b.w);
    negative |= infinite & (of_a.w ^ of_b.w);
  }
  return {nan != 0, positive != 0, negative != 0};
}

/// Replaces `value`, the sum of the finite products. False where only the scalar rule can decide.
__device__ bool SettledBySets(const SpecialOutputsTask& task, int64_t m, int64_t n, float& value) {
  const float finite_sum = value;
  value = std::bit_cast<float>(uint32_t(Float32::kCanonicalNan));
  if (task.a_classes == nullptr) return true;
  const SpecialProducts products = FindSpecialProducts(task, m, n);
  if (products.nan) return true;
  // A block's scale may change the sign of an infinity, or make it NaN.
  if (task.operands.use == ScaleUse::kSums) return false;
  if (products.positive_infinity && products.negative_infinity) return true;
  value = std::bit_cast<float>(products.positive_infinity ? 0x7F800000 : 0xFF800000);
  // Only finite products that overflow to the other infinity first can change the result, and then
  // the finite sum has that infinity too.
  return finite_sum == finite_sum && finite_sum != -value;
}

/// Without special rows, computes every output by the scalar rule. One kernel serves both uses,
/// since each copy of DotUnder takes long to compile.
__global__ void Settle(const SpecialOutputsTask task) {
  const bool settles = task.a_special_rows != nullptr;
  if (settles && task.a_special_rows[0] == 0 && task.b_special_rows[0] == 0) return;
  const int64_t n_count = task.operands.b.rows;
  ForEach(task.operands.a.rows * n_count, [&](int64_t i) {
    const int64_t m = i / n_count, n = i % n_count;
    float value = settles ? task.accumulators[i] : 0.0f;
    bool by_rule = !settles;
    if (settles && (task.a_special_rows[1 + m] | task.b_special_rows[1 + n]) != 0) {
      by_rule = !SettledBySets(task, m, n, value);
    }
    if (by_rule) value = ScalarDot(task.rule, task.operands, m, n);
    task.accumulators[i] = value;
  });
}

__global__ void AddSlice(const float* slice, int64_t count, float* total) {
  ForEach(count, [&](int64_t i) { total[i] = total[i] + slice[i]; });
}

}  // namespace

cudaError_t LaunchScalar(const ScalarTask& task, cudaStream_t stream) {
  SpecialOutputsTask all{};
  all.rule = task.rule;
  all.operands = task.operands;
  all.accumulators = task.accumulators;
  return LaunchSpecialOutputs(all, stream);
}

cudaError_t LaunchSpecialOutputs(const SpecialOutputsTask& task, cudaStream_t stream) {
  const int64_t count = task.operands.a.rows * task.operands.b.rows;
  Settle<<<BlocksFor(count), kThreads, 0, stream>>>(task);
  return cudaGetLastError();
}

cudaError_t LaunchAddSlice(const float* slice, int64_t count, float* total, cudaStream_t stream) {
  AddSlice<<<BlocksFor(count), kThreads, 0, stream>>>(slice, count, total);
  return cudaGetLastError();
}

}  // namespace quantgate

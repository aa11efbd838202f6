// GEMM: d = epilogue(A * B^T) under a named arithmetic, on the CPU.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/arithmetic.h"
#include "kernels/tensor/quantized_tensor.h"

namespace quantgate {

/// How the operands are stored. In every layout d[m][n] is the sum over k of a(m, k) * b(n, k).
enum class GemmLayout {
  kTN,  ///< a is [m][k], b is [n][k]: the layout of Hopper's FP8 tensor cores.
  kNN,  ///< a is [m][k], b is [k][n].
  kNT,  ///< a is [k][m], b is [k][n].
};

/// "none", "tensor", "outer", "1x128", "128x128", "mx32", "nv16", "group".
std::string_view ScaleModeName(ScaleMode mode);
absl::StatusOr<ScaleMode> ParseScaleMode(std::string_view name);

/// One operand: its data and the scales that belong to it.
struct GemmOperand {
  /// 2-D; f32, bf16, f16, i8, u8 (sums of integers), f8_e4m3, f8_e5m2, f6_e2m3, f6_e3m2, or
  /// f4_e2m1x2 (two codes a byte along its last dim, which must be k).
  Tensor data;
  ScaleMode scaling = ScaleMode::kNone;
  Tensor scale_inv;  ///< Present unless scaling is kNone.
  /// Integers: in the shape of scale_inv, what stands for zero; absent: 0.
  Tensor zero_point;
  Tensor amax;  ///< kNv16 only: f32 [1], or [rows] where row-scaled; absent: no global scale.
  int e4m3_max = 448;  ///< kNv16: the quantizer's largest block scale, 256 under 4over6.
};
/// One direction (copy) of a quantized tensor as an operand.
GemmOperand OperandOf(const QuantizedCopy& copy);

/// The description of a GEMM. `a` is the M side and `b` the N side; cuBLASLt, which is
/// column-major, calls our b its A.
struct GemmDesc {
  GemmOperand a;
  GemmOperand b;
  GemmLayout layout = GemmLayout::kTN;
  Arithmetic arithmetic;
  /// What Accumulation::kRecipe means here: cuBLASLt's FAST_ACCUM off. FP8 operands only.
  bool use_split_accumulator = false;
  float alpha = 1.0f;
  float beta = 0.0f;
  Tensor c;  ///< [m][n] of out_dtype, or of bf16 for an FP8 output; present when beta != 0.
  /// Whether c is the memory of d: cuBLASLt then rounds before it adds c (docs/tensor-cores.md
  /// section 3.3).
  bool in_place = false;
  Tensor bias;                    ///< [n]; absent: none. bf16, f16 or f32.
  Tensor d_scale;                 ///< f32 [1]; FP8 output only.
  DType out_dtype = DType::kF32;  ///< f32, bf16, f16, f8_e4m3, f8_e5m2.
  /// For `exact` with a bf16 or f16 output: also rounds the sums, which take nearly all of the
  /// time, to f32 (GemmResult::f32).
  bool also_f32 = false;
  /// Where the result goes, [m][n] of out_dtype: memory of the engine that computes, which nobody
  /// else reads or writes meanwhile, such as rows of a larger tensor. Absent: new memory.
  Tensor d;
};
/// The tensors that a GEMM reads: all but d.
inline std::vector<Tensor*> TensorsOf(GemmDesc& desc) {
  return {&desc.a.data, &desc.a.scale_inv, &desc.a.zero_point, &desc.a.amax,
          &desc.b.data, &desc.b.scale_inv, &desc.b.zero_point, &desc.b.amax,
          &desc.c,      &desc.bias,        &desc.d_scale};
}

/// A copy of `desc` with copy(tensor) (absl::StatusOr<Tensor>) in place of each tensor that it has:
/// how a GEMM is brought to a device or back.
template <typename Copy>
absl::StatusOr<GemmDesc> WithTensors(const GemmDesc& desc, Copy copy) {
  GemmDesc out = desc;
  for (Tensor* tensor : TensorsOf(out)) {
    if (!tensor->has_value()) continue;
    QG_ASSIGN_OR_RETURN(*tensor, copy(static_cast<const Tensor&>(*tensor)));
  }
  return out;
}

struct GemmResult {
  Tensor d;     ///< [m][n] of out_dtype.
  Tensor f32;   ///< f32 [m][n], with also_f32: the values of d, rounded once to f32 instead.
  Tensor amax;  ///< f32 [1], FP8 outputs only: max |value| in fp32 before d_scale, NaN if any is.
  /// The arithmetic that ran, fully resolved; only FP8 operands have an accumulation mode.
  Arithmetic arithmetic;
  /// For exact: the bits needed and available, and how many outputs (of f32 where there is one)
  /// took the wide path.
  std::string note;
};

struct GemmShape {
  int64_t m, n, k;
};

/// Checks a GEMM and gives its shape. INVALID_ARGUMENT names the field, the value and the rule; the
/// rules are: 2-D operands with equal k >= 1, and n >= 1 (m = 0 is valid); both operands codes with
/// scales that go together, or both of one high-precision type; c, bias and scales of the shapes
/// above; an arithmetic that takes all of them. UNIMPLEMENTED where a tensor-core arithmetic has no
/// rule for the operands (RuleFor), or as CheckScaling.
absl::StatusOr<GemmShape> CheckGemm(const GemmDesc& desc);

/// desc.d, or, where it is absent, allocate(dtype, shape) (absl::StatusOr<Tensor>).
template <typename Allocate>
absl::StatusOr<Tensor> OutputOf(const GemmDesc& desc, const GemmShape& shape, Allocate allocate) {
  if (desc.d.has_value()) return desc.d;
  return allocate(desc.out_dtype, Shape{shape.m, shape.n});
}

/// desc.arithmetic with what the operands decide filled in: the family of auto (sm100 for mx32,
/// nv16, FP6 and FP4 operands, int32 for integers, sm90 for others) and, for FP8 under sm90, the
/// accumulation.
Arithmetic ResolvedFor(const GemmDesc& desc);

/// Computes a GEMM on the CPU, with the same bits for every instruction set and number of threads.
/// CANCELLED or DEADLINE_EXCEEDED by the context.
absl::StatusOr<GemmResult> GemmCpu(const GemmDesc& desc, const ExecutionContext& context);

/// "m=256 n=2048 k=512 f8_e4m3[tensor] x f8_e4m3[tensor] -> bf16, sm90 fast, bias": one line
/// reproduces a bug.
std::string GemmText(const GemmDesc& desc);

}  // namespace quantgate

// AbsoluteGemm: the magnitude that error bounds multiply, computed by the fp64 tiles of the exact
// GEMM.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/gemm/bound/bound_check.h"
#include "kernels/gemm/exact/exact.h"
#include "kernels/gemm/exact/exact_operand.h"
#include "kernels/gemm/exact/exact_tile.h"
#include "kernels/gemm/scaling_check.h"
#include "kernels/numerics/float_format.h"

namespace quantgate {
namespace {

template <class F>
double SmallestNormal() {
  return std::ldexp(1.0, FormatConstants<F>::kExponentMin);
}

double FloorOf(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return SmallestNormal<Float16>();
    case DType::kF8E4M3:
      return SmallestNormal<E4M3>();
    case DType::kF8E5M2:
      return SmallestNormal<E5M2>();
    case DType::kF6E2M3:
      return SmallestNormal<E2M3>();
    case DType::kF6E3M2:
      return SmallestNormal<E3M2>();
    case DType::kF4E2M1x2:
      return SmallestNormal<E2M1>();
    default:
      return SmallestNormal<Float32>();  // The same as that of bf16.
  }
}

ExactSource WithFloors(const ExactOperand& operand, const AbsoluteFloors& floors) {
  ExactSource source = operand.source;
  source.absolute = true;
  source.floor = floors.element;
  source.scale_floor = floors.scale;
  source.product_floor = floors.product;
  return source;
}

}  // namespace

AbsoluteFloors AbsoluteFloorsOf(const GemmOperand& operand, const Arithmetic& arithmetic) {
  AbsoluteFloors floors;
  floors.element = FloorOf(operand.data.dtype());
  const bool has_block_scales = IsFp8Block(operand.scaling) ||
                                operand.scaling == ScaleMode::kMx32 ||
                                operand.scaling == ScaleMode::kNv16;
  if (!has_block_scales) return floors;
  // Subnormal scales keep their format's smallest exponent in a fused step too.
  if (operand.scaling == ScaleMode::kNv16) floors.scale = SmallestNormal<E4M3>();
  // The arithmetic fp32 rounds each scaled element to fp32, subnormals included.
  if (arithmetic.family == ArithmeticFamily::kFp32) floors.product = SmallestNormal<Float32>();
  return floors;
}

AbsoluteScaling AbsoluteScalingOf(const GemmDesc& desc, const GemmShape& shape) {
  AbsoluteScaling scaling;
  scaling.alpha = desc.alpha;
  // The roundings that one term goes through: up to four in each magnitude, one in the product, the
  // additions, four by the scales and one here. All errors are relative, since no term is negative.
  scaling.inflation = 1 + static_cast<double>(ExactRoundingDepth(shape.k) + 16) * 0x1p-52;
  scaling.divisor = static_cast<double>(GlobalDivisor(desc));
  return scaling;
}

absl::StatusOr<Tensor> AbsoluteGemm(const GemmDesc& given, const ExecutionContext& context) {
  GemmDesc desc = given;
  desc.arithmetic = Arithmetic{ArithmeticFamily::kExact};
  QG_ASSIGN_OR_RETURN(const GemmShape shape, CheckGemm(desc));
  const ExactKernels& kernels = ExactKernelsFor(context.isa);
  QG_ASSIGN_OR_RETURN(OperandView a_view, ViewOfA(desc, shape));
  QG_ASSIGN_OR_RETURN(OperandView b_view, ViewOfB(desc, shape));
  const ExactOperand a_operand(std::move(a_view));
  const ExactOperand b_operand(std::move(b_view));
  const ExactSource a = WithFloors(a_operand, AbsoluteFloorsOf(desc.a, given.arithmetic));
  const ExactSource b = WithFloors(b_operand, AbsoluteFloorsOf(desc.b, given.arithmetic));
  const std::vector<float> a_scales = ScalesOf(desc.a, shape.m);
  const std::vector<float> b_scales = ScalesOf(desc.b, shape.n);
  const AbsoluteScaling scaling = AbsoluteScalingOf(desc, shape);
  QG_ASSIGN_OR_RETURN(Tensor result, Tensor::Allocate(DType::kF64, {shape.m, shape.n}));
  const std::vector<ExactTile> tiles = CutIntoTiles(shape.m, shape.n, 4 * context.threads, kernels);
  ExactTileMemoryPool pool;
  ParallelFor(context, static_cast<int64_t>(tiles.size()), 1, [&](int64_t begin, int64_t end) {
    std::unique_ptr<ExactTileMemory> memory = pool.Take();
    for (int64_t i = begin; i < end; ++i) {
      const ExactTile& tile = tiles[i];
      const ExactSums sums = MultiplyTile(a, b, tile, kernels, *memory);
      for (int64_t row = tile.m_begin; row < tile.m_end; ++row) {
        const double* s = sums.sums + (row - tile.m_begin) * sums.stride - tile.n_begin;
        const double factor = scaling.RowFactor(a_scales[row]);
        double* out = result.as<double>() + row * shape.n;
        for (int64_t n = tile.n_begin; n < tile.n_end; ++n) {
          out[n] = scaling.Apply(s[n], factor, b_scales[n]);
        }
      }
    }
    pool.Return(std::move(memory));
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return result;
}

}  // namespace quantgate

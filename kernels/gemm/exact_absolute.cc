// AbsoluteGemm: the magnitude that error bounds multiply, by the fp64 tiles of the exact GEMM.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/gemm/exact.h"
#include "kernels/gemm/exact_operand.h"
#include "kernels/gemm/exact_tile.h"
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
    default:
      return SmallestNormal<Float32>();  // And of bf16.
  }
}

}  // namespace

absl::StatusOr<Tensor> AbsoluteGemm(const GemmDesc& given, const ExecutionContext& context) {
  GemmDesc desc = given;
  desc.arithmetic = Arithmetic{ArithmeticFamily::kExact};
  QG_ASSIGN_OR_RETURN(const GemmShape shape, CheckGemm(desc));
  const ExactKernels& kernels = ExactKernelsFor(context.isa);
  ExactSource a = ExactSourceA(desc);
  ExactSource b = ExactSourceB(desc);
  a.absolute = b.absolute = true;
  a.floor = FloorOf(desc.a.data.dtype());
  b.floor = FloorOf(desc.b.data.dtype());
  const std::vector<float> a_scales = ScalesOf(desc.a, shape.m);
  const std::vector<float> b_scales = ScalesOf(desc.b, shape.n);
  // Roundings of one term on its way: one in each magnitude, one in the product, the additions,
  // three by the scales and one here; all errors are relative, since every term is positive.
  const double inflation = 1 + static_cast<double>(ExactRoundingDepth(shape.k) + 8) * 0x1p-52;
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
        const double factor =
            std::fabs(static_cast<double>(desc.alpha) * a_scales[row]) * inflation;
        double* out = result.as<double>() + row * shape.n;
        for (int64_t n = tile.n_begin; n < tile.n_end; ++n) {
          out[n] = s[n] * (factor * std::fabs(b_scales[n]));
        }
      }
    }
    pool.Return(std::move(memory));
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return result;
}

}  // namespace quantgate

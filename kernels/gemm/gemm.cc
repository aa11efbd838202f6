#include "kernels/gemm/gemm.h"

#include <atomic>
#include <bit>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/gemm/epilogue.h"
#include "kernels/gemm/exact/exact.h"
#include "kernels/gemm/models/accumulate.h"
#include "kernels/gemm/models/rules.h"
#include "kernels/gemm/operand_view.h"

namespace quantgate {
namespace {

void RaiseTo(std::atomic<uint32_t>& maximum, uint32_t value) {
  uint32_t seen = maximum.load(std::memory_order_relaxed);
  while (seen < value && !maximum.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace

absl::StatusOr<GemmResult> GemmCpu(const GemmDesc& desc, const ExecutionContext& context) {
  QG_ASSIGN_OR_RETURN(const GemmShape shape, CheckGemm(desc));
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  const Arithmetic arithmetic = ResolvedFor(desc);
  if (arithmetic.family == ArithmeticFamily::kExact) return ExactGemm(desc, context);

  const ScopedIeeeEnvironment ieee;
  GemmResult result;
  result.arithmetic = arithmetic;
  QG_ASSIGN_OR_RETURN(result.d, OutputOf(desc, shape, Tensor::Allocate));
  const Epilogue epilogue(desc, shape, result.d);
  std::atomic<uint32_t> amax_bits{0};
  const auto sink = [&](const AccumulatorTile& tile) {
    uint32_t tile_amax = 0;
    for (int64_t r = 0; r < tile.rows; ++r) {
      const uint32_t amax =
          epilogue.Apply(tile.row + r, tile.column, tile.columns, tile.values + r * tile.stride);
      tile_amax = amax > tile_amax ? amax : tile_amax;
    }
    RaiseTo(amax_bits, tile_amax);
  };

  QG_ASSIGN_OR_RETURN(const OperandView a, ViewOfA(desc, shape));
  QG_ASSIGN_OR_RETURN(const OperandView b, ViewOfB(desc, shape));
  if (arithmetic.family == ArithmeticFamily::kFp32) {
    QG_RETURN_IF_ERROR(AccumulateFp32(a, b, context, sink));
  } else {
    QG_ASSIGN_OR_RETURN(const FusedRule rule, RuleFor(desc));
    QG_RETURN_IF_ERROR(AccumulateFused(a, b, rule, context, sink));
  }
  if (IsFp8(desc.out_dtype)) {
    QG_ASSIGN_OR_RETURN(result.amax, Tensor::FromScalar(std::bit_cast<float>(amax_bits.load())));
  }
  return result;
}

}  // namespace quantgate

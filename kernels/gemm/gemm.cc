#include "kernels/gemm/gemm.h"

#include <atomic>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/raise_to.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/epilogue.h"
#include "kernels/gemm/exact/exact.h"
#include "kernels/gemm/integer_gemm.h"
#include "kernels/gemm/models/accumulate.h"
#include "kernels/gemm/models/rules.h"
#include "kernels/gemm/operand_view.h"

namespace quantgate {
namespace {

constexpr ScaleMode kScaleModes[] = {ScaleMode::kNone,    ScaleMode::kTensor,  ScaleMode::kOuter,
                                     ScaleMode::k1x128,   ScaleMode::k128x128, ScaleMode::kMx32,
                                     ScaleMode::kNv16,    ScaleMode::k1x32,    ScaleMode::k32x32,
                                     ScaleMode::k1x64,    ScaleMode::k64x64,   ScaleMode::k1x256,
                                     ScaleMode::k256x256, ScaleMode::kGroup};

}  // namespace

absl::StatusOr<GemmResult> GemmCpu(const GemmDesc& desc, const ExecutionContext& context) {
  QG_ASSIGN_OR_RETURN(const GemmShape shape, CheckGemm(desc));
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  const Arithmetic arithmetic = ResolvedFor(desc);
  if (HasIntegers(desc)) return IntegerGemm(desc, shape, context);
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

std::string_view ScaleModeName(ScaleMode mode) {
  switch (mode) {
    case ScaleMode::kNone:
      return "none";
    case ScaleMode::kTensor:
      return "tensor";
    case ScaleMode::kOuter:
      return "outer";
    case ScaleMode::k1x128:
      return "1x128";
    case ScaleMode::k128x128:
      return "128x128";
    case ScaleMode::kMx32:
      return "mx32";
    case ScaleMode::kNv16:
      return "nv16";
    case ScaleMode::kGroup:
      return "group";
    case ScaleMode::k1x32:
      return "1x32";
    case ScaleMode::k32x32:
      return "32x32";
    case ScaleMode::k1x64:
      return "1x64";
    case ScaleMode::k64x64:
      return "64x64";
    case ScaleMode::k1x256:
      return "1x256";
    case ScaleMode::k256x256:
      return "256x256";
  }
  return "unknown";
}

absl::StatusOr<ScaleMode> ParseScaleMode(std::string_view name) {
  std::string known;
  for (const ScaleMode mode : kScaleModes) {
    if (ScaleModeName(mode) == name) return mode;
    absl::StrAppend(&known, known.empty() ? "" : ", ", std::string(ScaleModeName(mode)));
  }
  return Refuse("scaling", absl::StrCat("\"", std::string(name), "\""),
                "unknown name; known: " + known);
}

GemmOperand OperandOf(const QuantizedCopy& copy) {
  GemmOperand operand;
  operand.data = copy.data;
  const ScalingTraits& traits = TraitsOf(copy.format);
  operand.scaling = traits.scale_modes[copy.block_dim - 1];
  operand.scale_inv = copy.scale_inv;
  operand.zero_point = copy.zero_point;
  if (traits.has_levels()) {
    operand.scaling = copy.group == kTensorGroup ? ScaleMode::kTensor
                      : copy.group == kLineGroup ? ScaleMode::kOuter
                                                 : ScaleMode::kGroup;
  }
  if (traits.scales == ScaleKind::kTwoLevel) {
    operand.amax = copy.amax;
    operand.e4m3_max = copy.e4m3_max;
  }
  return operand;
}

}  // namespace quantgate

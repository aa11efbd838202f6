#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {
namespace {

constexpr ScaleMode kScaleModes[] = {ScaleMode::kNone,  ScaleMode::kTensor,  ScaleMode::kOuter,
                                     ScaleMode::k1x128, ScaleMode::k128x128, ScaleMode::kMx32,
                                     ScaleMode::kNv16};

}  // namespace

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
  if (traits.scales == ScaleKind::kTwoLevel) {
    operand.amax = copy.amax;
    operand.e4m3_max = copy.e4m3_max;
  }
  return operand;
}

}  // namespace quantgate

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/parse_name.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/numerics/rotary_angles.h"
#include "kernels/ops/attention/attention.h"
#include "kernels/ops/operand_checks.h"
#include "kernels/tensor/convert.h"

namespace quantgate {
namespace {

constexpr std::string_view kAttentionMaskNames[] = {"none", "causal"};

absl::Status CheckScoreScale(float scale) {
  if (std::isfinite(scale)) return absl::OkStatus();
  return Refuse("scale", absl::StrCat(scale), "must be finite");
}

/// [..., S_q][S_k].
absl::Status CheckScoreShape(const Tensor& tensor, AttentionMask mask, std::string_view field) {
  if (tensor.rank() < 2 || tensor.columns() < 1) {
    return Refuse(field, TensorText(tensor),
                  "must have a dim of queries and, last, one of keys, at least 1");
  }
  const int64_t queries = tensor.shape()[tensor.rank() - 2];
  if (mask == AttentionMask::kNone || queries <= tensor.columns()) return absl::OkStatus();
  return Refuse(field, TensorText(tensor),
                "under a causal mask it must have at least as many keys as queries");
}

absl::Status CheckTable(const Tensor& tensor, const Tensor& heads, std::string_view field) {
  QG_RETURN_IF_ERROR(CheckDType(tensor, heads.dtype(), field));
  return CheckShape(tensor, {heads.shape()[1], heads.shape()[2] / 2}, field,
                    "a row of each position, half as long as a head");
}

}  // namespace

std::string_view AttentionMaskName(AttentionMask mask) {
  return kAttentionMaskNames[static_cast<size_t>(mask)];
}

absl::StatusOr<AttentionMask> ParseAttentionMask(std::string_view name) {
  return ParseName<AttentionMask>(kAttentionMaskNames, "attention mask", name);
}

absl::Status CheckSwapDims(const Tensor& source) {
  if (!source.has_value()) return RefuseAbsent("source", "it must be given");
  if (source.rank() >= 2) return absl::OkStatus();
  return Refuse("source", TensorText(source), "must have at least two dims");
}

absl::Status CheckRotary(const RotaryDesc& desc) {
  QG_RETURN_IF_ERROR(CheckHighPrecision(desc.heads, "heads"));
  if (desc.heads.rank() != 3 || desc.heads.columns() < 2 || desc.heads.columns() % 2 != 0) {
    return Refuse("heads", TensorText(desc.heads),
                  "must be of rank 3, and its last dim even and at least 2");
  }
  QG_RETURN_IF_ERROR(CheckTable(desc.table.cosines, desc.heads, "table.cosines"));
  QG_RETURN_IF_ERROR(CheckTable(desc.table.sines, desc.heads, "table.sines"));
  if (desc.period < 1) return Refuse("period", absl::StrCat(desc.period), "must be at least 1");
  if (desc.rotated >= 0 && desc.rotated <= desc.period) return absl::OkStatus();
  return Refuse("rotated", absl::StrCat(desc.rotated),
                absl::StrCat("must be 0 to ", desc.period, ", the period"));
}

absl::Status CheckSoftmax(const SoftmaxDesc& desc) {
  QG_RETURN_IF_ERROR(CheckHighPrecision(desc.scores, "scores"));
  QG_RETURN_IF_ERROR(CheckScoreShape(desc.scores, desc.mask, "scores"));
  return CheckScoreScale(desc.scale);
}

absl::Status CheckSoftmax(const SoftmaxBackwardDesc& desc) {
  QG_RETURN_IF_ERROR(CheckHighPrecision(desc.gradient, "gradient"));
  QG_RETURN_IF_ERROR(CheckScoreShape(desc.gradient, desc.mask, "gradient"));
  QG_RETURN_IF_ERROR(CheckDType(desc.probabilities, DType::kF32, "probabilities"));
  QG_RETURN_IF_ERROR(CheckShape(desc.probabilities, desc.gradient.shape(), "probabilities",
                                "that of the gradient"));
  return CheckScoreScale(desc.scale);
}

absl::StatusOr<RotaryTable> MakeRotaryTable(float base, int64_t positions, int64_t columns,
                                            DType dtype) {
  if (!(base > 0) || !std::isfinite(base)) {
    return Refuse("base", absl::StrCat(base), "must be finite and above 0");
  }
  if (positions < 0) return Refuse("positions", absl::StrCat(positions), "must be at least 0");
  if (columns < 2 || columns % 2 != 0) {
    return Refuse("columns", absl::StrCat(columns), "must be even and at least 2");
  }
  QG_RETURN_IF_ERROR(CheckHighPrecision(dtype, "dtype"));
  const ScopedIeeeEnvironment environment;
  const int64_t pairs = columns / 2;
  QG_ASSIGN_OR_RETURN(Tensor cosines, Tensor::Allocate(DType::kF32, {positions, pairs}));
  QG_ASSIGN_OR_RETURN(Tensor sines, Tensor::Allocate(DType::kF32, {positions, pairs}));
  for (int64_t i = 0; i < pairs; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(columns);
    const float frequency = 1.0f / PowerOf(base, exponent);
    for (int64_t p = 0; p < positions; ++p) {
      const auto [cosine, sine] = CosineAndSineOf(static_cast<float>(p) * frequency);
      cosines.as<float>()[p * pairs + i] = cosine;
      sines.as<float>()[p * pairs + i] = sine;
    }
  }
  RotaryTable table;
  QG_ASSIGN_OR_RETURN(table.cosines, CastTensor(cosines, dtype, {}));
  QG_ASSIGN_OR_RETURN(table.sines, CastTensor(sines, dtype, {}));
  return table;
}

}  // namespace quantgate

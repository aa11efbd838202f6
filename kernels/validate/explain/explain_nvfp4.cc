#include "kernels/validate/explain/explain_nvfp4.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/numerics/hadamard.h"

namespace quantgate {
namespace {

constexpr int64_t kBlockLength = 16;

int64_t RoundedUp(int64_t length) {
  return (length + kBlockLength - 1) / kBlockLength * kBlockLength;
}

}  // namespace

std::string FourOverSixKnobs::Text() const {
  return absl::StrCat("nvfp4_4over6_err_mode=", std::string(FourOverSixName(error)),
                      ", nvfp4_4over6_e4m3_max=", e4m3_max);
}

absl::StatusOr<Tensor> PaddedLines(const std::vector<float>& values, int64_t columns,
                                   const std::vector<int64_t>& rows, bool transposed) {
  const int64_t lines = RoundedUp(static_cast<int64_t>(rows.size())), length = RoundedUp(columns);
  const Shape shape = transposed ? Shape{length, lines} : Shape{lines, length};
  QG_ASSIGN_OR_RETURN(Tensor padded, Tensor::Allocate(DType::kF32, shape));
  float* to = padded.as<float>();
  std::fill_n(to, padded.element_count(), 0.0f);
  for (size_t line = 0; line < rows.size(); ++line) {
    const float* const from = values.data() + rows[line] * columns;
    if (!transposed) {
      std::copy_n(from, columns, to + static_cast<int64_t>(line) * length);
      continue;
    }
    for (int64_t i = 0; i < columns; ++i) to[i * lines + static_cast<int64_t>(line)] = from[i];
  }
  return padded;
}

absl::StatusOr<Tensor> FourOverSixScaleCodes(const Tensor& padded, const FourOverSixKnobs& knobs,
                                             int block_dim, Usage usage,
                                             std::optional<float> global_amax,
                                             const ExecutionContext& context) {
  QuantizerSpec spec;
  spec.format = QuantizerFormat::kNvfp4;
  spec.element = DType::kF4E2M1x2;
  spec.block_dim = block_dim;
  spec.four_over_six = knobs.error;
  spec.e4m3_max = knobs.e4m3_max;
  spec.row_scaled = !global_amax.has_value();
  QuantizeArguments arguments;
  if (global_amax.has_value()) {
    QG_ASSIGN_OR_RETURN(arguments.group_amax_rowwise, Tensor::FromScalar(*global_amax));
    arguments.group_amax_columnwise = arguments.group_amax_rowwise;
  }
  const Usages usages = {usage == Usage::kRowwise, usage == Usage::kColumnwise};
  QG_ASSIGN_OR_RETURN(const QuantizedTensor quantized,
                      QuantizeCpu(padded, spec, usages, arguments, context));
  return quantized.copy(usage)->scale_inv;
}

std::vector<float> HadamardTransformed(const std::vector<float>& values,
                                       const ExecutionContext& context) {
  std::vector<float> transformed(values.size());
  const auto group_count = static_cast<int64_t>(values.size()) / kHadamardLength;
  constexpr int64_t kGroupsAtOnce = 256;
  ParallelFor(context, group_count, kGroupsAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      uint16_t g[kHadamardLength], y[kHadamardLength];
      const int64_t first = group * kHadamardLength;
      for (int i = 0; i < kHadamardLength; ++i) {
        g[i] = static_cast<uint16_t>(EncodeFloat<BFloat16>(values[first + i]));
      }
      HadamardTransform(g, y);
      for (int i = 0; i < kHadamardLength; ++i) {
        transformed[first + i] = DecodeFloat<BFloat16>(y[i]);
      }
    }
  });
  return transformed;
}

bool MayBeTransformed(uint8_t sign_bit, const StoredCodes& stored,
                      const ExecutionContext& context) {
  std::vector<float> groups;
  for (const int64_t at : stored.sample) {
    const auto first = stored.elements->values.begin() + at / 16 * 16;
    groups.insert(groups.end(), first, first + 16);
  }
  const std::vector<float> transformed = HadamardTransformed(groups, context);
  int64_t compared = 0, others = 0;
  for (size_t i = 0; i < stored.sample.size(); ++i) {
    const int64_t at = stored.sample[i];
    const uint8_t code = stored.elements->codes[at];
    const float value = transformed[16 * i + at % 16];
    if ((code & (sign_bit - 1)) == 0 || std::isnan(value)) continue;
    ++compared;
    others += ((code & sign_bit) != 0) != std::signbit(value);
  }
  return others * 4 <= compared;
}

}  // namespace quantgate

#include "kernels/validate/diagnosis/gemm_sample.h"

#include <cmath>
#include <utility>

#include "kernels/numerics/cast.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

/// E4M3 as AMD's fnuz: bias 8, no infinities, 0x80 alone is NaN.
float DecodeE4M3Fnuz(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if (code == 0x80) return 0;
  const float magnitude = exponent == 0 ? std::ldexp(float(mantissa), -10)
                                        : std::ldexp(float(8 + mantissa), exponent - 11);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

}  // namespace

absl::StatusOr<SampledOperand> SampledOperand::Create(const GemmOperand& operand,
                                                      OperandView view) {
  if (operand.scaling == ScaleMode::kNv16 && operand.amax.has_value() &&
      operand.amax.element_count() > 1) {
    return absl::UnimplementedError("operands with a scale for each row under block scales");
  }
  SampledOperand sampled(operand, std::move(view));
  VisitFormat<AllFormats>(sampled.dtype(), [&]<class F>() {
    if constexpr (sizeof(typename F::Storage) == 1) {
      for (int code = 0; code < 256; ++code) {
        const int mask = (1 << FormatConstants<F>::kBits) - 1;
        sampled.decoded_.push_back(DecodeFloat<F>(typename F::Storage(code & mask)));
      }
    }
  });
  return sampled;
}

double SampledOperand::Code(int64_t row, int64_t k) const {
  if (!decoded_.empty()) return decoded_[*view_.at<uint8_t>(row, k)];
  double value = 0;
  VisitFormat<AllFormats>(view_.dtype, [&]<class F>() {
    value = DecodeFloat<F>(*view_.at<typename F::Storage>(row, k));
  });
  return value;
}

double SampledOperand::CodeIn(const std::string& format, int64_t row, int64_t k) const {
  const uint8_t code = *view_.at<uint8_t>(row, k);
  const float value = format == "e5m2"   ? DecodeFloat<E5M2>(code)
                      : format == "e4m3" ? DecodeFloat<E4M3>(code)
                                         : DecodeE4M3Fnuz(code);
  return std::isfinite(value) ? value : 0;
}

double SampledOperand::Scale(int64_t row, int64_t k) const {
  if (view_.scales.has_value()) return view_.scales.At(row, k);
  if (!has_scales()) return 1;
  return operand_->scale_inv.as<float>()[operand_->scaling == ScaleMode::kOuter ? row : 0];
}

double SampledOperand::ScaleOfKMajor(int64_t row, int64_t k) const {
  const BlockScaleView& scales = view_.scales;
  const int64_t lines = (view_.rows + scales.row_block - 1) / scales.row_block;
  const int64_t blocks = (view_.k + scales.k_block - 1) / scales.k_block;
  const int64_t index = row / scales.row_block * blocks + k / scales.k_block;
  return scales.At(index % lines * scales.row_block, index / lines * scales.k_block);
}

double SampledOperand::ScaleIfKMajor(int64_t row, int64_t k) const {
  const BlockScaleView& scales = view_.scales;
  const int64_t lines = (view_.rows + scales.row_block - 1) / scales.row_block;
  const int64_t blocks = (view_.k + scales.k_block - 1) / scales.k_block;
  const int64_t index = k / scales.k_block * lines + row / scales.row_block;
  return scales.At(index / blocks * scales.row_block, index % blocks * scales.k_block);
}

std::vector<float> GemmSample::Sums(const ElementRule& a, const ElementRule& b, int64_t begin,
                                    int64_t end) const {
  const auto length = static_cast<size_t>(end - begin);
  const auto decoded = [&](const std::vector<int64_t>& lines, const ElementRule& rule) {
    std::vector<double> values(lines.size() * length);
    for (size_t i = 0; i < lines.size(); ++i) {
      for (size_t j = 0; j < length; ++j) {
        values[i * length + j] = rule(lines[i], begin + static_cast<int64_t>(j));
      }
    }
    return values;
  };
  const std::vector<double> left = decoded(rows, a), right = decoded(columns, b);
  std::vector<float> sums(rows.size() * columns.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t j = 0; j < columns.size(); ++j) {
      double sum = 0;
      for (size_t at = 0; at < length; ++at) {
        sum += left[i * length + at] * right[j * length + at];
      }
      sums[i * columns.size() + j] = static_cast<float>(sum);
    }
  }
  return sums;
}

}  // namespace quantgate

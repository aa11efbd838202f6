#include "kernels/quantize/quantization_summary.h"

#include <bit>

namespace quantgate {
namespace {

std::optional<float> ScalarOf(const Tensor& tensor) {
  if (!tensor.has_value() || tensor.element_count() != 1) return std::nullopt;
  return *tensor.as<float>();
}

bool SameBits(std::optional<float> a, std::optional<float> b) {
  return a.has_value() == b.has_value() &&
         (!a.has_value() || std::bit_cast<uint32_t>(*a) == std::bit_cast<uint32_t>(*b));
}

std::map<int, int64_t> CountScaleCodes(const QuantizedCopy& copy) {
  std::map<int, int64_t> counts;
  if (BlockLength(copy.format) == 1) return counts;
  const Tensor& scales = copy.scale_inv;
  int64_t dense[256] = {};
  for (int64_t i = 0; i < scales.element_count(); ++i) {
    const bool is_fp32 = scales.dtype() == DType::kF32;
    ++dense[is_fp32 ? scales.as<uint32_t>()[i] >> 23 & 0xFF : scales.as<uint8_t>()[i]];
  }
  for (int code = 0; code < 256; ++code) {
    if (dense[code] != 0) counts[code] = dense[code];
  }
  return counts;
}

}  // namespace

QuantizationSummary SummarizeCpu(const QuantizedTensor& quantized) {
  const QuantizedCopy& first =
      quantized.rowwise.has_value() ? *quantized.rowwise : *quantized.columnwise;
  QuantizationSummary summary;
  summary.amax = ScalarOf(first.amax);
  if (quantized.columnwise.has_value()) {
    const std::optional<float> columnwise = ScalarOf(quantized.columnwise->amax);
    if (!SameBits(columnwise, summary.amax)) summary.amax_columnwise = columnwise;
  }
  summary.scale = ScalarOf(quantized.scale);
  if (TraitsOf(first.format).scales == ScaleKind::kTensor)
    summary.scale_inv = ScalarOf(first.scale_inv);
  summary.counts = quantized.counts;
  summary.scale_codes = CountScaleCodes(first);
  return summary;
}

}  // namespace quantgate

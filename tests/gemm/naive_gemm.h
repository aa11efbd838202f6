// The sm90 GEMM as docs/tensor-cores.md section 3 states it, one output at a time with the scalar
// fused step, for tests: no packing, no blocking, no vectors, and nothing of kernels/gemm but the
// descriptions of operands.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "tests/gemm/models/fused_step.h"

namespace quantgate {

struct NaiveRule {
  bool split = false;  // FAST_ACCUM off; FP8 only.
  int slices = 1;
};

/// The codes of row `row` of an operand in any layout; f32 is rounded to tf32.
template <class Format>
std::vector<typename Format::Storage> NaiveRow(const Tensor& data, bool k_contiguous, int64_t row) {
  const int64_t k_count = data.shape()[k_contiguous ? 1 : 0];
  const int64_t rows = data.shape()[k_contiguous ? 0 : 1];
  std::vector<typename Format::Storage> codes(k_count);
  for (int64_t k = 0; k < k_count; ++k) {
    codes[k] =
        data.as<typename Format::Storage>()[k_contiguous ? row * k_count + k : k * rows + row];
    if constexpr (Format::kMantissaBits == 23) codes[k] = RoundToTf32(codes[k]);
  }
  return codes;
}

template <class FormatA, class FormatB>
float NaiveDot(const std::vector<typename FormatA::Storage>& a,
               const std::vector<typename FormatB::Storage>& b, const NaiveRule& rule) {
  constexpr bool kFp8 = sizeof(typename FormatA::Storage) == 1;
  constexpr int64_t kStep = kFp8 ? 32 : FormatA::kMantissaBits == 23 ? 8 : 16;
  constexpr int64_t kTile = 128 / sizeof(typename FormatA::Storage);
  const int64_t k_count = static_cast<int64_t>(a.size());
  // Slices are k / slices rounded up to whole tiles; a remainder beyond the last slice is lost.
  const int64_t quotient_tiles = (k_count / rule.slices + kTile - 1) / kTile;
  const int64_t slice_k = rule.slices == 1 ? k_count : kTile * std::max<int64_t>(1, quotient_tiles);
  float result = 0;
  for (int64_t i = 0; i < rule.slices && i * slice_k < k_count; ++i) {
    const int64_t end = std::min(k_count, (i + 1) * slice_k);
    uint32_t accumulator = 0;
    float promoted = 0;
    for (int64_t k = i * slice_k; k < end; k += kStep) {
      const int length = static_cast<int>(std::min(kStep, end - k));
      if constexpr (kFp8) {
        accumulator = FusedStep<WgmmaFp8, FormatA, FormatB>(&a[k], &b[k], length, accumulator);
        if (rule.split && ((k + kStep) % 128 == 0 || k + kStep >= end)) {
          promoted = promoted + std::bit_cast<float>(accumulator);
          accumulator = 0;
        }
      } else {
        accumulator = FusedStep<Wgmma16Bit, FormatA, FormatB>(&a[k], &b[k], length, accumulator);
      }
    }
    const float slice = rule.split ? promoted : std::bit_cast<float>(accumulator);
    result = i == 0 ? slice : result + slice;
  }
  return result;
}

template <class FormatA, class FormatB>
std::vector<float> NaiveGemmOf(const GemmDesc& desc, const GemmShape& shape,
                               const NaiveRule& rule) {
  std::vector<std::vector<typename FormatB::Storage>> columns;
  for (int64_t n = 0; n < shape.n; ++n) {
    columns.push_back(NaiveRow<FormatB>(desc.b.data, desc.layout == GemmLayout::kTN, n));
  }
  std::vector<float> result;
  for (int64_t m = 0; m < shape.m; ++m) {
    const auto row = NaiveRow<FormatA>(desc.a.data, desc.layout != GemmLayout::kNT, m);
    for (const auto& column : columns)
      result.push_back(NaiveDot<FormatA, FormatB>(row, column, rule));
  }
  return result;
}

/// The fp32 accumulators [m][n], before the epilogue.
inline std::vector<float> NaiveGemm(const GemmDesc& desc, const GemmShape& shape,
                                    const NaiveRule& rule) {
  const DType a = desc.a.data.dtype();
  const DType b = desc.b.data.dtype();
  if (a == DType::kBF16) return NaiveGemmOf<BFloat16, BFloat16>(desc, shape, rule);
  if (a == DType::kF16) return NaiveGemmOf<Float16, Float16>(desc, shape, rule);
  if (a == DType::kF32) return NaiveGemmOf<Float32, Float32>(desc, shape, rule);
  if (a == DType::kF8E4M3 && b == DType::kF8E4M3) return NaiveGemmOf<E4M3, E4M3>(desc, shape, rule);
  if (a == DType::kF8E4M3) return NaiveGemmOf<E4M3, E5M2>(desc, shape, rule);
  if (b == DType::kF8E4M3) return NaiveGemmOf<E5M2, E4M3>(desc, shape, rule);
  return NaiveGemmOf<E5M2, E5M2>(desc, shape, rule);
}

}  // namespace quantgate

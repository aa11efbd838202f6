#include "kernels/gemm/scalar_dot.h"

#include <algorithm>
#include <bit>
#include <type_traits>
#include <vector>

#include "kernels/gemm/visit_format.h"
#include "kernels/numerics/fused_step.h"

namespace quantgate {
namespace {

template <class Format>
std::vector<typename Format::Storage> GatherRow(const OperandView& view, int64_t row) {
  std::vector<typename Format::Storage> codes(view.k);
  for (int64_t k = 0; k < view.k; ++k) {
    codes[k] = *view.at<typename Format::Storage>(row, k);
    if constexpr (std::is_same_v<Format, Float32>) codes[k] = RoundToTf32(codes[k]);
  }
  return codes;
}

template <class FormatA, class FormatB>
uint32_t Accumulate(const typename FormatA::Storage* a, const typename FormatB::Storage* b,
                    int64_t begin, int64_t end, int step) {
  using Step = std::conditional_t<FormatConstants<FormatA>::kBits == 8, WgmmaFp8, Wgmma16Bit>;
  uint32_t accumulator = 0;
  for (int64_t k = begin; k < end; k += step) {
    const int length = static_cast<int>(std::min<int64_t>(step, end - k));
    accumulator = FusedStep<Step, FormatA, FormatB>(a + k, b + k, length, accumulator);
  }
  return accumulator;
}

template <class FormatA, class FormatB>
float Dot(const OperandView& a_view, const OperandView& b_view, const AccumulationRule& rule,
          int64_t m, int64_t n) {
  const auto a = GatherRow<FormatA>(a_view, m);
  const auto b = GatherRow<FormatB>(b_view, n);
  float total = 0;
  for (const KRange& slice : SlicesOf(rule, a_view.k)) {
    float slice_total = 0;
    const int64_t stride = rule.promote_k > 0 ? rule.promote_k : slice.end - slice.begin;
    for (int64_t k = slice.begin; k < slice.end; k += stride) {
      const float part = std::bit_cast<float>(Accumulate<FormatA, FormatB>(
          a.data(), b.data(), k, std::min(slice.end, k + stride), rule.step));
      slice_total = rule.promote_k > 0 ? slice_total + part : part;
    }
    total = slice.begin == 0 ? slice_total : total + slice_total;
  }
  return total;
}

}  // namespace

float ScalarDotSm90(const OperandView& a, const OperandView& b, const AccumulationRule& rule,
                    int64_t m, int64_t n) {
  return VisitFormat(a.dtype, [&]<class FormatA>(FormatA) -> float {
    if constexpr (FormatConstants<FormatA>::kBits == 8) {
      if (b.dtype == DType::kF8E4M3) return Dot<FormatA, E4M3>(a, b, rule, m, n);
      return Dot<FormatA, E5M2>(a, b, rule, m, n);
    } else {
      return Dot<FormatA, FormatA>(a, b, rule, m, n);
    }
  });
}

}  // namespace quantgate

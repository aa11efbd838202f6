#include "server/runs/tensor_statistics.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/numerics/float_format.h"

namespace quantgate {
namespace {

// Elements that are measured between two checks of the cancellation.
constexpr int64_t kElementsPerCheck = 1 << 20;
// floor(log2 |value|) lies in [-149, 127] for all formats here.
constexpr int kExponentMin = -149;
constexpr int kExponentCount = 127 + 149 + 1;

struct Accumulator {
  TensorStatistics result;
  std::array<int64_t, kExponentCount> exponents{};
  double sum = 0;
  double sum_squares = 0;
  int64_t finite_count = 0;

  template <typename Format>
  void Add(typename Format::Storage code) {
    const Unpacked value = Unpack<Format>(code);
    switch (value.kind) {
      case FloatClass::kNan:
        ++result.nan_count;
        return;
      case FloatClass::kInfinite:
        ++result.infinite_count;
        return;
      case FloatClass::kZero:
        ++result.zero_count;
        ++finite_count;
        return;
      case FloatClass::kFinite:
        break;
    }
    ++finite_count;
    // A subnormal has the smallest exponent and a significand below 2^kMantissaBits.
    const int bits = std::bit_width(value.significand);
    if (bits <= Format::kMantissaBits) ++result.subnormal_count;
    const int exponent = value.exponent - Format::kMantissaBits;
    ++exponents[exponent + bits - 1 - kExponentMin];
    const double magnitude = std::ldexp(static_cast<double>(value.significand), exponent);
    result.amax = std::max(result.amax, magnitude);
    sum += value.negative ? -magnitude : magnitude;
    sum_squares += magnitude * magnitude;
  }

  TensorStatistics Finish() {
    if (finite_count > 0) {
      result.mean = sum / static_cast<double>(finite_count);
      result.rms = std::sqrt(sum_squares / static_cast<double>(finite_count));
    }
    for (int i = 0; i < kExponentCount; ++i) {
      if (exponents[i] > 0) result.exponent_histogram[i + kExponentMin] = exponents[i];
    }
    return std::move(result);
  }
};

template <typename Format>
absl::StatusOr<TensorStatistics> Measure(const Tensor& tensor, const Cancellation* cancellation) {
  Accumulator accumulator;
  const auto* codes = tensor.as<typename Format::Storage>();
  for (int64_t i = 0; i < tensor.element_count(); ++i) {
    if (i % kElementsPerCheck == 0 && cancellation != nullptr) {
      QG_RETURN_IF_ERROR(cancellation->Check());
    }
    accumulator.Add<Format>(codes[i]);
  }
  return accumulator.Finish();
}

}  // namespace

absl::StatusOr<TensorStatistics> MeasureStatistics(const Tensor& tensor,
                                                   const Cancellation* cancellation) {
  switch (tensor.dtype()) {
    case DType::kF32:
      return Measure<Float32>(tensor, cancellation);
    case DType::kBF16:
      return Measure<BFloat16>(tensor, cancellation);
    case DType::kF16:
      return Measure<Float16>(tensor, cancellation);
    case DType::kF8E4M3:
      return Measure<E4M3>(tensor, cancellation);
    case DType::kF8E5M2:
      return Measure<E5M2>(tensor, cancellation);
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("dtype is ", std::string(DTypeName(tensor.dtype())),
                       ": statistics are of f32, bf16, f16, f8_e4m3 and f8_e5m2",
                       tensor.dtype() == DType::kU8
                           ? "; if the bytes are codes, say of what type (append @f8_e4m3)"
                           : ""));
  }
}

}  // namespace quantgate

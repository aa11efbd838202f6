#include "kernels/gemm/integer_gemm.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/raise_to.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/epilogue.h"
#include "kernels/numerics/integer_sum.h"

namespace quantgate {
namespace {

constexpr int64_t kGrainRows = 8;

bool IsInteger(DType dtype) { return dtype == DType::kI8 || dtype == DType::kU8; }

struct IntegerSide {
  const char* name;
  const GemmOperand& operand;
  int64_t rows;
  bool k_contiguous;

  std::string Field(const char* part) const { return absl::StrCat(name, ".", part); }
};

absl::Status CheckIntegerSide(const IntegerSide& side) {
  const GemmOperand& operand = side.operand;
  const Shape expected = operand.scaling == ScaleMode::kOuter ? Shape{side.rows} : Shape{1};
  if (operand.amax.has_value()) {
    return Refuse(side.Field("amax"), TensorText(operand.amax), "only nv16 operands have one");
  }
  if (operand.scaling != ScaleMode::kTensor && operand.scaling != ScaleMode::kOuter &&
      operand.scaling != ScaleMode::kNone) {
    return Refuse(
        side.Field("scaling"), ScaleModeName(operand.scaling),
        "sums of integers have scales of a whole operand (tensor) or of its rows (outer)");
  }
  const bool has_scale = operand.scaling != ScaleMode::kNone;
  if (has_scale != operand.scale_inv.has_value()) {
    return Refuse(side.Field("scale_inv"), TensorText(operand.scale_inv),
                  "it is given exactly where scaling is not none");
  }
  if (has_scale &&
      (operand.scale_inv.dtype() != DType::kF32 || operand.scale_inv.shape() != expected)) {
    return Refuse(side.Field("scale_inv"), TensorText(operand.scale_inv),
                  absl::StrCat("must be f32[", expected[0], "]"));
  }
  const Tensor& zero = operand.zero_point;
  if (!zero.has_value()) return absl::OkStatus();
  if (zero.dtype() == operand.data.dtype() && has_scale && zero.shape() == expected) {
    return absl::OkStatus();
  }
  return Refuse(
      side.Field("zero_point"), TensorText(zero),
      absl::StrCat("must be of the codes' dtype, ", std::string(DTypeName(operand.data.dtype())),
                   ", in the shape of scale_inv"));
}

/// The rows of an operand, each of k integers less their zero point.
std::vector<int16_t> CountedFromZero(const IntegerSide& side, int64_t k) {
  std::vector<int16_t> numbers(static_cast<size_t>(side.rows * k));
  const GemmOperand& operand = side.operand;
  const bool is_signed = operand.data.dtype() == DType::kI8;
  const auto at = [&](const Tensor& tensor, int64_t index) {
    return is_signed ? int{tensor.as<int8_t>()[index]} : int{tensor.as<uint8_t>()[index]};
  };
  for (int64_t row = 0; row < side.rows; ++row) {
    const int zero = operand.zero_point.has_value()
                         ? at(operand.zero_point, operand.zero_point.element_count() == 1 ? 0 : row)
                         : 0;
    for (int64_t i = 0; i < k; ++i) {
      const int64_t index = side.k_contiguous ? row * k + i : i * side.rows + row;
      numbers[static_cast<size_t>(row * k + i)] =
          static_cast<int16_t>(at(operand.data, index) - zero);
    }
  }
  return numbers;
}

int64_t Dot(const int16_t* a, const int16_t* b, int64_t k) {
  int64_t sum = 0;
  for (int64_t begin = 0; begin < k; begin += kIntegerTermsOf32Bits) {
    const int64_t end = std::min(begin + kIntegerTermsOf32Bits, k);
    int32_t part = 0;
    for (int64_t i = begin; i < end; ++i) part += int32_t{a[i]} * int32_t{b[i]};
    sum += part;
  }
  return sum;
}

float ScaleOf(const GemmOperand& operand, int64_t row) {
  if (operand.scaling == ScaleMode::kNone) return 1.0f;
  return operand.scale_inv.as<float>()[operand.scaling == ScaleMode::kOuter ? row : 0];
}

IntegerSide SideOfA(const GemmDesc& desc, const GemmShape& shape) {
  return {"a", desc.a, shape.m, desc.layout != GemmLayout::kNT};
}
IntegerSide SideOfB(const GemmDesc& desc, const GemmShape& shape) {
  return {"b", desc.b, shape.n, desc.layout == GemmLayout::kTN};
}

}  // namespace

bool HasIntegers(const GemmDesc& desc) {
  return (desc.a.data.has_value() && IsInteger(desc.a.data.dtype())) ||
         (desc.b.data.has_value() && IsInteger(desc.b.data.dtype()));
}

absl::Status CheckIntegerGemm(const GemmDesc& desc, const GemmShape& shape) {
  const ArithmeticFamily family = desc.arithmetic.family;
  if (family != ArithmeticFamily::kAuto && family != ArithmeticFamily::kInt32) {
    return Refuse("arithmetic", desc.arithmetic.ToString(),
                  "operands of integers are added as integers: int32");
  }
  for (const IntegerSide& side : {SideOfA(desc, shape), SideOfB(desc, shape)}) {
    if (!IsInteger(side.operand.data.dtype())) {
      return Refuse(side.name, DTypeName(side.operand.data.dtype()),
                    "the other operand is of integers of 8 bits: both are, or none");
    }
    QG_RETURN_IF_ERROR(CheckIntegerSide(side));
  }
  return absl::OkStatus();
}

absl::StatusOr<GemmResult> IntegerGemm(const GemmDesc& desc, const GemmShape& shape,
                                       const ExecutionContext& context) {
  const ScopedIeeeEnvironment ieee;
  GemmResult result;
  result.arithmetic = desc.arithmetic;
  result.arithmetic.family = ArithmeticFamily::kInt32;
  QG_ASSIGN_OR_RETURN(result.d, OutputOf(desc, shape, Tensor::Allocate));
  // The scales are applied here, in their own order.
  GemmDesc unscaled = desc;
  unscaled.arithmetic = result.arithmetic;
  unscaled.a.scaling = unscaled.b.scaling = ScaleMode::kNone;
  const Epilogue epilogue(unscaled, shape, result.d);
  const std::vector<int16_t> a = CountedFromZero(SideOfA(desc, shape), shape.k);
  const std::vector<int16_t> b = CountedFromZero(SideOfB(desc, shape), shape.k);
  std::atomic<uint32_t> amax_bits{0};
  ParallelFor(context, shape.m, kGrainRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float row_scale = ScaleOf(desc.a, row);
      for (int64_t column = 0; column < shape.n; column += Epilogue::kColumnsMax) {
        const auto count =
            static_cast<int>(std::min<int64_t>(Epilogue::kColumnsMax, shape.n - column));
        float values[Epilogue::kColumnsMax];
        for (int i = 0; i < count; ++i) {
          const int64_t sum =
              Dot(a.data() + row * shape.k, b.data() + (column + i) * shape.k, shape.k);
          values[i] = ScaledIntegerSum(sum, row_scale, ScaleOf(desc.b, column + i));
        }
        RaiseTo(amax_bits, epilogue.Apply(row, column, count, values));
      }
    }
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  if (IsFp8(desc.out_dtype)) {
    QG_ASSIGN_OR_RETURN(result.amax, Tensor::FromScalar(std::bit_cast<float>(amax_bits.load())));
  }
  return result;
}

}  // namespace quantgate

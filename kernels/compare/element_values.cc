#include "kernels/compare/element_values.h"

#include <array>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/numerics/cast.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

template <class F>
const std::array<double, 256>& ValuesOfCodes() {
  static const std::array<double, 256> values = [] {
    std::array<double, 256> table{};
    for (int code = 0; code < 256; ++code) table[code] = DecodeFloat<F>(static_cast<uint8_t>(code));
    return table;
  }();
  return values;
}

/// A code of an 8-bit power-of-two scale: 2^(code - 127), as fp64 bits, and 0xFF as NaN.
double ScaleValue(uint8_t code) {
  if (code == 0xFF) return std::numeric_limits<double>::quiet_NaN();
  return std::bit_cast<double>(static_cast<uint64_t>(code + 1023 - 127) << 52);
}

template <typename Storage, class Function>
void Fill(const void* data, int64_t begin, int64_t count, double* values, Function decode) {
  const Storage* codes = static_cast<const Storage*>(data) + begin;
  for (int64_t i = 0; i < count; ++i) values[i] = decode(codes[i]);
}

void Decode(DType dtype, const void* data, int64_t begin, int64_t count, double* values) {
  const auto widen = [](auto x) { return static_cast<double>(x); };
  switch (dtype) {
    case DType::kF64:
      return Fill<double>(data, begin, count, values, widen);
    case DType::kF32:
      return Fill<float>(data, begin, count, values, widen);
    case DType::kBF16:
      return Fill<uint16_t>(data, begin, count, values, [](uint16_t code) {
        return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(code) << 16));
      });
    case DType::kF16:
      return Fill<uint16_t>(data, begin, count, values, [](uint16_t code) {
        return static_cast<double>(DecodeFloat<Float16>(code));
      });
    case DType::kF8E8M0:
      return Fill<uint8_t>(data, begin, count, values, ScaleValue);
    case DType::kI8:
      return Fill<int8_t>(data, begin, count, values, widen);
    case DType::kI16:
      return Fill<int16_t>(data, begin, count, values, widen);
    case DType::kI32:
      return Fill<int32_t>(data, begin, count, values, widen);
    case DType::kI64:
      return Fill<int64_t>(data, begin, count, values, widen);
    default:
      break;
  }
  const bool has_format = VisitFormat<ElementFormats>(dtype, [&]<class F>() {
    if constexpr (sizeof(typename F::Storage) == 1) {
      Fill<uint8_t>(data, begin, count, values,
                    [&table = ValuesOfCodes<F>()](uint8_t code) { return table[code]; });
    }
  });
  // One byte each: kU8 and two codes.
  if (!has_format) Fill<uint8_t>(data, begin, count, values, widen);
}

/// The value of the code in the low bits; the machine is little-endian.
double ValueOfBits(DType dtype, uint64_t bits) {
  double value = 0;
  Decode(dtype, &bits, 0, 1, &value);
  return value;
}

}  // namespace

void DecodeValues(const Tensor& tensor, int64_t begin, int64_t count, double* values) {
  Decode(tensor.dtype(), tensor.data(), begin, count, values);
}

uint64_t ElementBits(const Tensor& tensor, int64_t index) {
  switch (DTypeBytes(tensor.dtype())) {
    case 8:
      return tensor.as<uint64_t>()[index];
    case 4:
      return tensor.as<uint32_t>()[index];
    case 2:
      return tensor.as<uint16_t>()[index];
    default:
      return tensor.as<uint8_t>()[index];
  }
}

ElementPair PairOfBits(const Shape& shape, DType subject, DType reference, const PairBits& bits) {
  ElementPair pair;
  pair.coordinate.resize(shape.size());
  int64_t rest = bits.index;
  for (size_t dim = shape.size(); dim-- > 0;) {
    pair.coordinate[dim] = rest % shape[dim];
    rest /= shape[dim];
  }
  pair.subject = ValueOfBits(subject, bits.subject);
  pair.reference = ValueOfBits(reference, bits.reference);
  pair.subject_bits = bits.subject;
  pair.reference_bits = bits.reference;
  return pair;
}

ElementPair PairAt(const Tensor& subject, const Tensor& reference, int64_t index) {
  return PairOfBits(subject.shape(), subject.dtype(), reference.dtype(),
                    {.index = index,
                     .subject = ElementBits(subject, index),
                     .reference = ElementBits(reference, index)});
}

absl::Status CheckSameShape(const Tensor& subject, const Tensor& reference) {
  if (!subject.has_value() || !reference.has_value()) {
    return RefuseAbsent(subject.has_value() ? "reference" : "subject", "both sides are needed");
  }
  if (subject.shape() == reference.shape()) return absl::OkStatus();
  return Refuse("subject", TensorText(subject),
                absl::StrCat("its shape must be that of the reference, ", TensorText(reference)));
}

absl::Status CheckSameShapeAndType(const Tensor& subject, const Tensor& reference) {
  QG_RETURN_IF_ERROR(CheckSameShape(subject, reference));
  if (subject.dtype() == reference.dtype()) return absl::OkStatus();
  return Refuse("subject", TensorText(subject),
                absl::StrCat("its dtype must be that of the reference, ", TensorText(reference)));
}

absl::Status CheckFloating(const Tensor& tensor, std::string_view field) {
  if (!tensor.has_value()) return RefuseAbsent(field, "it must be given");
  if (TraitsOf(tensor.dtype()).is_floating) return absl::OkStatus();
  return Refuse(field, TensorText(tensor), "errors need a floating-point type");
}

}  // namespace quantgate

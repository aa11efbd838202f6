// One element of a generated tensor before the cast (docs/numerics.md section 3), for both
// engines: a formula of two random words, the value word and the choice word.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/base/host_device.h"
#include "kernels/numerics/cast.h"
#include "kernels/numerics/inverse_normal.h"
#include "kernels/numerics/philox.h"

namespace quantgate {

/// How an element follows from the two words.
enum class ValueFormula {
  kNormal,
  kUniform,
  kLogNormal,
  kSubnormalHeavy,
  kLaced,
  kZero,
  kSmallNormal,  ///< Normal times 2^-10.
};

/// The streams of Philox: for value words, for choice words (which say what kind of element it is),
/// and for choices that concern the whole tensor.
inline constexpr uint32_t kValueStream = 0, kChoiceStream = 1, kTensorStream = 2;

/// The smallest normal and the largest finite number of the element type.
struct TargetRange {
  float min_normal = 0;
  float max_finite = 0;
};

/// The index and the value of the one huge element of kOneHuge; index -1 when there is none.
struct HugeElement {
  int64_t index = -1;
  float value = 0;
};

/// Everything besides i that element i depends on.
struct GenerationRule {
  ValueFormula formula = ValueFormula::kZero;
  bool needs_choices = false;
  uint64_t seed = 0;
  float scale = 1;
  TargetRange range;
  HugeElement huge;
};

namespace generated_value {

QG_HOST_DEVICE inline float Normal(uint32_t word) {
  return static_cast<float>(InverseNormal(word));
}

/// The 2^24 multiples of 2^-23 in [-1, 1): exact in fp32.
QG_HOST_DEVICE inline float Uniform(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-23f - 1.0f;
}

QG_HOST_DEVICE inline float LogNormal(uint32_t value_word, uint32_t choice_word) {
  float magnitude = static_cast<float>(FixedExp(InverseNormal(value_word)));
  if ((choice_word & 1023) == 0) magnitude *= 64.0f;
  return (choice_word >> 31) != 0 ? -magnitude : magnitude;
}

QG_HOST_DEVICE inline float SubnormalHeavy(uint32_t value_word, uint32_t choice_word,
                                           const TargetRange& range) {
  return (choice_word & 3) != 0 ? Uniform(value_word) * range.min_normal : Normal(value_word);
}

QG_HOST_DEVICE inline float Laced(uint32_t value_word, uint32_t choice_word) {
  switch (choice_word & 63) {
    case 0:
      return std::bit_cast<float>(uint32_t{Float32::kCanonicalNan});
    case 1:
      return std::bit_cast<float>(0x7F800000u);
    case 2:
      return std::bit_cast<float>(0xFF800000u);
    case 3:
      return -0.0f;
    case 4:
      return 0.0f;
    default:
      return Normal(value_word);
  }
}

}  // namespace generated_value

/// The element before it is multiplied by the scale and cast.
QG_HOST_DEVICE inline float GeneratedValue(ValueFormula formula, uint32_t value_word,
                                           uint32_t choice_word, const TargetRange& range) {
  switch (formula) {
    case ValueFormula::kNormal:
      return generated_value::Normal(value_word);
    case ValueFormula::kUniform:
      return generated_value::Uniform(value_word);
    case ValueFormula::kLogNormal:
      return generated_value::LogNormal(value_word, choice_word);
    case ValueFormula::kSubnormalHeavy:
      return generated_value::SubnormalHeavy(value_word, choice_word, range);
    case ValueFormula::kLaced:
      return generated_value::Laced(value_word, choice_word);
    case ValueFormula::kZero:
      return 0.0f;
    case ValueFormula::kSmallNormal:
      return generated_value::Normal(value_word) * 0x1p-10f;
  }
  return 0.0f;
}

/// The code of a value in F: EncodeFloat; for f32 the value itself with a canonical NaN.
template <class F>
QG_HOST_DEVICE inline typename F::Storage StoredCode(float value) {
  if constexpr (std::is_same_v<F, Float32>) {
    return std::bit_cast<uint32_t>(CanonicalFloat(value));
  } else {
    return EncodeFloat<F>(value);
  }
}

}  // namespace quantgate

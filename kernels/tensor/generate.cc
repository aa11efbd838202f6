#include "kernels/tensor/generate.h"

#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/numerics/cast.h"
#include "kernels/numerics/format_list.h"
#include "kernels/numerics/inverse_normal.h"
#include "kernels/numerics/philox.h"

namespace quantgate {
namespace {

struct NamedDistribution {
  Distribution distribution;
  std::string_view name;
};

constexpr NamedDistribution kNames[] = {
    {Distribution::kNormal, "normal"},
    {Distribution::kUniform, "uniform"},
    {Distribution::kLogNormalOutliers, "lognormal_outliers"},
    {Distribution::kSubnormalHeavy, "subnormal_heavy"},
    {Distribution::kSpecialsLaced, "specials"},
    {Distribution::kAllZero, "zero"},
    {Distribution::kOneHuge, "one_huge"},
};

// Streams of Philox: the value of an element, the choice what kind of element it is, and choices
// for a whole tensor.
constexpr uint32_t kValueStream = 0, kChoiceStream = 1, kTensorStream = 2;

// A multiple of the four words of a Philox block.
constexpr int64_t kGrainElements = 1 << 14;

/// Facts about an element type that a generator needs.
struct TargetRange {
  float min_normal;
  float max_finite;
};

/// Where the one huge element lies, and its sign.
struct HugeElement {
  int64_t index = -1;
  float value = 0;
};

float Normal(uint32_t word) { return static_cast<float>(InverseNormal(word)); }

/// The 2^24 multiples of 2^-23 in [-1, 1): exact in fp32.
float Uniform(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-23f - 1.0f; }

float LogNormal(uint32_t value_word, uint32_t choice_word) {
  float magnitude = static_cast<float>(FixedExp(InverseNormal(value_word)));
  if ((choice_word & 1023) == 0) magnitude *= 64.0f;
  return (choice_word >> 31) != 0 ? -magnitude : magnitude;
}

float SubnormalHeavy(uint32_t value_word, uint32_t choice_word, const TargetRange& range) {
  return (choice_word & 3) != 0 ? Uniform(value_word) * range.min_normal : Normal(value_word);
}

float Laced(uint32_t value_word, uint32_t choice_word) {
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

template <class F>
TargetRange RangeOf() {
  using C = FormatConstants<F>;
  return {DecodeFloat<F>(C::kMantissaMask + 1), DecodeFloat<F>(C::kMaxFinite)};
}

/// The usual cast, and for f32 none but that of NaN.
template <class F>
typename F::Storage Store(float value) {
  return EncodeFloat<F>(value);
}
template <>
uint32_t Store<Float32>(float value) {
  return std::bit_cast<uint32_t>(CanonicalFloat(value));
}

HugeElement ChooseHuge(const GeneratorSpec& spec, int64_t count, const TargetRange& range) {
  if (spec.distribution != Distribution::kOneHuge || count == 0) return {};
  const PhiloxCounter words = PhiloxBlock(spec.seed, 0, kTensorStream);
  const uint64_t draw = (uint64_t{words.word[1]} << 32) | words.word[0];
  const auto index = static_cast<unsigned __int128>(draw) * static_cast<uint64_t>(count) >> 64;
  return {static_cast<int64_t>(index),
          (words.word[2] >> 31) != 0 ? -range.max_finite : range.max_finite};
}

float ValueOf(Distribution distribution, uint32_t value_word, uint32_t choice_word,
              const TargetRange& range) {
  switch (distribution) {
    case Distribution::kNormal:
      return Normal(value_word);
    case Distribution::kUniform:
      return Uniform(value_word);
    case Distribution::kLogNormalOutliers:
      return LogNormal(value_word, choice_word);
    case Distribution::kSubnormalHeavy:
      return SubnormalHeavy(value_word, choice_word, range);
    case Distribution::kSpecialsLaced:
      return Laced(value_word, choice_word);
    case Distribution::kAllZero:
      return 0.0f;
    case Distribution::kOneHuge:
      return Normal(value_word) * 0x1p-10f;
  }
  return 0.0f;
}

bool NeedsChoices(Distribution distribution) {
  return distribution == Distribution::kLogNormalOutliers ||
         distribution == Distribution::kSubnormalHeavy ||
         distribution == Distribution::kSpecialsLaced;
}

/// Where the elements of one tensor go.
template <class F>
struct Target {
  TargetRange range;
  HugeElement huge;
  typename F::Storage* out;
};

/// Elements [begin, end), begin a multiple of 4.
template <class F>
inline void FillRange(const GeneratorSpec& spec, const Target<F>& target, int64_t begin,
                      int64_t end) {
  const bool needs_choices = NeedsChoices(spec.distribution);
  for (int64_t block = begin; block < end; block += 4) {
    const uint64_t counter = static_cast<uint64_t>(block / 4);
    const PhiloxCounter values = PhiloxBlock(spec.seed, counter, kValueStream);
    PhiloxCounter choices{};
    if (needs_choices) choices = PhiloxBlock(spec.seed, counter, kChoiceStream);
    const int lanes = static_cast<int>(end - block < 4 ? end - block : 4);
    for (int lane = 0; lane < lanes; ++lane) {
      float value = ValueOf(spec.distribution, values.word[lane], choices.word[lane], target.range);
      if (block + lane == target.huge.index) value = target.huge.value;
      target.out[block + lane] = Store<F>(value * spec.scale);
    }
  }
}

/// The same with std::fma as one instruction instead of a call; the bits are the same either way.
template <class F>
__attribute__((target("avx2,fma"), flatten)) void FillRangeFma(const GeneratorSpec& spec,
                                                               const Target<F>& target,
                                                               int64_t begin, int64_t end) {
  FillRange<F>(spec, target, begin, end);
}

template <class F>
void Fill(const GeneratorSpec& spec, Tensor& tensor, const ExecutionContext& context) {
  const TargetRange range = RangeOf<F>();
  const Target<F> target = {range, ChooseHuge(spec, tensor.element_count(), range),
                            tensor.as<typename F::Storage>()};
  const auto fill = context.isa == Isa::kScalar ? &FillRange<F> : &FillRangeFma<F>;
  ParallelFor(context, tensor.element_count(), kGrainElements,
              [&](int64_t begin, int64_t end) { fill(spec, target, begin, end); });
}

using FillFunction = void (*)(const GeneratorSpec&, Tensor&, const ExecutionContext&);

absl::StatusOr<FillFunction> FillFor(DType dtype) {
  FillFunction fill = nullptr;
  VisitFormat(DTypeName(dtype), [&]<class F>() { fill = &Fill<F>; });
  if (fill != nullptr) return fill;
  std::string known;
  for (const DTypeTraits& traits : AllDTypes()) {
    if (!VisitFormat(traits.name, []<class F>() {})) continue;
    absl::StrAppend(&known, known.empty() ? "" : ", ", std::string(traits.name));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("dtype: cannot generate ", std::string(DTypeName(dtype)), "; known: ", known));
}

}  // namespace

std::string_view DistributionName(Distribution distribution) {
  return kNames[static_cast<int>(distribution)].name;
}

absl::StatusOr<Distribution> ParseDistribution(std::string_view name) {
  std::string known;
  for (const NamedDistribution& entry : kNames) {
    if (entry.name == name) return entry.distribution;
    absl::StrAppend(&known, known.empty() ? "" : ", ", std::string(entry.name));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("distribution: unknown name \"", std::string(name), "\"; known: ", known));
}

const std::vector<Distribution>& AllDistributions() {
  static const auto& all = *[] {
    auto* list = new std::vector<Distribution>;
    for (const NamedDistribution& entry : kNames) list->push_back(entry.distribution);
    return list;
  }();
  return all;
}

absl::StatusOr<Tensor> Generate(const GeneratorSpec& spec, const ExecutionContext& context) {
  if (!std::isfinite(spec.scale)) {
    return absl::InvalidArgumentError(absl::StrCat("scale: ", spec.scale, " is not finite"));
  }
  QG_ASSIGN_OR_RETURN(const FillFunction fill, FillFor(spec.dtype));
  QG_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(spec.dtype, spec.shape));
  fill(spec, tensor, context);
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return tensor;
}

}  // namespace quantgate

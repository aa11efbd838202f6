#include "kernels/tensor/generate/generate.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/generate/generated_value.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

struct NamedDistribution {
  Distribution distribution;
  std::string_view name;
  ValueFormula formula;
  bool needs_choices;
};

constexpr NamedDistribution kNames[] = {
    {Distribution::kNormal, "normal", ValueFormula::kNormal, false},
    {Distribution::kUniform, "uniform", ValueFormula::kUniform, false},
    {Distribution::kLogNormalOutliers, "lognormal_outliers", ValueFormula::kLogNormal, true},
    {Distribution::kSubnormalHeavy, "subnormal_heavy", ValueFormula::kSubnormalHeavy, true},
    {Distribution::kSpecialsLaced, "specials", ValueFormula::kLaced, true},
    {Distribution::kAllZero, "zero", ValueFormula::kZero, false},
    {Distribution::kOneHuge, "one_huge", ValueFormula::kSmallNormal, false},
};

// A multiple of the four words of a Philox block.
constexpr int64_t kGrainElements = 1 << 14;

template <class F>
TargetRange RangeOf() {
  using C = FormatConstants<F>;
  return {DecodeFloat<F>(C::kMantissaMask + 1), DecodeFloat<F>(C::kMaxFinite)};
}

HugeElement ChooseHuge(const GeneratorSpec& spec, int64_t count, const TargetRange& range) {
  if (spec.distribution != Distribution::kOneHuge || count == 0) return {};
  const PhiloxCounter words = PhiloxBlock(spec.seed, 0, kTensorStream);
  const uint64_t draw = (uint64_t{words.word[1]} << 32) | words.word[0];
  const auto index = static_cast<unsigned __int128>(draw) * static_cast<uint64_t>(count) >> 64;
  return {static_cast<int64_t>(index),
          (words.word[2] >> 31) != 0 ? -range.max_finite : range.max_finite};
}

/// Elements [begin, end), begin a multiple of 4.
template <class F>
inline void FillRange(const GenerationRule& rule, typename F::Storage* out, int64_t begin,
                      int64_t end) {
  for (int64_t block = begin; block < end; block += 4) {
    const uint64_t counter = static_cast<uint64_t>(block / 4);
    const PhiloxCounter values = PhiloxBlock(rule.seed, counter, kValueStream);
    PhiloxCounter choices{};
    if (rule.needs_choices) choices = PhiloxBlock(rule.seed, counter, kChoiceStream);
    const int lanes = static_cast<int>(end - block < 4 ? end - block : 4);
    for (int lane = 0; lane < lanes; ++lane) {
      float value = GeneratedValue(rule.formula, values.word[lane], choices.word[lane], rule.range);
      if (block + lane == rule.huge.index) value = rule.huge.value;
      out[block + lane] = StoredCode<F>(value * rule.scale);
    }
  }
}

/// The same with std::fma as one instruction instead of a call; the bits are the same either way.
template <class F>
__attribute__((target("avx2,fma"), flatten)) void FillRangeFma(const GenerationRule& rule,
                                                               typename F::Storage* out,
                                                               int64_t begin, int64_t end) {
  FillRange<F>(rule, out, begin, end);
}

template <class F>
void Fill(const GenerationRule& rule, Tensor& tensor, const ExecutionContext& context) {
  auto* out = tensor.as<typename F::Storage>();
  const auto fill = context.isa == Isa::kScalar ? &FillRange<F> : &FillRangeFma<F>;
  ParallelFor(context, tensor.element_count(), kGrainElements,
              [&](int64_t begin, int64_t end) { fill(rule, out, begin, end); });
}

absl::StatusOr<TargetRange> RangeFor(DType dtype) {
  TargetRange range;
  if (VisitFormat<ElementFormats>(dtype, [&]<class F>() { range = RangeOf<F>(); })) return range;
  return Refuse("dtype", DTypeName(dtype),
                "tensors of " + ElementFormatNames() + " can be generated");
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
  return Refuse("distribution", absl::StrCat("\"", std::string(name), "\""),
                "known distributions are " + known);
}

const std::vector<Distribution>& AllDistributions() {
  static const auto& all = *[] {
    auto* list = new std::vector<Distribution>;
    for (const NamedDistribution& entry : kNames) list->push_back(entry.distribution);
    return list;
  }();
  return all;
}

absl::StatusOr<GenerationRule> GenerationRuleOf(const GeneratorSpec& spec) {
  if (!std::isfinite(spec.scale)) {
    return Refuse("scale", absl::StrCat(spec.scale), "a scale is finite");
  }
  QG_ASSIGN_OR_RETURN(const TargetRange range, RangeFor(spec.dtype));
  QG_ASSIGN_OR_RETURN(const int64_t count, CheckedElementCount(spec.shape, spec.dtype, "shape"));
  const NamedDistribution& named = kNames[static_cast<int>(spec.distribution)];
  return GenerationRule{.formula = named.formula,
                        .needs_choices = named.needs_choices,
                        .seed = spec.seed,
                        .scale = spec.scale,
                        .range = range,
                        .huge = ChooseHuge(spec, count, range)};
}

absl::StatusOr<Tensor> Generate(const GeneratorSpec& spec, const ExecutionContext& context) {
  QG_ASSIGN_OR_RETURN(const GenerationRule rule, GenerationRuleOf(spec));
  QG_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(spec.dtype, spec.shape));
  VisitFormat<ElementFormats>(spec.dtype, [&]<class F>() { Fill<F>(rule, tensor, context); });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return tensor;
}

}  // namespace quantgate

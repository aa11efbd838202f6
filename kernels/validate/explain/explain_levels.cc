#include "kernels/validate/explain/explain_levels.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/tensor/convert.h"
#include "kernels/validate/run/described_copy.h"

namespace quantgate {
namespace {

/// The code of element `index`.
uint32_t LevelAt(const Tensor& codes, int64_t index) {
  const auto* bytes = codes.as<uint8_t>();
  if (CodesPerElement(codes.dtype()) == 1) return bytes[index];
  return bytes[index / 2] >> (index % 2 * 4) & 15u;
}

/// How much of the given codes and scales a quantizer makes.
absl::StatusOr<CodesCandidate> Try(const QuantizerSpec& spec, const Tensor& source,
                                   const QuantizedCopy& given, const ExecutionContext& context) {
  QG_ASSIGN_OR_RETURN(const QuantizedTensor made, QuantizeCpu(source, spec, {}, {}, context));
  const QuantizedCopy& copy = *made.rowwise;
  CodesCandidate candidate;
  candidate.element = std::string(DTypeName(spec.element));
  candidate.block = spec.group > 0 ? absl::StrCat(spec.group, " elements") : GroupText(spec.group);
  candidate.scale_rule = absl::StrCat(std::string(ScaleRuleName(spec.scale_rule)),
                                      ", zero_point=", std::string(ZeroPointName(spec.zero_point)));
  candidate.element_rule =
      absl::StrCat("operation_dtype=", std::string(StepDTypeName(spec.operation_dtype)));
  candidate.libraries = {std::string(ScaleRuleName(spec.scale_rule))};
  candidate.is_own_rule = true;
  candidate.scale_count = given.scale_inv.element_count();
  for (int64_t i = 0; i < candidate.scale_count; ++i) {
    candidate.scale_matches +=
        given.scale_inv.as<uint32_t>()[i] == copy.scale_inv.as<uint32_t>()[i];
  }
  const int64_t columns = source.columns();
  candidate.code_count = source.element_count();
  for (int64_t i = 0; i < candidate.code_count; ++i) {
    const uint32_t wanted = LevelAt(given.data, i), code = LevelAt(copy.data, i);
    candidate.code_matches += wanted == code;
    if (wanted == code || candidate.first_difference.has_value()) continue;
    candidate.first_difference = ElementAt{i / columns, i % columns, wanted, code};
  }
  return candidate;
}

}  // namespace

bool AreLevels(const Tensor& codes) {
  if (!codes.has_value() || codes.dtype() == DType::kU8) return false;
  for (const ScalingTraits& traits : AllQuantizerFormats()) {
    if (traits.has_levels() && std::find(traits.elements.begin(), traits.elements.end(),
                                         codes.dtype()) != traits.elements.end()) {
      return true;
    }
  }
  return false;
}

absl::StatusOr<CodesExplanation> ExplainLevels(const ExplainCodesRequest& request,
                                               const ExecutionContext& context) {
  const Tensor& source = request.source;
  const int per_byte = CodesPerElement(request.codes.dtype());
  if (request.codes.rows() != source.rows() ||
      request.codes.columns() * per_byte != source.columns()) {
    return Refuse("codes", TensorText(request.codes),
                  absl::StrCat("must be of the source's ", source.rows(), "x", source.columns(),
                               ", ", per_byte, " a byte"));
  }
  if (request.amax.has_value()) {
    return Refuse("amax", TensorText(request.amax), "codes of levels have none");
  }
  if (!IsHighPrecision(request.scale_inv.dtype())) {
    return Refuse("scale_inv", TensorText(request.scale_inv), "must be f32, bf16 or f16");
  }
  QuantizedCopy parts;
  parts.data = request.codes;
  QG_ASSIGN_OR_RETURN(parts.scale_inv, CastTensor(request.scale_inv, DType::kF32, context));
  QG_ASSIGN_OR_RETURN(const DescribedCopy given,
                      DescribeCopy({}, Usage::kRowwise, std::move(parts)));
  CodesExplanation explanation;
  QuantizerSpec spec = {.format = given.copy.format, .element = given.copy.element};
  spec.group = given.copy.group;
  for (const ScaleRule rule : spec.traits().rules) {
    for (const ZeroPoint zero_point : {ZeroPoint::kNone, ZeroPoint::kInteger, ZeroPoint::kFloat}) {
      for (const StepDType operation : {StepDType::kF32, StepDType::kSource}) {
        spec.scale_rule = rule;
        spec.zero_point = zero_point;
        spec.operation_dtype = operation;
        if (!CheckQuantizer(spec).ok()) continue;
        QG_ASSIGN_OR_RETURN(CodesCandidate candidate, Try(spec, source, given.copy, context));
        explanation.candidates.push_back(std::move(candidate));
      }
    }
  }
  std::vector<CodesCandidate>& candidates = explanation.candidates;
  explanation.tried = static_cast<int64_t>(candidates.size());
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const CodesCandidate& a, const CodesCandidate& b) {
                     return a.code_matches + a.scale_matches > b.code_matches + b.scale_matches;
                   });
  std::set<std::string> entire;
  for (const CodesCandidate& candidate : candidates) {
    if (candidate.is_entire()) entire.insert(candidate.scale_rule);
  }
  std::set<uint32_t> distinct;
  for (int64_t i = 0; i < source.element_count(); ++i) distinct.insert(LevelAt(request.codes, i));
  for (CodesCandidate& candidate : candidates) {
    candidate.is_established = candidate.is_entire() && entire.size() == 1 && distinct.size() > 1;
    if (candidate.is_established) candidate.scale_origin = *candidate.libraries.begin();
    explanation.is_established |= candidate.is_established;
  }
  if (entire.empty()) {
    explanation.cause = "unknown";
    explanation.conclusion = {"no rule of this build gives all codes and scales"};
  } else if (explanation.is_established) {
    explanation.conclusion = {
        absl::StrCat("scale_rule ", *entire.begin(), " alone gives all codes and scales")};
  } else {
    explanation.conclusion = {absl::StrCat(entire.size(),
                                           " rules give all codes and scales: these codes do not "
                                           "tell which of them made them")};
  }
  return explanation;
}

}  // namespace quantgate

#include "tests/engine/both_engines.h"

#include <gtest/gtest.h>

#include <bit>
#include <functional>

#include "absl/strings/str_cat.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace {

/// "" where both have none.
std::string TensorDifference(const std::string& name, const Tensor& subject,
                             const Tensor& reference) {
  if (!subject.has_value() && !reference.has_value()) return "";
  const auto host = Cuda().ToHost(subject, nullptr);
  if (!host.ok()) return absl::StrCat(name, ": ", host.status().ToString());
  const auto same = SameBits(*host, reference);
  return same ? "" : absl::StrCat(name, ": ", same.message());
}

std::string OperandDifference(const std::string& name, const GemmOperand& subject,
                              const GemmOperand& reference) {
  std::string difference = TensorDifference(name, subject.data, reference.data);
  if (!difference.empty()) return difference;
  return TensorDifference(name + " scale_inv", subject.scale_inv, reference.scale_inv);
}

std::string GemmDifference(const GemmRecord& subject, const GemmRecord& reference) {
  const std::string name = "gemm " + reference.output;
  if (subject.role != reference.role || subject.output != reference.output ||
      subject.a != reference.a || subject.b != reference.b) {
    return name + ": what it is of";
  }
  std::string difference = OperandDifference(name + " a", subject.desc.a, reference.desc.a);
  if (difference.empty()) {
    difference = OperandDifference(name + " b", subject.desc.b, reference.desc.b);
  }
  if (!difference.empty()) return difference;
  return TensorDifference(name + " d", subject.result.d, reference.result.d);
}

std::string SavedDifference(const SavedOperand& subject, const SavedOperand& reference) {
  const std::string name = "saved " + reference.name;
  if (subject.name != reference.name || subject.content != reference.content) return name;
  if (subject.at_save != reference.at_save) return name + ": fingerprint at save";
  if (subject.at_use != reference.at_use) return name + ": fingerprint at use";
  return subject.used == reference.used ? "" : name + ": whether it was used";
}

int64_t BitsOf(const std::optional<float>& value) {
  return value.has_value() ? int64_t{std::bit_cast<uint32_t>(*value)} : int64_t{-1};
}

std::string QuantizationDifference(const QuantizationRecord& subject,
                                   const QuantizationRecord& reference) {
  const std::string name = "quantization of " + reference.tensor;
  if (subject.tensor != reference.tensor || subject.role != reference.role ||
      subject.quantizer != reference.quantizer ||
      subject.usages.rowwise != reference.usages.rowwise ||
      subject.usages.columnwise != reference.usages.columnwise) {
    return name + ": what it is";
  }
  const QuantizationCounts &ours = subject.counts, &theirs = reference.counts;
  if (ours.normal != theirs.normal || ours.zero != theirs.zero ||
      ours.subnormal != theirs.subnormal || ours.flushed_to_zero != theirs.flushed_to_zero ||
      ours.saturated != theirs.saturated || ours.infinite != theirs.infinite ||
      ours.nan != theirs.nan) {
    return name + ": counts";
  }
  if (subject.scale_codes != reference.scale_codes) return name + ": scale codes";
  const bool same_scales = BitsOf(subject.amax) == BitsOf(reference.amax) &&
                           BitsOf(subject.scale) == BitsOf(reference.scale) &&
                           BitsOf(subject.scale_inv) == BitsOf(reference.scale_inv) &&
                           BitsOf(subject.amax_columnwise) == BitsOf(reference.amax_columnwise);
  return same_scales ? "" : name + ": amax or scale";
}

std::string StageDifference(const TimedStage& subject, const TimedStage& reference) {
  return subject.stage == reference.stage ? "" : "stage " + subject.stage;
}

std::string NoteDifference(const std::string& subject, const std::string& reference) {
  return subject == reference ? "" : "note " + subject;
}

std::string NamedDifference(const NamedTensor& subject, const NamedTensor& reference) {
  if (subject.name != reference.name) return "the name " + subject.name;
  return TensorDifference(reference.name, subject.tensor, reference.tensor);
}

template <typename Record>
std::string ListDifference(const std::string& what, const std::vector<Record>& subject,
                           const std::vector<Record>& reference,
                           std::string (*difference_of)(const Record&, const Record&)) {
  if (subject.size() != reference.size()) {
    return absl::StrCat(subject.size(), " ", what, ", expected ", reference.size());
  }
  for (size_t i = 0; i < reference.size(); ++i) {
    std::string difference = difference_of(subject[i], reference[i]);
    if (!difference.empty()) return absl::StrCat(what, ": ", difference);
  }
  return "";
}

/// The first that is not empty; later ones are not looked for.
std::string FirstOf(const std::vector<std::function<std::string()>>& comparisons) {
  for (const auto& compare : comparisons) {
    std::string difference = compare();
    if (!difference.empty()) return difference;
  }
  return "";
}

}  // namespace

CudaEngine& Cuda() {
  static CudaEngine& engine = *CudaEngine::Open(0).value().release();
  return engine;
}

Engine& Cpu() {
  static Engine& engine = *MakeCpuEngine({.threads = 1}).release();
  return engine;
}

Arithmetic ModelFor(const Recipe& recipe) {
  if (recipe.name() == "hybrid" || recipe.name() == "custom") return Arithmetic{};
  const ScalingTraits& traits = recipe.QuantizerFor(TensorRole::kInput).rowwise.traits();
  const bool is_blackwell = traits.has_blocks() && traits.block_length != 128;
  return Arithmetic::Parse(is_blackwell ? "sm100" : "sm90").value();
}

std::string DifferenceOf(const std::vector<NamedTensor>& subject,
                         const std::vector<NamedTensor>& reference) {
  return ListDifference("tensors", subject, reference, &NamedDifference);
}

std::string DifferenceOf(const StepRecords& subject, const StepRecords& reference) {
  return FirstOf({
      [&] { return ListDifference("stages", subject.stages, reference.stages, &StageDifference); },
      [&] { return ListDifference("gemms", subject.gemms, reference.gemms, &GemmDifference); },
      [&] { return ListDifference("saved", subject.saved, reference.saved, &SavedDifference); },
      [&] {
        return ListDifference("quantizations", subject.quantizations, reference.quantizations,
                              &QuantizationDifference);
      },
      [&] { return ListDifference("notes", subject.notes, reference.notes, &NoteDifference); },
  });
}

std::string DifferenceOf(const LayerResult& subject, const LayerResult& reference) {
  return FirstOf({
      [&] { return DifferenceOf(subject.outputs, reference.outputs); },
      [&] { return DifferenceOf(subject.intermediates, reference.intermediates); },
      [&] { return DifferenceOf(subject.state, reference.state); },
      [&] {
        return DifferenceOf(static_cast<const StepRecords&>(subject),
                            static_cast<const StepRecords&>(reference));
      },
  });
}

bool ExpectSameLayer(const LayerRequest& request, const Recipe& recipe,
                     const Arithmetic& arithmetic, const std::string& what) {
  const auto reference = RunLayer(Cpu(), request, recipe, arithmetic, nullptr);
  const auto subject = RunLayer(Cuda(), request, recipe, arithmetic, nullptr);
  EXPECT_EQ(subject.status(), reference.status()) << recipe.ShortText() << " " << what;
  if (!reference.ok() || !subject.ok()) return false;
  EXPECT_EQ(DifferenceOf(*subject, *reference), "") << recipe.ShortText() << " " << what;
  return true;
}

}  // namespace quantgate

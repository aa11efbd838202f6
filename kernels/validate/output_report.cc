#include "kernels/validate/output_report.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

const GemmRecord* FindGemm(const LinearResult& result, const std::string& output) {
  const auto found = std::find_if(result.gemms.begin(), result.gemms.end(),
                                  [&](const GemmRecord& gemm) { return gemm.output == output; });
  return found == result.gemms.end() ? nullptr : &*found;
}

absl::StatusOr<ExactValues::Value> ExactOf(ExactValues& exact, const GemmRecord* gemm,
                                           const NamedTensor& output) {
  if (gemm != nullptr) return exact.OfGemm(gemm->desc);
  if (output.name == "db") return exact.OfBiasGradient(output.tensor.dtype());
  return exact.OfEmptySum(output.name, output.tensor.dtype());
}

std::string ArithmeticText(const GemmRecord* gemm, const NamedTensor& output) {
  if (gemm != nullptr) return gemm->result.arithmetic;
  return output.name == "db" ? "pairwise fp32 sum" : "none: a sum over no rows";
}

/// The comparison of `tensor` with that reference variant, or null.
const TensorComparison* FindComparison(const VariantReport& variant, const std::string& tensor,
                                       const std::string& reference) {
  const auto& all = variant.against_reference;
  const auto found = std::find_if(all.begin(), all.end(), [&](const TensorComparison& comparison) {
    return comparison.tensor == tensor && comparison.reference == reference;
  });
  return found == all.end() ? nullptr : &*found;
}

absl::StatusOr<PairSummary> ComparePair(Engine& engine, const VariantReport& subject,
                                        const OutputReport& output, const VariantReport& reference,
                                        const Cancellation* cancellation) {
  PairSummary pair;
  pair.tensor = output.tensor;
  pair.element_count = output.value.element_count();
  const OutputReport* other = FindOutput(reference, output.tensor);
  pair.comparable = other != nullptr && other->value.dtype() == output.value.dtype();
  if (other == nullptr || other->fingerprint == output.fingerprint) return pair;
  if (const auto* known = FindComparison(subject, output.tensor, reference.label)) {
    pair.mismatch_count = known->parity.mismatch_count;
    pair.relative_frobenius = known->error.relative_frobenius;
    return pair;
  }
  if (pair.comparable) {
    QG_ASSIGN_OR_RETURN(const ParityReport parity,
                        engine.CompareBits(output.value, other->value, cancellation));
    pair.mismatch_count = parity.mismatch_count;
  }
  QG_ASSIGN_OR_RETURN(const ErrorReport error,
                      engine.MeasureError(output.value, other->value, cancellation));
  pair.relative_frobenius = error.relative_frobenius;
  return pair;
}

}  // namespace

absl::StatusOr<const ReportedOutput*> OutputReporter::Report(const LinearResult& result,
                                                             const NamedTensor& output) {
  const GemmRecord* gemm = FindGemm(result, output.name);
  QG_ASSIGN_OR_RETURN(const ExactValues::Value truth, ExactOf(exact_, gemm, output));
  QG_ASSIGN_OR_RETURN(const Fingerprint fingerprint,
                      engine_.FingerprintOf(output.tensor, cancellation_));
  // Equal operands share the exact value's memory, and reported_ keeps that memory alive.
  const auto truth_address = reinterpret_cast<uintptr_t>(truth.f32.data());
  const std::string arithmetic = ArithmeticText(gemm, output);
  const std::string identity =
      absl::StrCat(output.name, " ", arithmetic, " ", fingerprint.Hex(), " ", truth_address);
  if (const auto known = reported_.find(identity); known != reported_.end()) return &known->second;
  QG_ASSIGN_OR_RETURN(ReportedOutput reported, Measure(output, gemm, truth));
  reported.report.arithmetic = arithmetic;
  reported.report.fingerprint = fingerprint;
  reported.identity = identity;
  return &reported_.emplace(identity, std::move(reported)).first->second;
}

absl::StatusOr<ReportedOutput> OutputReporter::Measure(const NamedTensor& output,
                                                       const GemmRecord* gemm,
                                                       const ExactValues::Value& truth) {
  const Tensor& value = output.tensor;
  QG_ASSIGN_OR_RETURN(Tensor truth_own, truth.own.Reinterpret(truth.own.dtype(), value.shape()));
  QG_ASSIGN_OR_RETURN(Tensor truth_f32, truth.f32.Reinterpret(DType::kF32, value.shape()));
  QG_ASSIGN_OR_RETURN(Tensor original, exact_.Unquantized(output.name));
  QG_ASSIGN_OR_RETURN(original, original.Reinterpret(DType::kF32, value.shape()));

  ReportedOutput reported;
  OutputReport& report = reported.report;
  report.tensor = output.name;
  report.value = value;
  report.exact_note = truth.note;
  TensorComparison& against_exact = report.against_exact;
  against_exact.tensor = output.name;
  against_exact.reference = "exact";
  QG_ASSIGN_OR_RETURN(against_exact.parity, engine_.CompareBits(value, truth_own, cancellation_));
  QG_ASSIGN_OR_RETURN(against_exact.error, engine_.MeasureError(value, truth_f32, cancellation_));
  if (original.data() == truth_f32.data()) {
    // The variant's operands are the originals.
    report.against_unquantized = against_exact.error;
  } else {
    QG_ASSIGN_OR_RETURN(report.against_unquantized,
                        engine_.MeasureError(value, original, cancellation_));
  }
  if (gemm != nullptr && gemm->desc.arithmetic.family != ArithmeticFamily::kExact) {
    QG_ASSIGN_OR_RETURN(report.bound,
                        engine_.CheckBound(gemm->desc, gemm->result.d, truth.f32, cancellation_));
  }
  reported.exact_f32 = std::move(truth_f32);
  return reported;
}

absl::StatusOr<std::optional<BoundCheck>> OutputReporter::CheckSubject(
    const LinearResult& result, const ReportedOutput& reported, const Tensor& subject) {
  const GemmRecord* gemm = FindGemm(result, reported.report.tensor);
  if (gemm == nullptr) return std::optional<BoundCheck>();
  const Shape& shape = gemm->result.d.shape();
  QG_ASSIGN_OR_RETURN(const Tensor value, subject.Reinterpret(subject.dtype(), shape));
  QG_ASSIGN_OR_RETURN(const Tensor exact, reported.exact_f32.Reinterpret(DType::kF32, shape));
  QG_ASSIGN_OR_RETURN(const BoundCheck check,
                      engine_.CheckBound(gemm->desc, value, exact, cancellation_));
  return std::optional<BoundCheck>(check);
}

absl::StatusOr<std::optional<TensorComparison>> OutputReporter::CompareWithReference(
    const ReportedOutput& subject, const OutputReport& reference,
    const std::string& reference_label) {
  const Tensor& value = subject.report.value;
  if (value.dtype() != reference.value.dtype()) return std::optional<TensorComparison>();
  const std::string identity = absl::StrCat(subject.identity, " ", reference.fingerprint.Hex());
  if (const auto known = compared_.find(identity); known != compared_.end()) {
    return std::optional<TensorComparison>(known->second);
  }
  TensorComparison comparison;
  comparison.tensor = subject.report.tensor;
  comparison.reference = reference_label;
  QG_ASSIGN_OR_RETURN(comparison.parity,
                      engine_.CompareBits(value, reference.value, cancellation_));
  QG_ASSIGN_OR_RETURN(comparison.error,
                      engine_.MeasureError(value, reference.value, cancellation_));
  QG_ASSIGN_OR_RETURN(comparison.nearer, engine_.MeasureNearer(value, reference.value,
                                                               subject.exact_f32, cancellation_));
  compared_.emplace(identity, comparison);
  return std::optional<TensorComparison>(std::move(comparison));
}

absl::StatusOr<std::vector<PairSummary>> ComparePairs(Engine& engine,
                                                      const std::vector<VariantReport>& variants,
                                                      const Cancellation* cancellation) {
  std::vector<PairSummary> pairs;
  for (size_t subject = 1; subject < variants.size(); ++subject) {
    for (size_t reference = 0; reference < subject; ++reference) {
      for (const OutputReport& output : variants[subject].outputs) {
        QG_ASSIGN_OR_RETURN(PairSummary pair, ComparePair(engine, variants[subject], output,
                                                          variants[reference], cancellation));
        pair.subject = static_cast<int>(subject);
        pair.reference = static_cast<int>(reference);
        pairs.push_back(std::move(pair));
      }
    }
  }
  return pairs;
}

const OutputReport* FindOutput(const VariantReport& variant, const std::string& tensor) {
  const auto found =
      std::find_if(variant.outputs.begin(), variant.outputs.end(),
                   [&](const OutputReport& output) { return output.tensor == tensor; });
  return found == variant.outputs.end() ? nullptr : &*found;
}

}  // namespace quantgate

#include "kernels/validate/output_report.h"

#include <algorithm>
#include <utility>

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

absl::StatusOr<PairSummary> ComparePair(Engine& engine, const OutputReport& subject,
                                        const OutputReport* reference,
                                        const Cancellation* cancellation) {
  PairSummary pair;
  pair.tensor = subject.tensor;
  pair.element_count = subject.value.element_count();
  pair.comparable = reference != nullptr && reference->value.dtype() == subject.value.dtype();
  if (reference == nullptr) return pair;
  if (pair.comparable) {
    QG_ASSIGN_OR_RETURN(const ParityReport parity,
                        engine.CompareBits(subject.value, reference->value, cancellation));
    pair.mismatch_count = parity.mismatch_count;
    if (parity.equal) return pair;
  }
  QG_ASSIGN_OR_RETURN(const ErrorReport error,
                      engine.MeasureError(subject.value, reference->value, cancellation));
  pair.relative_frobenius = error.relative_frobenius;
  return pair;
}

}  // namespace

absl::StatusOr<ReportedOutput> ReportOutput(Engine& engine, ExactValues& exact,
                                            const LinearResult& result, const NamedTensor& output,
                                            const Cancellation* cancellation) {
  const GemmRecord* gemm = FindGemm(result, output.name);
  const Tensor& value = output.tensor;
  QG_ASSIGN_OR_RETURN(const ExactValues::Value truth, ExactOf(exact, gemm, output));
  QG_ASSIGN_OR_RETURN(Tensor truth_own, truth.own.Reinterpret(truth.own.dtype(), value.shape()));
  QG_ASSIGN_OR_RETURN(Tensor truth_f32, truth.f32.Reinterpret(DType::kF32, value.shape()));
  QG_ASSIGN_OR_RETURN(Tensor original, exact.Unquantized(output.name));
  QG_ASSIGN_OR_RETURN(original, original.Reinterpret(DType::kF32, value.shape()));

  ReportedOutput reported;
  OutputReport& report = reported.report;
  report.tensor = output.name;
  report.value = value;
  report.exact_note = truth.note;
  QG_ASSIGN_OR_RETURN(report.fingerprint, engine.FingerprintOf(value, cancellation));
  QG_ASSIGN_OR_RETURN(report.against_unquantized,
                      engine.MeasureError(value, original, cancellation));
  TensorComparison& against_exact = report.against_exact;
  against_exact.tensor = output.name;
  against_exact.reference = "exact";
  QG_ASSIGN_OR_RETURN(against_exact.parity, engine.CompareBits(value, truth_own, cancellation));
  QG_ASSIGN_OR_RETURN(against_exact.error, engine.MeasureError(value, truth_f32, cancellation));
  if (gemm == nullptr) {
    report.arithmetic = output.name == "db" ? "pairwise fp32 sum" : "none: a sum over no rows";
  } else {
    report.arithmetic = gemm->result.arithmetic;
    if (gemm->desc.arithmetic.family != ArithmeticFamily::kExact) {
      QG_ASSIGN_OR_RETURN(report.bound,
                          engine.CheckBound(gemm->desc, gemm->result.d, truth.f32, cancellation));
    }
  }
  reported.exact_f32 = std::move(truth_f32);
  return reported;
}

absl::StatusOr<std::optional<TensorComparison>> CompareWithReference(
    Engine& engine, const ReportedOutput& subject, const OutputReport& reference,
    const std::string& reference_label, const Cancellation* cancellation) {
  const Tensor& value = subject.report.value;
  if (value.dtype() != reference.value.dtype()) return std::optional<TensorComparison>();
  TensorComparison comparison;
  comparison.tensor = subject.report.tensor;
  comparison.reference = reference_label;
  QG_ASSIGN_OR_RETURN(comparison.parity, engine.CompareBits(value, reference.value, cancellation));
  QG_ASSIGN_OR_RETURN(comparison.error, engine.MeasureError(value, reference.value, cancellation));
  QG_ASSIGN_OR_RETURN(comparison.nearer, engine.MeasureNearer(value, reference.value,
                                                              subject.exact_f32, cancellation));
  return std::optional<TensorComparison>(std::move(comparison));
}

absl::StatusOr<std::vector<PairSummary>> ComparePairs(Engine& engine,
                                                      const std::vector<VariantReport>& variants,
                                                      const Cancellation* cancellation) {
  std::vector<PairSummary> pairs;
  for (size_t subject = 1; subject < variants.size(); ++subject) {
    for (size_t reference = 0; reference < subject; ++reference) {
      for (const OutputReport& output : variants[subject].outputs) {
        QG_ASSIGN_OR_RETURN(
            PairSummary pair,
            ComparePair(engine, output, FindOutput(variants[reference], output.tensor),
                        cancellation));
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

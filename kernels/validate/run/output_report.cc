#include "kernels/validate/run/output_report.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/layer_values.h"
#include "kernels/ops/elementwise/elementwise.h"
#include "kernels/tensor/convert.h"
#include "kernels/validate/reference/result_codes.h"
#include "kernels/validate/run/source_reference.h"

namespace quantgate {
namespace {

std::string ArithmeticText(const OutputSource& source) {
  if (source.gemm != nullptr) return source.gemm->result.arithmetic.ToString();
  if (source.summed.has_value()) return "pairwise fp32 sum";
  if (!source.operations.empty()) {
    const AttentionCall& attention = source.operations[0].attention;
    return attention.heads.has_value() ? attention.arithmetic.ToString() : "fp32 operations";
  }
  if (source.quantized.has_value()) return "none: quantized";
  std::set<std::string> arithmetics;
  for (const OutputSource& part : source.parts) arithmetics.insert(ArithmeticText(part));
  return arithmetics.empty() ? "none: a sum over no rows" : absl::StrJoin(arithmetics, " and ");
}

/// An identity by address: values in the same memory are equal, and reported_ keeps it alive.
std::string AddressOf(const ExactValues::Value& value) {
  return absl::StrCat(reinterpret_cast<uintptr_t>(value.f32.data()));
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

/// Begins to check what has one right value, `truth` of `value`'s dtype, however it is computed.
/// Half an ulp is the bound of a number that is rounded once, and one ulp beside `truth` is two of
/// those away.
absl::StatusOr<Deferred<BoundCheck>> StartCheckBits(Engine& engine, const Tensor& value,
                                                    const Tensor& truth, std::string derivation,
                                                    const Cancellation* cancellation) {
  QG_ASSIGN_OR_RETURN(const Tensor expected, truth.Reinterpret(truth.dtype(), value.shape()));
  QG_ASSIGN_OR_RETURN(Deferred<ParityReport> started,
                      engine.StartCompareBits(value, expected, cancellation));
  return [started = std::move(started),
          derivation = std::move(derivation)]() mutable -> absl::StatusOr<BoundCheck> {
    QG_ASSIGN_OR_RETURN(const ParityReport parity, std::move(started)());
    BoundCheck check;
    check.pass = parity.equal;
    check.violation_count = parity.mismatch_count;
    check.worst_ratio = parity.worst_ulp == INT64_MAX ? std::numeric_limits<double>::infinity()
                                                      : 2 * static_cast<double>(parity.worst_ulp);
    check.bound.derivation = std::move(derivation);
    return check;
  };
}

}  // namespace

absl::StatusOr<ReportedOutput> OutputReporter::Measurement::Finish() {
  OutputReport& report = reported.report;
  TensorComparison& against_exact = report.against_exact;
  QG_ASSIGN_OR_RETURN(against_exact.parity, std::move(parity)());
  QG_ASSIGN_OR_RETURN(against_exact.error, std::move(error)());
  if (against_unquantized.has_value()) {
    QG_ASSIGN_OR_RETURN(report.against_unquantized, (*std::move(against_unquantized))());
  } else {
    report.against_unquantized = against_exact.error;
  }
  QG_ASSIGN_OR_RETURN(report.exact_note, note());
  return std::move(reported);
}

absl::StatusOr<std::optional<BoundCheck>> OutputReporter::StartedBound::Finish() {
  std::optional<BoundCheck> whole;
  for (Deferred<BoundCheck>& part : parts) {
    QG_ASSIGN_OR_RETURN(const BoundCheck check, std::move(part)());
    MergeBoundChecks(check, whole);
  }
  return whole;
}

absl::StatusOr<std::optional<BoundCheck>> CheckGemmOutput(Engine& engine, const GemmRecord& gemm,
                                                          const Tensor& value,
                                                          const Cancellation* cancellation) {
  if (gemm.desc.arithmetic.family == ArithmeticFamily::kExact || gemm.result_codes.has_value()) {
    return std::optional<BoundCheck>();
  }
  const LayerRequest of_no_layer;  // Only the GEMM's own operands are asked for.
  ExactValues exact(engine, of_no_layer, cancellation);
  QG_ASSIGN_OR_RETURN(const ExactValues::Value truth, exact.OfGemm(gemm.desc));
  // The GEMM has a 2-D output.
  const int64_t rows = gemm.result.d.rows();
  QG_ASSIGN_OR_RETURN(const Tensor subject, RowSlice(value, 0, rows));
  QG_ASSIGN_OR_RETURN(const Tensor exact_f32, RowSlice(truth.f32, 0, rows));
  QG_ASSIGN_OR_RETURN(const BoundCheck check,
                      engine.CheckBound(gemm.desc, subject, exact_f32, cancellation));
  return std::optional<BoundCheck>(check);
}

void MergeBoundChecks(const BoundCheck& part, std::optional<BoundCheck>& whole) {
  if (!whole.has_value()) {
    whole = part;
    return;
  }
  whole->violation_count += part.violation_count;
  whole->pass = whole->pass && part.pass;
  if (part.worst_ratio <= whole->worst_ratio) return;
  whole->worst_ratio = part.worst_ratio;
  whole->bound = part.bound;
}

absl::StatusOr<std::string> OutputReporter::IdentityOf(const std::vector<OperationCall>& calls) {
  std::string identity;
  for (const OperationCall& call : calls) {
    QG_ASSIGN_OR_RETURN(const std::string contents, exact_.contents().KeyOf(call.Tensors()));
    absl::StrAppend(&identity, contents);
    // The bound of attention is that of the arithmetic of its GEMMs.
    if (call.attention.heads.has_value()) {
      absl::StrAppend(&identity, " ", call.attention.arithmetic.ToString());
    }
  }
  return identity;
}

absl::StatusOr<OutputReporter::Truth> OutputReporter::TruthOfOperations(const OutputSource& source,
                                                                        const NamedTensor& output) {
  const DType dtype = output.tensor.dtype();
  Truth truth;
  QG_ASSIGN_OR_RETURN(truth.operation,
                      EvaluateSource(engine_, source, output.tensor, cancellation_));
  ExecutionContext context;
  context.cancellation = cancellation_;
  QG_ASSIGN_OR_RETURN(truth.value.own, CastTensor(truth.operation->value, dtype, context));
  QG_ASSIGN_OR_RETURN(truth.value.f32, CastTensor(truth.operation->value, DType::kF32, context));
  truth.value.note = ExactValues::NoteOf("in fp64 from its own inputs");
  return truth;
}

absl::StatusOr<OutputReporter::Truth> OutputReporter::TruthOfParts(
    const std::vector<OutputSource>& parts, const NamedTensor& output) {
  Truth truth;
  std::vector<Tensor> own, f32;
  for (const OutputSource& source : parts) {
    QG_ASSIGN_OR_RETURN(Truth part, TruthOf(source, output));
    if (!source.operations.empty()) {
      QG_ASSIGN_OR_RETURN(part.identity, IdentityOf(source.operations));
    }
    absl::StrAppend(&truth.identity, " ", part.identity);
    QG_ASSIGN_OR_RETURN(own.emplace_back(), engine_.ToHost(part.value.own, cancellation_));
    QG_ASSIGN_OR_RETURN(f32.emplace_back(), engine_.ToHost(part.value.f32, cancellation_));
    truth.value.note = part.value.note;
    truth.parts.push_back(std::move(part));
  }
  ExecutionContext context;
  context.cancellation = cancellation_;
  QG_ASSIGN_OR_RETURN(truth.value.own, ConcatenateRowsCpu(own, context));
  QG_ASSIGN_OR_RETURN(truth.value.f32, ConcatenateRowsCpu(f32, context));
  return truth;
}

absl::StatusOr<OutputReporter::Truth> OutputReporter::TruthOf(const OutputSource& source,
                                                              const NamedTensor& output) {
  const DType dtype = output.tensor.dtype();
  if (!source.operations.empty()) return TruthOfOperations(source, output);
  if (!source.parts.empty()) return TruthOfParts(source.parts, output);
  Truth truth;
  if (source.gemm != nullptr) {
    QG_ASSIGN_OR_RETURN(truth.value, exact_.OfGemm(source.gemm->desc));
  } else if (source.summed.has_value()) {
    QG_ASSIGN_OR_RETURN(truth.value, exact_.OfBiasGradient(source.summed, dtype));
  } else if (source.quantized.has_value()) {
    truth.value.own = source.quantized;
    QG_ASSIGN_OR_RETURN(truth.value.f32,
                        engine_.Cast(source.quantized, DType::kF32, cancellation_));
    truth.value.note = ExactValues::NoteOf("what was quantized");
  } else {
    QG_ASSIGN_OR_RETURN(truth.value, exact_.OfEmptySum(output.name, dtype));
  }
  truth.identity = AddressOf(truth.value);
  return truth;
}

absl::StatusOr<OutputReporter::Started> OutputReporter::Start(const LayerResult& result,
                                                              const NamedTensor& output) {
  QG_ASSIGN_OR_RETURN(const OutputSource source,
                      SourceOf(engine_, request_, result, output.name, cancellation_));
  const std::string arithmetic = ArithmeticText(source);
  Started started;
  const auto is_known = [&](const std::string& truth) -> absl::StatusOr<bool> {
    started.identity = absl::StrCat(output.name, " ", arithmetic, " ", truth);
    // Asking for the contents waits for them.
    if (!reported_.contains(started.identity)) return false;
    QG_ASSIGN_OR_RETURN(const Fingerprint fingerprint,
                        exact_.contents().FingerprintOf(output.tensor));
    const auto& by_contents = reported_.at(started.identity);
    const auto known = by_contents.find(fingerprint.Hex());
    if (known != by_contents.end()) started.known = &known->second;
    return started.known != nullptr;
  };
  QG_ASSIGN_OR_RETURN(Engine::HostRead read_value, engine_.StartToHost(output.tensor));
  Truth truth;
  if (!source.operations.empty()) {
    // The inputs identify the truth, so a known one need not be evaluated.
    QG_ASSIGN_OR_RETURN(truth.identity, IdentityOf(source.operations));
    QG_ASSIGN_OR_RETURN(const bool known, is_known(truth.identity));
    if (known) return started;
    QG_ASSIGN_OR_RETURN(truth, TruthOf(source, output));
  } else {
    QG_ASSIGN_OR_RETURN(truth, TruthOf(source, output));
    QG_ASSIGN_OR_RETURN(const bool known, is_known(truth.identity));
    if (known) return started;
  }
  QG_ASSIGN_OR_RETURN(started.measurement, StartMeasurement(output, truth.value));
  QG_ASSIGN_OR_RETURN(started.bound, StartBound(source, truth, output.tensor));
  OutputReport& report = started.measurement.reported.report;
  report.arithmetic = arithmetic;
  report.read_value = std::move(read_value);
  return started;
}

absl::StatusOr<ReportedOutput> OutputReporter::Read(Measurement measurement) {
  QG_ASSIGN_OR_RETURN(ReportedOutput reported, measurement.Finish());
  QG_ASSIGN_OR_RETURN(reported.report.fingerprint,
                      exact_.contents().FingerprintOf(reported.report.value));
  return reported;
}

absl::StatusOr<OutputReport> OutputReporter::FinishMeasurement(Started& started) {
  if (started.known != nullptr) return started.known->report;
  QG_ASSIGN_OR_RETURN(ReportedOutput reported, Read(std::move(started.measurement)));
  return std::move(reported.report);
}

absl::StatusOr<const ReportedOutput*> OutputReporter::Finish(Started started) {
  if (started.known != nullptr) return started.known;
  QG_ASSIGN_OR_RETURN(ReportedOutput reported, Read(std::move(started.measurement)));
  QG_ASSIGN_OR_RETURN(reported.report.bound, started.bound.Finish());
  KeepExactIfItFails(reported.report);
  const std::string contents = reported.report.fingerprint.Hex();
  reported.identity = absl::StrCat(started.identity, " ", contents);
  return &reported_[started.identity].emplace(contents, std::move(reported)).first->second;
}

void OutputReporter::KeepExactIfItFails(OutputReport& report) const {
  const bool fails = requirement_ == Requirement::kBitwise
                         ? !report.against_exact.parity.equal
                         : report.bound.has_value() && !report.bound->pass;
  if (!fails) report.exact = Tensor();
}

absl::StatusOr<OutputReporter::StartedBound> OutputReporter::StartBound(const OutputSource& source,
                                                                        const Truth& truth,
                                                                        const Tensor& value) {
  StartedBound started;
  if (truth.operation.has_value()) {
    QG_ASSIGN_OR_RETURN(const Tensor host, engine_.ToHost(value, cancellation_));
    QG_ASSIGN_OR_RETURN(BoundCheck whole,
                        CheckOperationBound(*truth.operation, host, cancellation_));
    started.parts.push_back(Ready(std::move(whole)));
    return started;
  }
  if (source.summed.has_value()) {
    // A bias's gradient adds rows as a norm's beta does.
    OperationCall sum;
    sum.kind = OperationCall::Kind::kNormDbeta;
    sum.gradient = source.summed;
    QG_ASSIGN_OR_RETURN(
        const OperationReference reference,
        EvaluateOperations(engine_, std::span(&sum, 1), value.dtype(), cancellation_));
    QG_ASSIGN_OR_RETURN(const Tensor host, engine_.ToHost(value, cancellation_));
    QG_ASSIGN_OR_RETURN(BoundCheck check, CheckOperationBound(reference, host, cancellation_));
    started.parts.push_back(Ready(std::move(check)));
    return started;
  }
  int64_t row = 0;
  for (size_t i = 0; i < source.parts.size(); ++i) {
    const int64_t rows = truth.parts[i].value.f32.rows();
    QG_ASSIGN_OR_RETURN(const Tensor subject, RowSlice(value, row, rows));
    QG_ASSIGN_OR_RETURN(StartedBound part, StartBound(source.parts[i], truth.parts[i], subject));
    for (Deferred<BoundCheck>& check : part.parts) started.parts.push_back(std::move(check));
    row += rows;
  }
  if (source.gemm == nullptr) {
    // What is quantized lies away from what it was by as much as its rule rounds: no bound.
    if (!source.parts.empty() || source.quantized.has_value()) return started;
    QG_ASSIGN_OR_RETURN(started.parts.emplace_back(),
                        StartCheckBits(engine_, value, truth.value.own,
                                       "a sum over no rows adds nothing", cancellation_));
    return started;
  }
  // The GEMM has a 2-D output.
  const GemmRecord& gemm = *source.gemm;
  const int64_t rows = gemm.result.d.rows();
  QG_ASSIGN_OR_RETURN(Tensor subject, RowSlice(value, 0, rows));
  if (gemm.result_codes.has_value()) {
    QG_ASSIGN_OR_RETURN(BoundCheck codes, CheckResultCodes(engine_, gemm, subject, cancellation_));
    started.parts.push_back(Ready(std::move(codes)));
    subject = gemm.result.d;
  }
  if (gemm.desc.arithmetic.family == ArithmeticFamily::kExact) {
    QG_ASSIGN_OR_RETURN(const Tensor own, RowSlice(truth.value.own, 0, rows));
    QG_ASSIGN_OR_RETURN(started.parts.emplace_back(),
                        StartCheckBits(engine_, subject, own, kCorrectlyRounded, cancellation_));
    return started;
  }
  QG_ASSIGN_OR_RETURN(const Tensor exact, RowSlice(truth.value.f32, 0, rows));
  QG_ASSIGN_OR_RETURN(started.parts.emplace_back(),
                      engine_.StartCheckBound(source.gemm->desc, subject, exact, cancellation_));
  return started;
}

absl::StatusOr<std::optional<BoundCheck>> OutputReporter::CheckBound(const OutputSource& source,
                                                                     const Truth& truth,
                                                                     const Tensor& value) {
  QG_ASSIGN_OR_RETURN(StartedBound started, StartBound(source, truth, value));
  return started.Finish();
}

absl::StatusOr<OutputReporter::Part> OutputReporter::ReportPart(const LayerResult& result,
                                                                const NamedTensor& part) {
  QG_ASSIGN_OR_RETURN(const OutputSource source,
                      SourceOf(engine_, request_, result, part.name, cancellation_));
  QG_ASSIGN_OR_RETURN(const Truth truth, TruthOf(source, part));
  QG_ASSIGN_OR_RETURN(std::optional<BoundCheck> bound, CheckBound(source, truth, part.tensor));
  return Part{truth.value, std::move(bound), ArithmeticText(source)};
}

absl::StatusOr<OutputReporter::Measurement> OutputReporter::StartMeasurement(
    const NamedTensor& output, const ExactValues::Value& exact) {
  const Tensor& value = output.tensor;
  QG_ASSIGN_OR_RETURN(Tensor truth_own, exact.own.Reinterpret(exact.own.dtype(), value.shape()));
  QG_ASSIGN_OR_RETURN(Tensor truth_f32, exact.f32.Reinterpret(DType::kF32, value.shape()));
  QG_ASSIGN_OR_RETURN(Tensor original, exact_.Unquantized(output.name));
  QG_ASSIGN_OR_RETURN(original, original.Reinterpret(DType::kF32, value.shape()));

  Measurement started;
  OutputReport& report = started.reported.report;
  report.tensor = output.name;
  report.value = value;
  report.against_exact.tensor = output.name;
  report.against_exact.reference = "exact";
  started.note = exact.note;
  QG_ASSIGN_OR_RETURN(started.parity, engine_.StartCompareBits(value, truth_own, cancellation_));
  QG_ASSIGN_OR_RETURN(started.error, engine_.StartMeasureError(value, truth_f32, cancellation_));
  // If these are the same tensor, the operands are the originals and `error` is both.
  if (original.data() != truth_f32.data()) {
    QG_ASSIGN_OR_RETURN(started.against_unquantized,
                        engine_.StartMeasureError(value, original, cancellation_));
  }
  started.reported.exact_f32 = std::move(truth_f32);
  if (requirement_ != Requirement::kNone) report.exact = truth_own;
  return started;
}

absl::StatusOr<ReportedOutput> OutputReporter::Measure(const NamedTensor& output,
                                                       const ExactValues::Value& exact) {
  QG_ASSIGN_OR_RETURN(Measurement started, StartMeasurement(output, exact));
  return started.Finish();
}

absl::StatusOr<std::optional<BoundCheck>> OutputReporter::CheckSubject(
    const LayerResult& result, const ReportedOutput& reported, const Tensor& subject) {
  const OutputReport& report = reported.report;
  QG_ASSIGN_OR_RETURN(const OutputSource source,
                      SourceOf(engine_, request_, result, report.tensor, cancellation_));
  QG_ASSIGN_OR_RETURN(const Truth truth, TruthOf(source, {report.tensor, report.value}));
  return CheckBound(source, truth, subject);
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
        if (output.is_intermediate) continue;
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

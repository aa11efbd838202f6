// Reports of a variant's outputs: each against both named references (docs/reports.md section
// 1), and against the reference variant.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"
#include "kernels/validate/reference/exact_values.h"
#include "kernels/validate/reference/operation_reference.h"
#include "kernels/validate/run/output_source.h"
#include "kernels/validate/run/run.h"

namespace quantgate {

/// An output's report and what later comparisons need.
struct ReportedOutput {
  OutputReport report;
  Tensor exact_f32;      ///< `exact` of the subject's own operands, in the subject's shape.
  std::string identity;  ///< Outputs with equal identities have equal reports.
};

/// Reports the outputs of all variants of one run. Variants often share outputs bit for bit, such
/// as the forward of every override; an output that was measured once is not measured again. Used
/// by one thread.
class OutputReporter {
 public:
  /// `requirement`: what holds outputs to `exact`, which reports of those that fail it then keep.
  OutputReporter(Engine& engine, const LayerRequest& request, ExactValues& exact,
                 const Cancellation* cancellation, Requirement requirement = Requirement::kNone)
      : engine_(engine),
        request_(request),
        exact_(exact),
        cancellation_(cancellation),
        requirement_(requirement) {}

  /// Drops OutputReport::exact of an output that does not fail.
  void KeepExactIfItFails(OutputReport& report) const;

  /// Comparisons of one output that the engine has begun.
  struct Measurement {
    ReportedOutput reported;  ///< The part that is known without waiting.
    ExactValues::Note note;
    Deferred<ParityReport> parity;
    Deferred<ErrorReport> error;
    std::optional<Deferred<ErrorReport>> against_unquantized;  ///< Absent if equal to `error`.
    absl::StatusOr<ReportedOutput> Finish();
  };
  /// Bound checks of one output that the engine has begun, one for each GEMM: that of `exact`, and
  /// of a sum over no rows, by its bits. None: no bound, as of what was quantized.
  struct StartedBound {
    std::vector<Deferred<BoundCheck>> parts;
    absl::StatusOr<std::optional<BoundCheck>> Finish();
  };
  /// A report that was begun.
  struct Started {
    const ReportedOutput* known = nullptr;  ///< Non-null if it was measured before.
    std::string identity;                   ///< The output's identity without its contents.
    Measurement measurement;
    StartedBound bound;
  };
  /// Begins to report `output`, an output or intermediate of `result`, which the request gave. Does
  /// not wait for the engine, so that several reports can be begun one after the other.
  absl::StatusOr<Started> Start(const LayerResult& result, const NamedTensor& output);
  /// The pointer stays valid as long as this object.
  absl::StatusOr<const ReportedOutput*> Finish(Started started);
  /// The report without its bound, which may still be being computed. Does not remember the report;
  /// for a run of one variant, whose outputs no other variant shares.
  absl::StatusOr<OutputReport> FinishMeasurement(Started& started);

  /// What one rank's part of an output, or one term of a sum over ranks, should be, in the memory
  /// of this reporter's engine, and whether it is that.
  struct Part {
    ExactValues::Value exact;  ///< The part's exact elements; the shape may be flattened.
    std::optional<BoundCheck> bound;
    std::string arithmetic;
  };
  absl::StatusOr<Part> ReportPart(const LayerResult& result, const NamedTensor& part);

  /// Compares `output` with `exact` and with the unquantized value. The caller sets the report's
  /// bound and arithmetic.
  absl::StatusOr<ReportedOutput> Measure(const NamedTensor& output,
                                         const ExactValues::Value& exact);

  /// Checks `subject` against the bound of `reported`, an output of `result`. Absent if there is no
  /// bound (of what was quantized).
  absl::StatusOr<std::optional<BoundCheck>> CheckSubject(const LayerResult& result,
                                                         const ReportedOutput& reported,
                                                         const Tensor& subject);

  /// Compares an output with that of the reference variant, whose label is `reference_label`.
  /// Absent if their dtypes differ.
  absl::StatusOr<std::optional<TensorComparison>> CompareWithReference(
      const ReportedOutput& subject, const OutputReport& reference,
      const std::string& reference_label);

 private:
  /// What an output should be.
  struct Truth {
    ExactValues::Value value;
    std::string identity;  ///< Truths with equal identities are equal.
    std::optional<OperationReference> operation;
    std::vector<Truth> parts;  ///< One for each of OutputSource::parts.
  };

  absl::StatusOr<Truth> TruthOf(const OutputSource& source, const NamedTensor& output);
  absl::StatusOr<Truth> TruthOfOperations(const OutputSource& source, const NamedTensor& output);
  absl::StatusOr<Truth> TruthOfParts(const std::vector<OutputSource>& parts,
                                     const NamedTensor& output);
  /// Equal for equal operations on equal inputs.
  absl::StatusOr<std::string> IdentityOf(const std::vector<OperationCall>& calls);
  absl::StatusOr<Measurement> StartMeasurement(const NamedTensor& output,
                                               const ExactValues::Value& exact);
  /// Begins to check `value`: this output, or another tensor in its place.
  absl::StatusOr<StartedBound> StartBound(const OutputSource& source, const Truth& truth,
                                          const Tensor& value);
  absl::StatusOr<std::optional<BoundCheck>> CheckBound(const OutputSource& source,
                                                       const Truth& truth, const Tensor& value);
  /// Everything but the bound and the identity.
  absl::StatusOr<ReportedOutput> Read(Measurement measurement);

  Engine& engine_;
  const LayerRequest& request_;
  ExactValues& exact_;
  const Cancellation* const cancellation_;
  const Requirement requirement_;
  /// By Started::identity, then by contents.
  std::map<std::string, std::map<std::string, ReportedOutput>> reported_;
  std::map<std::string, TensorComparison> compared_;  ///< By identity and the reference's bits.
};

/// Checks `value` against the bound that is derived for this GEMM, around the exact result on the
/// operands that it had. Absent if the GEMM's arithmetic is exact, whose results have one value,
/// and if its result has the values of codes: the bound of those (docs/reports.md section 4.1) is
/// about the codes that this GEMM's own result became, and `value` may have been computed
/// elsewhere.
absl::StatusOr<std::optional<BoundCheck>> CheckGemmOutput(Engine& engine, const GemmRecord& gemm,
                                                          const Tensor& value,
                                                          const Cancellation* cancellation);

/// Merges the check of another part of a tensor into `whole`, which keeps the worst.
void MergeBoundChecks(const BoundCheck& part, std::optional<BoundCheck>& whole);

/// Compares every pair of variants, output by output.
absl::StatusOr<std::vector<PairSummary>> ComparePairs(Engine& engine,
                                                      const std::vector<VariantReport>& variants,
                                                      const Cancellation* cancellation);

/// The report of output `tensor`, or null.
const OutputReport* FindOutput(const VariantReport& variant, const std::string& tensor);

}  // namespace quantgate

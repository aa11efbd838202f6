// Reports of one variant: each output against both named references, and against the reference
// variant.
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
  Tensor exact_f32;      ///< Of the subject's own operands, in the subject's shape.
  std::string identity;  ///< Equal identities: equal reports.
};

/// Reports the outputs of the variants of one run. Variants often share outputs bit for bit (the
/// forward of every override): what has been measured once is not measured again. Used by one
/// thread.
class OutputReporter {
 public:
  OutputReporter(Engine& engine, const LayerRequest& request, ExactValues& exact,
                 const Cancellation* cancellation)
      : engine_(engine), request_(request), exact_(exact), cancellation_(cancellation) {}

  /// Comparisons of one output that were begun.
  struct Measurement {
    ReportedOutput reported;  ///< What is known so far.
    ExactValues::Note note;
    Deferred<ParityReport> parity;
    Deferred<ErrorReport> error;
    std::optional<Deferred<ErrorReport>> against_unquantized;  ///< Absent: the same as `error`.
    absl::StatusOr<ReportedOutput> Finish();
  };
  /// Checks of one output that were begun, one for each GEMM; without any there is no bound.
  struct StartedBound {
    std::vector<Deferred<BoundCheck>> parts;
    absl::StatusOr<std::optional<BoundCheck>> Finish();
  };
  /// A report that was begun.
  struct Started {
    const ReportedOutput* known = nullptr;  ///< Measured before: nothing was begun.
    std::string identity;                   ///< Of the output but for its contents.
    Measurement measurement;
    StartedBound bound;
  };
  /// Begins to report `output`, an output or intermediate of `result`, which `request` gave:
  /// nothing waits for the engine, so that several are begun one after the other.
  absl::StatusOr<Started> Start(const LayerResult& result, const NamedTensor& output);
  /// The pointer stays valid as long as this object.
  absl::StatusOr<const ReportedOutput*> Finish(Started started);
  /// In a run of one variant, whose outputs no other one shares: the report, without its bound, is
  /// not remembered. The bound may still be on its way.
  absl::StatusOr<OutputReport> FinishMeasurement(Started& started);

  /// One rank's part of an output, or one term of a sum over ranks: what it should be, on this
  /// reporter's engine, and whether it is.
  struct Part {
    ExactValues::Value exact;  ///< Of the part's elements; its shape may be flattened.
    std::optional<BoundCheck> bound;
    std::string arithmetic;
  };
  absl::StatusOr<Part> ReportPart(const LayerResult& result, const NamedTensor& part);

  /// Compares `output` with what it should be and with the unquantized value: a report whose bound
  /// and arithmetic are the caller's to say.
  absl::StatusOr<ReportedOutput> Measure(const NamedTensor& output,
                                         const ExactValues::Value& exact);

  /// Holds `subject` to the bound of `reported`, an output of `result`. Nothing where there is none
  /// (a sum over no rows).
  absl::StatusOr<std::optional<BoundCheck>> CheckSubject(const LayerResult& result,
                                                         const ReportedOutput& reported,
                                                         const Tensor& subject);

  /// Compares an output with that of the reference variant, whose label is `reference_label`.
  /// Nothing where their dtypes differ.
  absl::StatusOr<std::optional<TensorComparison>> CompareWithReference(
      const ReportedOutput& subject, const OutputReport& reference,
      const std::string& reference_label);

 private:
  /// What an output should be.
  struct Truth {
    ExactValues::Value value;
    std::string identity;  ///< Equal identities: equal truths.
    std::optional<OperationReference> operation;
    std::vector<Truth> parts;  ///< Of OutputSource::parts.
  };

  absl::StatusOr<Truth> TruthOf(const OutputSource& source, const NamedTensor& output);
  absl::StatusOr<Truth> TruthOfOperations(const std::vector<OperationCall>& calls, DType dtype);
  absl::StatusOr<Truth> TruthOfParts(const std::vector<OutputSource>& parts,
                                     const NamedTensor& output);
  /// The same for equal inputs of the operations that make one output.
  absl::StatusOr<std::string> IdentityOf(const std::vector<OperationCall>& calls);
  absl::StatusOr<Measurement> StartMeasurement(const NamedTensor& output,
                                               const ExactValues::Value& exact);
  /// Of `value`, this output or another one in its place.
  absl::StatusOr<StartedBound> StartBound(const OutputSource& source, const Truth& truth,
                                          const Tensor& value);
  absl::StatusOr<std::optional<BoundCheck>> CheckBound(const OutputSource& source,
                                                       const Truth& truth, const Tensor& value);
  /// All but the bound and the identity.
  absl::StatusOr<ReportedOutput> Read(Measurement measurement);

  Engine& engine_;
  const LayerRequest& request_;
  ExactValues& exact_;
  const Cancellation* const cancellation_;
  /// By Started::identity, and by contents.
  std::map<std::string, std::map<std::string, ReportedOutput>> reported_;
  std::map<std::string, TensorComparison> compared_;  ///< By identity and the reference's bits.
};

/// The worst of checks of different parts of one tensor.
void MergeBoundChecks(const BoundCheck& part, std::optional<BoundCheck>& whole);

/// Compares every pair of variants, tensor by tensor.
absl::StatusOr<std::vector<PairSummary>> ComparePairs(Engine& engine,
                                                      const std::vector<VariantReport>& variants,
                                                      const Cancellation* cancellation);

/// The report of output `tensor`, or null.
const OutputReport* FindOutput(const VariantReport& variant, const std::string& tensor);

}  // namespace quantgate

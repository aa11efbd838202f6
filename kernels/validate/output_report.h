// Reports of one variant: each output against both named references, and against the reference
// variant.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/validate/exact_values.h"
#include "kernels/validate/run.h"

namespace quantgate {

/// An output's report and what later comparisons need.
struct ReportedOutput {
  OutputReport report;
  Tensor exact_f32;  ///< Of the subject's own operands, in the subject's shape.
};

/// Reports `output` of `result`.
absl::StatusOr<ReportedOutput> ReportOutput(Engine& engine, ExactValues& exact,
                                            const LinearResult& result, const NamedTensor& output,
                                            const Cancellation* cancellation);

/// Compares an output with that of the reference variant, whose label is `reference_label`. Nothing
/// where their dtypes differ.
absl::StatusOr<std::optional<TensorComparison>> CompareWithReference(
    Engine& engine, const ReportedOutput& subject, const OutputReport& reference,
    const std::string& reference_label, const Cancellation* cancellation);

/// Compares every pair of variants, tensor by tensor.
absl::StatusOr<std::vector<PairSummary>> ComparePairs(Engine& engine,
                                                      const std::vector<VariantReport>& variants,
                                                      const Cancellation* cancellation);

/// The report of output `tensor`, or null.
const OutputReport* FindOutput(const VariantReport& variant, const std::string& tensor);

}  // namespace quantgate

// Reports of a variant on several ranks: whole outputs are joined from the ranks' parts and
// compared with what they should be (docs/ranks.md section 5).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/validate/ranks/parallel_run.h"
#include "kernels/validate/run/output_report.h"

namespace quantgate {

/// Makes the report of one variant on several ranks. Used by one thread.
class ParallelReporter {
 public:
  /// `engine` is the run's own; `whole` reports on it the outputs of `request`. References must
  /// outlive the reporter.
  ParallelReporter(Engine& engine, OutputReporter& whole, const LayerRequest& request,
                   const Variant& variant, const ParallelStepResult& step,
                   const Cancellation* cancellation);
  ~ParallelReporter();

  /// Names of the tensors between the layer's operations that all ranks have, in order.
  std::vector<std::string> Intermediates() const;
  /// The report of one whole output or intermediate of the layer. Its exact value is joined from
  /// the exact values of the ranks' parts on the operands that they had or, for a sum over ranks,
  /// added from them.
  absl::StatusOr<ReportedOutput> Report(const std::string& output);

  /// What each rank did, by rank.
  absl::StatusOr<std::vector<VariantReport::RankReport>> Ranks();
  /// VariantReport::state, the tensors that all ranks have alike.
  absl::StatusOr<std::vector<NamedTensor>> State();
  /// Notes for the report.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  class RankReporter;
  /// How the ranks' parts make up an output.
  struct Assembly;
  struct Parts;
  /// What is known about the addends of a sum over ranks.
  struct Addends;

  Assembly AssemblyOf(const std::string& output) const;
  const LayerSpec& layer() const { return step_.ranks[0].request.layer; }
  bool divides_rows() const { return step_.ranks[0].request.parallel->divides_rows(); }

  absl::StatusOr<ReportedOutput> ReportJoined(const std::string& output, const Assembly& assembly);
  absl::StatusOr<ReportedOutput> ReportSum(const std::string& output, const Assembly& assembly);
  /// The report of `value`, the sum that ranks or copies of experts have computed.
  absl::StatusOr<ReportedOutput> FinishSum(NamedTensor value, Addends addends,
                                           std::string difference);
  /// The report of y or dx of divided experts.
  absl::StatusOr<ReportedOutput> ReportExpertRows(const std::string& output);
  /// The report of one expert's gradient, or of the sum over copies if there are several.
  absl::StatusOr<ReportedOutput> ReportExpert(const std::string& output);
  absl::StatusOr<ReportedOutput> ReportExpertSum(const std::string& output);
  /// The rows of all ranks' tokens, in the order of the whole output.
  absl::StatusOr<Tensor> JoinTokens(const std::string& output);
  absl::StatusOr<std::vector<NamedTensor>> StateOfExperts();
  void NoteDiffering(const std::vector<std::string>& states);
  absl::StatusOr<ReportedOutput> Finish(ReportedOutput reported, const std::string& arithmetic);

  /// The ranks' tensors of this name, on the host.
  absl::StatusOr<std::vector<Tensor>> PartsOf(const std::string& output);
  /// The whole tensor, in the memory of the run's engine.
  absl::StatusOr<Tensor> Join(const std::vector<Tensor>& parts, const Assembly& assembly);
  /// The first rank's part (or the first copy's; `whose` says which), which should be equal on all.
  /// If it is not, `difference` and a note say whose part differs.
  absl::StatusOr<Tensor> FirstOfEqual(const std::string& output, const std::vector<Tensor>& parts,
                                      const char* whose, std::string& difference);

  Engine& engine_;
  OutputReporter& whole_;
  const LayerRequest& request_;
  const Variant& variant_;
  const ParallelStepResult& step_;
  const Cancellation* const cancellation_;
  std::vector<std::unique_ptr<RankReporter>> ranks_;
  std::vector<std::string> notes_;
};

}  // namespace quantgate

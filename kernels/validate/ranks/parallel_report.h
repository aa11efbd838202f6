// Reports of a variant on several ranks: whole outputs from the ranks' parts, and what each should
// be (docs/ranks.md section 5).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/validate/ranks/parallel_run.h"
#include "kernels/validate/run/output_report.h"

namespace quantgate {

/// What the report of one variant on several ranks is made of. Used by one thread.
class ParallelReporter {
 public:
  /// `whole` reports on `engine`, the run's own, what `request` gives.
  ParallelReporter(Engine& engine, OutputReporter& whole, const LayerRequest& request,
                   const Variant& variant, const ParallelStepResult& step,
                   const Cancellation* cancellation);
  ~ParallelReporter();

  /// One output of the layer, whole. Its exact value is joined from those of the ranks' parts on
  /// the operands they had, or for a sum over ranks added from them.
  absl::StatusOr<ReportedOutput> Report(const std::string& output);

  /// What each rank did.
  absl::StatusOr<std::vector<VariantReport::RankReport>> Ranks();
  /// What the next step needs, where all ranks have the same.
  absl::StatusOr<std::vector<NamedTensor>> State();
  /// What a reader of the report must know beside it.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  class RankReporter;
  /// How the ranks' parts make the whole.
  struct Assembly;
  struct Parts;
  /// What is known of a sum's.
  struct Addends;

  Assembly AssemblyOf(const std::string& output) const;
  const LayerSpec& layer() const { return step_.ranks[0].request.layer; }
  bool divides_rows() const { return step_.ranks[0].request.parallel->divides_rows(); }

  absl::StatusOr<ReportedOutput> ReportJoined(const std::string& output, const Assembly& assembly);
  absl::StatusOr<ReportedOutput> ReportSum(const std::string& output, const Assembly& assembly);
  /// `value`, what ranks or copies of experts have added.
  absl::StatusOr<ReportedOutput> FinishSum(NamedTensor value, Addends addends,
                                           std::string difference);
  /// y or dx of divided experts.
  absl::StatusOr<ReportedOutput> ReportExpertRows(const std::string& output);
  /// The gradient of one of them, and where there are copies of it their sum.
  absl::StatusOr<ReportedOutput> ReportExpert(const std::string& output);
  absl::StatusOr<ReportedOutput> ReportExpertSum(const std::string& output);
  /// The tokens' rows of all ranks, in the whole's order.
  absl::StatusOr<Tensor> JoinTokens(const std::string& output);
  absl::StatusOr<std::vector<NamedTensor>> StateOfExperts();
  void NoteDiffering(const std::vector<std::string>& states);
  absl::StatusOr<ReportedOutput> Finish(ReportedOutput reported, const std::string& arithmetic);

  /// The ranks' tensors of this name, on the host.
  absl::StatusOr<std::vector<Tensor>> PartsOf(const std::string& output);
  /// What the ranks have as a whole tensor of the run's engine.
  absl::StatusOr<Tensor> Join(const std::vector<Tensor>& parts, const Assembly& assembly);
  /// The first rank's (or copy's, as `whose` says), which all have; else `difference` and a note
  /// say whose is another.
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

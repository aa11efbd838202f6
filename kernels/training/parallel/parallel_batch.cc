// What rows and columns of a batch are each rank's, and the batch from what they give.
#include <utility>

#include "kernels/layer/experts/expert_faults.h"
#include "kernels/layer/experts/expert_run.h"
#include "kernels/training/parallel/parallel_checks.h"
#include "kernels/training/parallel/parallel_member.h"

namespace quantgate {

std::vector<int64_t> ParallelSession::TokensOf(int rank, const Layout& layout) const {
  static const SeededFaults& none = *new SeededFaults();
  const SeededFaults& faults = setting_ == nullptr ? none : setting_->faults;
  const int list = rank / tp();
  const int like = faults.Has(kFaultCopiesNotDivided) ? list % ep() : list;
  std::vector<int64_t> tokens = tokens_[static_cast<size_t>(like)];
  if (layout.divides_rows) {
    const size_t count = tokens.size() / static_cast<size_t>(tp());
    const auto begin = tokens.begin() + static_cast<int64_t>(count) * (rank % tp());
    tokens = {begin, begin + static_cast<int64_t>(count)};
  }
  if (!faults.Has(kFaultExpertRowsOneOff)) return tokens;
  int64_t rows = 0;
  for (const std::vector<int64_t>& of_rank : tokens_) rows += static_cast<int64_t>(of_rank.size());
  for (int64_t& token : tokens) token = (token + 1) % rows;
  return tokens;
}

absl::StatusOr<Tensor> ParallelSession::PartOf(Engine& engine, const std::string& field,
                                               const Tensor& whole, const Layout& layout,
                                               int rank) const {
  QG_ASSIGN_OR_RETURN(Tensor part, ImportedFor(engine, whole));
  const int parts = layout.divides_rows ? tp() * dp() : dp();
  if (routes_rows()) {
    QG_ASSIGN_OR_RETURN(part, engine.GatherRows(part, TokensOf(rank, layout), nullptr));
  } else if (parts > 1) {
    const int64_t rows = part.shape()[0] / parts;
    const int place = layout.divides_rows ? rank : rank / tp();
    QG_ASSIGN_OR_RETURN(part, engine.Slice(part, 0, place * rows, rows, nullptr));
  }
  return ShardOf(engine, field, part, layout.columns, rank % tp(), tp());
}

absl::Status ParallelSession::CheckBatch(const std::string& field, const Tensor& tensor,
                                         const Layout& layout) const {
  if (!routes_rows()) {
    return CheckDividesRows(field, tensor, *spec_.parallel, layout.divides_rows);
  }
  int64_t rows = 0;
  for (const std::vector<int64_t>& tokens : tokens_) rows += static_cast<int64_t>(tokens.size());
  return CheckIsRoutedRows(field, tensor, rows);
}

absl::StatusOr<Tensor> ParallelSession::JoinBatch(const std::vector<Tensor>& parts,
                                                  const Layout& layout,
                                                  const Cancellation* cancellation) {
  std::vector<Tensor> in_rows;
  for (auto begin = parts.begin(); !layout.divides_rows && begin != parts.end(); begin += tp()) {
    QG_ASSIGN_OR_RETURN(in_rows.emplace_back(),
                        JoinParameter(layout.columns, {begin, begin + tp()}, cancellation));
  }
  if (layout.divides_rows) in_rows = parts;
  Tensor joined = in_rows[0];
  if (in_rows.size() > 1) {
    QG_ASSIGN_OR_RETURN(joined, JoinRows(engine_, in_rows, cancellation));
  }
  const bool is_left = setting_ != nullptr && setting_->faults.Has(kFaultRankOrderLeft);
  if (!routes_rows() || is_left) return joined;
  return engine_.GatherRows(joined, PlacesOf(tokens_), cancellation);
}

}  // namespace quantgate

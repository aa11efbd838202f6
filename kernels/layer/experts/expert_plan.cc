// ExpertPlan: planning where the rows of tokens are sent, and sending them.
#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/experts/expert_parallel.h"
#include "kernels/layer/layer_faults.h"

namespace quantgate {
namespace {

absl::Status CheckLayout(const ExpertOptions& options, int ranks) {
  const std::vector<int64_t>& first = options.first_expert;
  const bool ascends =
      std::adjacent_find(first.begin(), first.end(), std::greater_equal<>()) == first.end();
  if (first.size() != static_cast<size_t>(ranks) + 1 || first[0] != 0 || !ascends) {
    return Refuse("first_expert", absl::StrJoin(first, ", "),
                  absl::StrCat("must ascend from 0, with an expert at least for each of ", ranks,
                               " ranks, and end with their number"));
  }
  if (options.row_multiple >= 1) return absl::OkStatus();
  return Refuse("row_multiple", absl::StrCat(options.row_multiple), "must be at least 1");
}

absl::Status CheckRouting(const ExpertRouting& routing, int64_t experts) {
  const auto count = static_cast<int64_t>(routing.experts.size());
  if (routing.choices < 1 || count % routing.choices != 0) {
    return Refuse("choices", absl::StrCat(routing.choices),
                  absl::StrCat("must be at least 1 and divide the ", count, " expert numbers"));
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t expert = routing.experts[static_cast<size_t>(i)];
    if (expert >= 0 && expert < experts) continue;
    return Refuse(absl::StrCat("experts[", i, "]"), absl::StrCat(expert),
                  absl::StrCat("must be one of ", experts));
  }
  const Tensor& weights = routing.weights;
  const bool is_right = weights.has_value() && weights.dtype() == DType::kF32 &&
                        weights.shape() == Shape{routing.tokens(), routing.choices};
  if (is_right) return absl::OkStatus();
  return Refuse("weights", weights.has_value() ? TensorText(weights) : "absent",
                absl::StrCat("must be f32[", routing.tokens(), "x", routing.choices, "]"));
}

absl::StatusOr<Tensor> NumbersOf(const std::vector<int64_t>& numbers) {
  return Tensor::FromBytes(DType::kI64, {static_cast<int64_t>(numbers.size())},
                           std::as_bytes(std::span(numbers)));
}

/// Exchanges how many rows each member sends to each of this rank's experts.
absl::StatusOr<std::vector<std::vector<int64_t>>> ExchangeCounts(ProcessGroup& group,
                                                                 const ExpertOptions& options,
                                                                 const std::vector<int64_t>& own,
                                                                 const Cancellation* cancellation) {
  std::vector<Tensor> parts;
  for (int member = 0; member < group.size(); ++member) {
    const auto begin = own.begin() + options.first_expert[member];
    const auto end = own.begin() + options.first_expert[member + 1];
    QG_ASSIGN_OR_RETURN(Tensor part, NumbersOf({begin, end}));
    QG_ASSIGN_OR_RETURN(part, group.engine().ToDevice(part, cancellation));
    parts.push_back(std::move(part));
  }
  QG_ASSIGN_OR_RETURN(const std::vector<Tensor> received, group.AllToAll(parts));
  std::vector<std::vector<int64_t>> counts;
  for (const Tensor& part : received) {
    QG_ASSIGN_OR_RETURN(const Tensor host, group.engine().ToHost(part, cancellation));
    counts.emplace_back(host.as<int64_t>(), host.as<int64_t>() + host.element_count());
  }
  return counts;
}

/// The token of each choice.
std::vector<int64_t> TokensOf(const std::vector<int64_t>& choices, int64_t per_token) {
  std::vector<int64_t> tokens = choices;
  for (int64_t& token : tokens) token /= per_token;
  return tokens;
}

}  // namespace

/// Sends to each member the rows of its experts, ordered by expert, then token, then choice.
void ExpertPlan::PlanSending(const ExpertOptions& options, const ExpertRouting& routing) {
  std::vector<int64_t> order(routing.experts.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return routing.experts[static_cast<size_t>(a)] < routing.experts[static_cast<size_t>(b)];
  });
  positions_.resize(order.size());
  sent_choices_.resize(options.first_expert.size() - 1);
  size_t member = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const auto choice = static_cast<size_t>(order[i]);
    while (routing.experts[choice] >= options.first_expert[member + 1]) ++member;
    sent_choices_[member].push_back(order[i]);
    // Rows come back in the order in which they were sent.
    positions_[choice] = static_cast<int64_t>(i);
  }
  choices_ = routing.choices;
  weights_ = routing.weights;
}

/// `counts`: rows by [member][expert of this rank]. Received rows are ordered by member, then
/// expert; experts take them by expert, then member, then padding.
void ExpertPlan::PlanReceiving(const std::vector<std::vector<int64_t>>& counts,
                               const ExpertOptions& options, const SeededFaults& faults) {
  const size_t members = counts.size(), experts = counts[0].size();
  std::vector<std::vector<int64_t>> begins(members);  // [member][expert] in what arrived.
  int64_t arrived = 0;
  for (size_t member = 0; member < members; ++member) {
    received_from_.push_back(arrived);
    for (const int64_t count : counts[member]) {
      begins[member].push_back(arrived);
      arrived += count;
    }
    received_from_.back() = arrived - received_from_.back();
  }
  returned_rows_.resize(static_cast<size_t>(arrived));
  for (size_t expert = 0; expert < experts; ++expert) {
    const size_t first = expert_rows_.size();
    for (size_t i = 0; i < members; ++i) {
      const size_t member = faults.Has(kFaultSourcesReversed) ? members - 1 - i : i;
      for (int64_t row = 0; row < counts[member][expert]; ++row) {
        const int64_t at = begins[member][expert] + row;
        returned_rows_[static_cast<size_t>(at)] = static_cast<int64_t>(expert_rows_.size());
        expert_rows_.push_back(at);
      }
    }
    while (static_cast<int64_t>(expert_rows_.size() - first) % options.row_multiple != 0) {
      expert_rows_.push_back(kNoRow);
    }
    m_splits_.push_back(static_cast<int64_t>(expert_rows_.size() - first));
  }
}

absl::StatusOr<ExpertPlan> ExpertPlan::Create(ProcessGroup& group, const ExpertOptions& options,
                                              const ExpertRouting& routing,
                                              const Cancellation* cancellation) {
  QG_RETURN_IF_ERROR(CheckLayout(options, group.size()));
  QG_RETURN_IF_ERROR(CheckRouting(routing, options.first_expert.back()));
  ExpertPlan plan;
  plan.combine_ = options.combine;
  plan.cancellation_ = cancellation;
  plan.PlanSending(options, routing);
  std::vector<int64_t> own(static_cast<size_t>(options.first_expert.back()));
  for (const int64_t expert : routing.experts) ++own[static_cast<size_t>(expert)];
  QG_ASSIGN_OR_RETURN(const auto counts, ExchangeCounts(group, options, own, cancellation));
  plan.PlanReceiving(counts, options, group.faults());
  return plan;
}

absl::StatusOr<Tensor> ExpertPlan::Exchange(ProcessGroup& group,
                                            const std::vector<Tensor>& sent) const {
  QG_ASSIGN_OR_RETURN(const std::vector<Tensor> received, group.AllToAll(sent));
  return group.engine().ConcatenateRows(received, cancellation_);
}

absl::StatusOr<Tensor> ExpertPlan::Dispatch(ProcessGroup& group, const Tensor& rows) const {
  std::vector<Tensor> sent;
  for (const std::vector<int64_t>& choices : sent_choices_) {
    QG_ASSIGN_OR_RETURN(
        Tensor part, group.engine().GatherRows(rows, TokensOf(choices, choices_), cancellation_));
    sent.push_back(std::move(part));
  }
  QG_ASSIGN_OR_RETURN(const Tensor arrived, Exchange(group, sent));
  return group.engine().GatherRows(arrived, expert_rows_, cancellation_);
}

absl::StatusOr<QuantizedTensor> ExpertPlan::Dispatch(ProcessGroup& group,
                                                     const QuantizedTensor& rows) const {
  if (!rows.rowwise.has_value() || TraitsOf(rows.rowwise->format).scales != ScaleKind::kE8m0) {
    return Refuse("payload", "of other codes",
                  "rowwise mxfp8 codes travel, whose blocks lie within a row; others do not");
  }
  QuantizedTensor moved = rows;
  moved.columnwise.reset();
  QG_ASSIGN_OR_RETURN(moved.rowwise->data, Dispatch(group, rows.rowwise->data));
  QG_ASSIGN_OR_RETURN(moved.rowwise->scale_inv, Dispatch(group, rows.rowwise->scale_inv));
  moved.shape = {static_cast<int64_t>(expert_rows_.size()), rows.shape.back()};
  return moved;
}

absl::StatusOr<Tensor> ExpertPlan::DispatchWeighted(ProcessGroup& group, const Tensor& rows) const {
  Engine& engine = group.engine();
  const int64_t count = static_cast<int64_t>(positions_.size());
  QG_ASSIGN_OR_RETURN(const Tensor weights, weights_.Reinterpret(DType::kF32, {count}));
  std::vector<Tensor> sent;
  for (const std::vector<int64_t>& choices : sent_choices_) {
    QG_ASSIGN_OR_RETURN(const Tensor part,
                        engine.GatherRows(rows, TokensOf(choices, choices_), cancellation_));
    QG_ASSIGN_OR_RETURN(const Tensor factors, engine.GatherRows(weights, choices, cancellation_));
    QG_ASSIGN_OR_RETURN(Tensor weighted, engine.ScaleRows(part, factors, cancellation_));
    sent.push_back(std::move(weighted));
  }
  QG_ASSIGN_OR_RETURN(const Tensor arrived, Exchange(group, sent));
  return engine.GatherRows(arrived, expert_rows_, cancellation_);
}

absl::StatusOr<Tensor> ExpertPlan::Combine(ProcessGroup& group, const Tensor& rows,
                                           bool is_weighted) const {
  Engine& engine = group.engine();
  std::vector<Tensor> sent;
  size_t begin = 0;
  for (const int64_t count : received_from_) {
    const std::span<const int64_t> numbers(returned_rows_.data() + begin,
                                           static_cast<size_t>(count));
    QG_ASSIGN_OR_RETURN(Tensor part, engine.GatherRows(rows, numbers, cancellation_));
    sent.push_back(std::move(part));
    begin += static_cast<size_t>(count);
  }
  QG_ASSIGN_OR_RETURN(const Tensor back, Exchange(group, sent));
  RowSums sums = {.rows = back,
                  .positions = positions_,
                  .choices = choices_,
                  .accumulation = combine_,
                  .out = rows.dtype()};
  if (is_weighted) sums.weights = weights_;
  return engine.SumRows(sums, cancellation_);
}

}  // namespace quantgate

#include "kernels/layer/linear/linear_overlap.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"
#include "kernels/layer/linear/linear_check.h"

namespace quantgate {

OverlapPlan OverlapOf(const OverlapPlan& whole, const LinearUnit& unit, bool defers_wgrad) {
  const LinearParallel& parallel = unit.parallel;
  const LinearDataflow& flow = unit.flow;
  if (parallel.rows.empty() || flow.is_empty) return {};
  OverlapPlan plan = whole;
  const bool gathers_for_wgrad = parallel.is_column() && plan.dgrad == OverlapMethod::kBulk;
  if (!flow.needs_dx || (gathers_for_wgrad && !flow.needs_dw)) plan.dgrad = OverlapMethod::kNone;
  const bool hides_in_wgrad = parallel.is_column();
  if (!flow.needs_dx || !flow.needs_dw || (hides_in_wgrad && defers_wgrad)) {
    plan.wgrad = OverlapMethod::kNone;
  }
  return plan;
}

namespace {

/// Of a refusal about a method that nobody asked for by its name, the rule alone.
std::string WhyNot(const absl::Status& status) {
  const std::optional<Refusal> refusal = RefusalOf(status);
  const bool is_of_method =
      refusal.has_value() && absl::StartsWith(refusal->field, "overlap.") && !refusal->rule.empty();
  return is_of_method ? refusal->rule : std::string(status.message());
}

}  // namespace

std::vector<std::string> ResolveOverlap(const ParallelStep& step, const OverlapFacts& facts,
                                        bool defers_wgrad, LinearUnit& unit) {
  constexpr std::array kRoles = {GemmRole::kFprop, GemmRole::kDgrad, GemmRole::kWgrad};
  OverlapPlan& plan = unit.parallel.overlap;
  const OverlapPlan wanted = OverlapOf(
      unit.parallel.is_column() ? step.column_overlap : step.row_overlap, unit, defers_wgrad);
  plan = wanted;
  for (const GemmRole role : kRoles) {
    if (wanted.GivesWay(role)) plan.SetMethod(role, OverlapMethod::kNone);
  }
  std::vector<std::pair<std::string, std::vector<std::string>>> reasons;  // And the GEMMs.
  for (const GemmRole role : kRoles) {
    if (!wanted.GivesWay(role) || wanted.MethodOf(role) == OverlapMethod::kNone) continue;
    // What would run beside dgrad's ring goes with it.
    const bool is_beside = wanted.MethodOf(role) == OverlapMethod::kExternal;
    if (is_beside && wanted.dgrad != OverlapMethod::kNone && plan.dgrad == OverlapMethod::kNone) {
      reasons.back().second.emplace_back(GemmRoleName(role));
      continue;
    }
    plan.SetMethod(role, wanted.MethodOf(role));
    absl::Status status = CheckOverlapPlan(plan, facts, *unit.recipe);
    if (status.ok()) status = CheckLinearUnitOverlap(unit, step.profile);
    if (status.ok()) continue;
    plan.SetMethod(role, OverlapMethod::kNone);
    if (reasons.empty() || reasons.back().first != WhyNot(status)) {
      reasons.push_back({WhyNot(status), {}});
    }
    reasons.back().second.emplace_back(GemmRoleName(role));
  }
  std::vector<std::string> notes;
  for (const auto& [reason, roles] : reasons) {
    notes.push_back(unit.names.Stage(absl::StrCat(absl::StrJoin(roles, ", "),
                                                  roles.size() == 1 ? " runs" : " run",
                                                  " without overlap: ", reason)));
  }
  return notes;
}

std::vector<Tensor> TravellingParts(const KeptOperand& shard, Usage usage) {
  const std::optional<QuantizedCopy>& copy = shard.codes.copy(usage);
  if (!copy.has_value()) return {shard.original};
  // A scale of the whole tensor need not be gathered.
  if (TraitsOf(copy->format).scales == ScaleKind::kTensor) return {copy->data};
  return {copy->data, copy->scale_inv};
}

KeptOperand JoinedOperand(const KeptOperand& shard, Usage usage, std::span<const Tensor> parts,
                          int64_t rows) {
  KeptOperand whole;
  if (!shard.codes.copy(usage).has_value()) {
    whole.original = parts[0];
    return whole;
  }
  QuantizedTensor& codes = whole.codes;
  codes.source_dtype = shard.codes.source_dtype;
  codes.shape = shard.codes.shape;
  codes.shape[0] = rows;
  std::optional<QuantizedCopy>& copy = codes.copy(usage);
  copy = shard.codes.copy(usage);
  copy->data = parts[0];
  if (parts.size() > 1) copy->scale_inv = parts[1];
  return whole;
}

/// The owner is the stage. Units of the same name, as layers of one kind have them, share a buffer,
/// unless the scales of their GEMMs are of different kinds.
OverlapName LinearOverlap::NameOf(const GemmRecord& record) const {
  const LinearNames& names = unit_.names;
  const std::string unit = names.prefix.empty() ? std::string(ParallelModeName(unit_.parallel.mode))
                                                : names.prefix.substr(0, names.prefix.size() - 1);
  const std::string role(GemmRoleName(record.role));
  return {names.Stage(role), absl::StrCat(unit, "_", role),
          std::string(ScaleModeName(record.desc.a.scaling))};
}

absl::Status LinearOverlap::Record(GemmRecord record, const OverlapName& name, GemmResult result,
                                   OverlapTimeline timeline) {
  record.result = std::move(result);
  record.pieces = static_cast<int>(std::count_if(
      timeline.tasks.begin(), timeline.tasks.end(),
      [](const TaskRecord& task) { return task.resource == OverlapResource::kCompute; }));
  return recorder_.RecordGemm(std::move(record), {name.owner, std::move(timeline)});
}

absl::StatusOr<OverlappedGather> LinearOverlap::AllGatherGemm(GemmRecord record,
                                                              std::vector<Tensor> beside) {
  const AllGatherGemmCall call{.name = NameOf(record),
                               .gemm = record.desc,
                               .method = plan().MethodOf(record.role),
                               .aggregate = plan().aggregate,
                               .pieces = plan().pieces,
                               .beside = std::move(beside)};
  QG_ASSIGN_OR_RETURN(GatheredGemm done, Run(&Overlap::AllGatherGemm, call));
  OverlappedGather result{done.gemm.d, {}};
  QG_ASSIGN_OR_RETURN(result.parts, done.gathered.Take());
  GemmOperand& a = record.desc.a;
  a.data = result.parts[0];
  if (a.scaling == ScaleMode::kMx32) a.scale_inv = result.parts[1];
  QG_RETURN_IF_ERROR(Record(std::move(record), call.name, std::move(done.gemm), done.timeline));
  return result;
}

absl::StatusOr<Tensor> LinearOverlap::ReduceScatterGemm(GemmRecord record) {
  const ReduceScatterGemmCall call{.name = NameOf(record),
                                   .gemm = record.desc,
                                   .rows = unit_.parallel.rows,
                                   .method = plan().MethodOf(record.role),
                                   .profile = step_.profile,
                                   .pieces = plan().pieces,
                                   .splits = plan().splits};
  QG_ASSIGN_OR_RETURN(ScatteredGemm done, Run(&Overlap::ReduceScatterGemm, call));
  done.gemm.d = done.partials.front();
  if (done.partials.size() > 1) {
    QG_ASSIGN_OR_RETURN(done.gemm.d, recorder_.engine().ConcatenateColumns(
                                         done.partials, recorder_.cancellation()));
  }
  QG_RETURN_IF_ERROR(Record(std::move(record), call.name, std::move(done.gemm), done.timeline));
  return done.y;
}

absl::StatusOr<OverlappedGather> LinearOverlap::BulkAllGather(GemmRecord record,
                                                              std::vector<Tensor> shard) {
  const BulkAllGatherCall call{
      .name = NameOf(record), .gemm = record.desc, .shard = std::move(shard)};
  QG_ASSIGN_OR_RETURN(GatheredGemm done, Run(&Overlap::BulkAllGather, call));
  OverlappedGather result{done.gemm.d, {}};
  QG_ASSIGN_OR_RETURN(result.parts, done.gathered.Take());
  QG_RETURN_IF_ERROR(Record(std::move(record), call.name, std::move(done.gemm), done.timeline));
  return result;
}

absl::StatusOr<OverlappedReduction> LinearOverlap::BulkReduceScatter(GemmRecord record,
                                                                     const Tensor& partial) {
  const BulkReduceScatterCall call{.name = NameOf(record),
                                   .gemm = record.desc,
                                   .partial = partial,
                                   .rows = unit_.parallel.rows,
                                   .profile = step_.profile};
  QG_ASSIGN_OR_RETURN(ScatteredGemm done, Run(&Overlap::BulkReduceScatter, call));
  const OverlappedReduction result{done.gemm.d, done.y};
  QG_RETURN_IF_ERROR(Record(std::move(record), call.name, std::move(done.gemm), done.timeline));
  return result;
}

}  // namespace quantgate

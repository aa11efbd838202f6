// ParallelSession: dividing a batch over the ranks, joining their outputs, and finding tensors of
// their states.
#include "kernels/training/parallel/parallel_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/base/refusal.h"
#include "kernels/layer/experts/expert_run.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/layer/layer_program.h"
#include "kernels/training/parallel/parallel_checks.h"
#include "kernels/training/parallel/parallel_member.h"

namespace quantgate {
absl::StatusOr<ParallelSession::OutputDivision> ParallelSession::DivisionOf(
    const std::string& output) const {
  if (output == "y") return OutputDivision{true, OutputLayout()};
  if (output == "dx") return OutputDivision{true, InputLayout()};
  for (size_t i = 0; i < spec_.layers.size(); ++i) {
    const SessionLayer& layer = spec_.layers[i];
    absl::string_view within = output;
    if (!absl::ConsumePrefix(&within, layer.name + ".")) continue;
    // Every rank of a copy has gathered norm_out.
    if (within == "norm_out") return OutputDivision{true, {}};
    for (const LayerParameter& parameter : ParametersOf(layer.spec)) {
      if (parameter.gradient != within) continue;
      return OutputDivision{false,
                            {ParameterShardRule(layer.spec, parameter.name), false},
                            OwnerOf(i, parameter.name)};
    }
  }
  return absl::InternalError(absl::StrCat("output ", output, " of no layer"));
}

int ParallelSession::OwnerOf(size_t layer, const std::string& name) const {
  if (!DividesExperts(spec_, layer)) return -1;
  const std::vector<int64_t> first = DivideExperts(spec_.layers[layer].spec, ep()).first_expert;
  const auto next = std::upper_bound(first.begin(), first.end(), ParameterName::Parse(name).expert);
  return static_cast<int>(next - first.begin()) - 1;
}

int ParallelSession::FirstWithSamePart(const OutputDivision& division, int rank) const {
  const Layout& layout = division.layout;
  const bool is_whole = !layout.divides_rows && layout.columns.dim == -1;
  if (division.owner >= 0) return division.owner;
  if (division.is_of_batch) return is_whole ? rank / tp() * tp() : rank;
  return is_whole ? 0 : rank % tp();
}

std::vector<std::string> ParallelSession::OutputNames(
    const std::vector<SessionStepResult>& results) const {
  std::vector<std::string> names;
  std::set<std::string> gradients;
  for (const SessionStepResult& result : results) {
    for (const NamedTensor& output : result.outputs) gradients.insert(output.name);
  }
  // Rank 0's order. The gradients of all ranks' experts of a layer come where rank 0's first does,
  // or at the end if rank 0 gives none.
  const auto add = [&](const std::string& name) {
    if (gradients.erase(name) != 0) names.push_back(name);
  };
  const auto add_layer = [&](const SessionLayer& layer) {
    for (const LayerParameter& parameter : ParametersOf(layer.spec)) {
      add(absl::StrCat(layer.name, ".", parameter.gradient));
    }
  };
  for (const NamedTensor& output : results[0].outputs) {
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      const bool is_of_layer = absl::StartsWith(output.name, spec_.layers[i].name + ".");
      if (is_of_layer && DividesExperts(spec_, i)) add_layer(spec_.layers[i]);
    }
    add(output.name);
  }
  for (const SessionLayer& layer : spec_.layers) add_layer(layer);
  return names;
}

absl::StatusOr<Tensor> ParallelSession::JoinOutput(const std::string& name,
                                                   const std::vector<SessionStepResult>& results,
                                                   const Cancellation* cancellation,
                                                   SessionStepResult& whole) {
  QG_ASSIGN_OR_RETURN(const OutputDivision division, DivisionOf(name));
  std::vector<Tensor> parts;
  std::vector<Fingerprint> fingerprints(results.size());
  for (size_t rank = 0; rank < results.size(); ++rank) {
    const std::vector<NamedTensor>& outputs = results[rank].outputs;
    const auto own = std::find_if(outputs.begin(), outputs.end(),
                                  [&](const NamedTensor& output) { return output.name == name; });
    const bool should_have = division.owner < 0 || division.owner == static_cast<int>(rank) % ep();
    if ((own != outputs.end()) != should_have) {
      return absl::InternalError(absl::StrCat("output ", name, ": rank ", rank,
                                              should_have ? " has none" : " has another's"));
    }
    if (!should_have) continue;
    QG_ASSIGN_OR_RETURN(parts.emplace_back(),
                        members_[rank]->engine->ToHost(own->tensor, cancellation));
    const auto index = static_cast<size_t>(own - outputs.begin());
    fingerprints[rank] = whole.ranks[rank].outputs[index].fingerprint;
    const int first = FirstWithSamePart(division, static_cast<int>(rank));
    if (fingerprints[rank] == fingerprints[static_cast<size_t>(first)]) continue;
    whole.rank_differences.push_back(absl::StrCat(name, ": ranks ", first, " and ", rank,
                                                  " have the same part of it, and rank ", rank,
                                                  "'s bits are others"));
  }
  if (division.is_of_batch) return JoinBatch(parts, division.layout, cancellation);
  return JoinParameter(division.layout.columns, parts, cancellation);
}

absl::StatusOr<SessionStepResult> ParallelSession::Joined(std::vector<SessionStepResult> results,
                                                          const Cancellation* cancellation) {
  SessionStepResult whole;
  whole.notes = results[0].notes;
  for (size_t rank = 0; rank < results.size(); ++rank) {
    Engine& engine = *members_[rank]->engine;
    RankStepRecords& records = whole.ranks.emplace_back();
    records.device = members_[rank]->device;
    for (const NamedTensor& output : results[rank].outputs) {
      QG_ASSIGN_OR_RETURN(const Fingerprint fingerprint,
                          engine.FingerprintOf(output.tensor, cancellation));
      records.outputs.push_back(
          {output.name, output.tensor.dtype(), output.tensor.shape(), fingerprint});
    }
    records.records = std::move(static_cast<StepRecords&>(results[rank]));
  }
  for (const std::string& name : OutputNames(results)) {
    QG_ASSIGN_OR_RETURN(Tensor joined, JoinOutput(name, results, cancellation, whole));
    whole.outputs.push_back({name, std::move(joined)});
  }
  return whole;
}

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

absl::StatusOr<std::vector<StateTensor>> ParallelSession::Describe(
    const Cancellation* cancellation) {
  std::vector<StateTensor> all;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    QG_ASSIGN_OR_RETURN(std::vector<StateTensor> tensors,
                        members_[rank]->session->Describe(cancellation));
    for (StateTensor& tensor : tensors) {
      tensor.name = absl::StrCat("rank", rank, ".", tensor.name);
      all.push_back(std::move(tensor));
    }
  }
  return all;
}

absl::StatusOr<Tensor> ParallelSession::PartOfPlace(size_t layer, const std::string& parameter,
                                                    int place, const Cancellation* cancellation) {
  const std::string name = absl::StrCat(spec_.layers[layer].name, ".", parameter);
  const bool has_rows = spec_.parallel->fully_sharded && IsWeight(parameter);
  const int owner = OwnerOf(layer, parameter);
  const auto first = static_cast<size_t>(owner < 0 ? place : owner);
  const auto next = static_cast<size_t>(owner < 0 ? tp() : ep());
  std::vector<Tensor> rows;
  for (size_t rank = first; rank < (has_rows ? members_.size() : first + 1); rank += next) {
    const Member& member = *members_[rank];
    QG_ASSIGN_OR_RETURN(const Tensor part, member.session->Find(name, cancellation));
    QG_ASSIGN_OR_RETURN(rows.emplace_back(), member.engine->ToHost(part, cancellation));
  }
  return rows.size() == 1 ? rows[0] : JoinRows(engine_, rows, cancellation);
}

absl::StatusOr<Tensor> ParallelSession::Find(const std::string& name,
                                             const Cancellation* cancellation) {
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    absl::string_view own = name;
    if (!absl::ConsumePrefix(&own, absl::StrCat("rank", rank, "."))) continue;
    QG_ASSIGN_OR_RETURN(const Tensor tensor,
                        members_[rank]->session->Find(std::string(own), cancellation));
    QG_ASSIGN_OR_RETURN(const Tensor host, members_[rank]->engine->ToHost(tensor, cancellation));
    return engine_.ToDevice(host, cancellation);
  }
  for (size_t i = 0; i < spec_.layers.size(); ++i) {
    const SessionLayer& layer = spec_.layers[i];
    absl::string_view within = name;
    if (!absl::ConsumePrefix(&within, layer.name + ".")) continue;
    const std::string parameter(within);
    const std::vector<LayerParameter> known = ParametersOf(layer.spec);
    const bool is_parameter =
        std::any_of(known.begin(), known.end(),
                    [&](const LayerParameter& each) { return each.name == parameter; });
    if (!is_parameter) continue;
    std::vector<Tensor> parts;
    for (int place = 0; place < tp(); ++place) {
      QG_ASSIGN_OR_RETURN(parts.emplace_back(), PartOfPlace(i, parameter, place, cancellation));
    }
    return JoinParameter(ParameterShardRule(layer.spec, parameter), parts, cancellation);
  }
  return StatusOf({.code = absl::StatusCode::kNotFound,
                   .field = "tensor",
                   .value = name,
                   .rule = "the session has no parameter of that name, and its ranks' own tensors "
                           "begin with rank0., rank1., ..."});
}

absl::StatusOr<Tensor> ParallelSession::JoinParameter(const ShardRule& rule,
                                                      const std::vector<Tensor>& parts,
                                                      const Cancellation* cancellation) {
  if (tp() == 1 || rule.dim == -1) return engine_.ToDevice(parts[0], cancellation);
  return JoinShards(engine_, {parts.begin(), parts.begin() + tp()}, rule, cancellation);
}

}  // namespace quantgate

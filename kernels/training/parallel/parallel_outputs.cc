// Outputs of a step, whole again, and parts that ranks should have alike.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/layer/experts/expert_run.h"
#include "kernels/layer/layer_program.h"
#include "kernels/layer/parameter_name.h"
#include "kernels/training/parallel/parallel_member.h"

namespace quantgate {

absl::StatusOr<ParallelSession::Division> ParallelSession::DivisionOf(
    const std::string& output) const {
  if (output == "y") return Division{true, OutputLayout()};
  if (output == "dx") return Division{true, InputLayout()};
  for (size_t i = 0; i < spec_.layers.size(); ++i) {
    const SessionLayer& layer = spec_.layers[i];
    absl::string_view within = output;
    if (!absl::ConsumePrefix(&within, layer.name + ".")) continue;
    // Every rank of a copy has gathered it.
    if (within == "norm_out") return Division{true, {}};
    for (const LayerParameter& parameter : ParametersOf(layer.spec)) {
      if (parameter.gradient != within) continue;
      return Division{false,
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

int ParallelSession::FirstWithSamePart(const Division& division, int rank) const {
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
  // Rank 0's order. Of divided experts all ranks' stand where the first one's does, or, where rank
  // 0 gives none, at the end.
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
  QG_ASSIGN_OR_RETURN(const Division division, DivisionOf(name));
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

}  // namespace quantgate

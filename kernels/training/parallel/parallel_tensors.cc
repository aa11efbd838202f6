// Tensors of the ranks' states by name: each rank's own, and parameters put together.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/base/refusal.h"
#include "kernels/layer/layer_program.h"
#include "kernels/training/parallel/parallel_member.h"

namespace quantgate {

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

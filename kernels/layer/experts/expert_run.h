// A step of a grouped_linear whose experts are divided over the ranks of a group, with the rows of
// each expert coming from all of them (docs/ranks.md section 8): what RunLayer does on one
// rank, with its bits. Or of several copies of it, which divide the rows and sum their gradients.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/comm/group/process_group.h"
#include "kernels/layer/experts/expert_parallel.h"
#include "kernels/layer/layer.h"

namespace quantgate {

/// Who has what of a grouped_linear. Every rank begins with an even part of each expert's rows, the
/// first ranks with one more, as tokens of its own that are routed to that expert.
struct ExpertDivision {
  std::vector<int64_t> first_expert;         ///< Rank r has [first_expert[r], first_expert[r + 1]).
  std::vector<int64_t> first_row;            ///< Of each expert, and the number of rows.
  std::vector<std::vector<int64_t>> tokens;  ///< Rows of x that are each rank's, ascending.
};
/// For 1 to as many ranks as there are experts.
ExpertDivision DivideExperts(const LayerSpec& layer, int ranks);

/// A grouped_linear with the m_splits of one copy's rows: an even part of each expert's, the first
/// copies with one more. The copy's ranks divide them as those of a layer of its own.
LayerSpec LayerOfCopy(LayerSpec layer, int copies, int copy);
/// Those rows of the whole x, ascending.
std::vector<int64_t> RowsOfCopy(const LayerSpec& layer, int copies, int copy);
/// Rows of the whole x that are each rank's, by rank: place r % ranks of copy r / ranks.
std::vector<std::vector<int64_t>> TokensOfCopies(const LayerSpec& layer, int ranks, int copies);
/// Where rows are after `parts`, rows of one tensor in any order, were put one after the other.
std::vector<int64_t> PlacesOf(const std::vector<std::vector<int64_t>>& parts);

/// Each token's only expert, with weight 1; `tokens` are rows of the divided x.
absl::StatusOr<ExpertRouting> RoutingOf(const ExpertDivision& division,
                                        const std::vector<int64_t>& tokens);

/// "dw.1", "weight.1 workspace" of a rank whose first expert is `first`, as the whole layer calls
/// it; a name without an expert's number as it is.
std::string WithExpertOfWhole(const std::string& name, int64_t first);

/// The request of one rank's experts, whose names begin with 0: rows as one rank would give them.
/// `x` and `grad_output` are those rows' alone; an absent grad_output is of a forward.
LayerRequest ExpertsOfRank(const LayerRequest& whole, const ExpertDivision& division, int rank,
                           Tensor x, Tensor grad_output);

/// What a rank calls.
struct ExpertGroups {
  ProcessGroup* experts;           ///< The ranks of its copy, one of them by itself at least.
  ProcessGroup* copies = nullptr;  ///< Those with the same experts; null: there is one copy.
  ReductionProfile profile = {};   ///< Of sums over them.
  std::shared_ptr<const ParallelStep> step = nullptr;  ///< For its amax groups; null: none.
};

struct ExpertStep {
  LayerRequest request;  ///< ExpertsOfRank.
  /// Of that request, but y and dx are this rank's tokens', and gradients sums over the copies.
  LayerResult result;
  // Rows of the whole x as a matrix: of this rank's tokens, and of its experts.
  std::vector<int64_t> tokens = {};
  std::vector<int64_t> rows = {};
  std::vector<NamedTensor> own_gradients = {};  ///< Of several copies, what this one added.
};
/// `whole`, which CheckLayer accepts, has its tensors in the engine's memory or on the host;
/// without main gradients where there are several copies. Collective.
absl::StatusOr<ExpertStep> RunExperts(Engine& engine, const ExpertGroups& groups,
                                      const LayerRequest& whole, const Recipe& recipe,
                                      const Arithmetic& arithmetic,
                                      const Cancellation* cancellation);

}  // namespace quantgate

// A step of a grouped_linear whose experts are divided over the ranks of a group; each expert's
// rows come from all ranks (docs/ranks.md section 8). Gives the bits of RunLayer on one rank.
// There may be several copies of the layer, which divide the rows and sum their gradients.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/comm/group/process_group.h"
#include "kernels/layer/experts/expert_parallel.h"
#include "kernels/layer/layer.h"

namespace quantgate {

/// What each rank has of a grouped_linear. Every rank begins with an even part of each expert's
/// rows (the first ranks with one more) as its tokens, which are routed to that expert.
struct ExpertDivision {
  std::vector<int64_t> first_expert;         ///< Rank r has [first_expert[r], first_expert[r + 1]).
  std::vector<int64_t> first_row;            ///< By expert; at the end the number of rows.
  std::vector<std::vector<int64_t>> tokens;  ///< By rank: the rows of x that it has, ascending.
};
/// `ranks`: from 1 to the number of experts.
ExpertDivision DivideExperts(const LayerSpec& layer, int ranks);

/// The layer with the m_splits of one copy: an even part of each expert's rows, the first copies
/// with one more. The copy's ranks divide those rows as if the copy were the whole layer.
LayerSpec LayerOfCopy(LayerSpec layer, int copies, int copy);
/// The rows of the whole x that this copy has, ascending.
std::vector<int64_t> RowsOfCopy(const LayerSpec& layer, int copies, int copy);
/// The rows of the whole x that each rank has, by rank; rank r is place r % ranks of copy r /
/// ranks.
std::vector<std::vector<int64_t>> TokensOfCopies(const LayerSpec& layer, int ranks, int copies);
/// The inverse permutation: by row of the whole tensor, its place in the concatenated `parts`.
std::vector<int64_t> PlacesOf(const std::vector<std::vector<int64_t>>& parts);

/// Routes each token to its only expert, with weight 1. `tokens` are rows of the divided x.
absl::StatusOr<ExpertRouting> RoutingOf(const ExpertDivision& division,
                                        const std::vector<int64_t>& tokens);

/// The whole layer's name for what a rank calls "dw.1" or "weight.1 workspace"; `first` is the
/// rank's first expert. A name without an expert's number is returned as it is.
std::string WithExpertOfWhole(const std::string& name, int64_t first);

/// The request of one rank's experts, which are numbered from 0. `x` and `grad_output` have only
/// their rows, in the order of the whole layer. An absent grad_output means forward only.
LayerRequest ExpertsOfRank(const LayerRequest& whole, const ExpertDivision& division, int rank,
                           Tensor x, Tensor grad_output);

/// The groups of one rank.
struct ExpertGroups {
  ProcessGroup* experts;           ///< The ranks of its copy; it may be alone.
  ProcessGroup* copies = nullptr;  ///< The ranks with the same experts; null if there is one copy.
  ReductionProfile profile = {};   ///< How gradients are summed over the copies.
  std::shared_ptr<const ParallelStep> step = nullptr;  ///< Names the amax groups; null if none.
};

struct ExpertStep {
  LayerRequest request;  ///< ExpertsOfRank.
  /// The result of `request`, except that y and dx are those of this rank's tokens and gradients
  /// are sums over the copies.
  LayerResult result;
  // Row numbers in the whole x, as a matrix.
  std::vector<int64_t> tokens = {};             ///< The rows of this rank's tokens.
  std::vector<int64_t> rows = {};               ///< The rows of this rank's experts.
  std::vector<NamedTensor> own_gradients = {};  ///< This copy's summands, if there are several.
};
/// Runs this rank's part of `whole`, which CheckLayer accepts; its tensors are in the engine's
/// memory or on the host. Main gradients are not supported with several copies. Collective.
absl::StatusOr<ExpertStep> RunExperts(Engine& engine, const ExpertGroups& groups,
                                      const LayerRequest& whole, const Recipe& recipe,
                                      const Arithmetic& arithmetic,
                                      const Cancellation* cancellation);

}  // namespace quantgate

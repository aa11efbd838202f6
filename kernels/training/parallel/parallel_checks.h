// Checks of a session on several ranks that need no ranks. Private to kernels/training.
#pragma once

#include "kernels/training/training_session.h"

namespace quantgate {

/// The most rows of a batch whose experts ranks divide, a bound on untrusted input.
inline constexpr int64_t kRoutedRowsMax = int64_t{1} << 22;

/// Checks the numbers of ranks, that the options go together, that each layer takes the columns and
/// rows that the one before it leaves on a rank, and that there are experts if ranks divide
/// experts. In a session on one rank, checks that no layer is divided. INVALID_ARGUMENT naming
/// field, value and rule.
absl::Status CheckSessionRanks(const SessionSpec& spec);

/// Checks that the session's ranks and layers can reduce amaxes over the session's groups under
/// `recipe`, that it takes the methods that the session's overlap names, and that it has no rule
/// for results. INVALID_ARGUMENT naming "parallel.amax_groups[ROLE]", "parallel.overlap" or
/// "recipe".
absl::Status CheckRecipeOnRanks(const SessionSpec& spec, const Recipe& recipe);
/// The same of the groups that one forward names: "forward.amax_groups[ROLE]". A forward must not
/// name one for weights that are held quantized.
absl::Status CheckForwardAmaxGroups(const AmaxGroups& groups, const SessionSpec& spec,
                                    const Recipe& recipe);
/// Checks that the session's ranks and layers have communication for a forward's own overlap, and
/// that the recipe takes the methods that it names: "overlap". Copies that divide nothing take one
/// that names nothing. What of it each layer can carry out, the forward's own check says.
absl::Status CheckForwardOverlap(const std::optional<OverlapSpec>& overlap, const SessionSpec& spec,
                                 const Recipe& recipe);
/// Refuses an x or grad_output, `field`, that several ranks are given as codes.
absl::Status CheckNoCodes(const std::string& field, const QuantizedTensor& codes);
/// Checks that a forward of a session on one rank names neither groups nor a method of
/// overlap; an overlap that names nothing does nothing.
absl::Status CheckNamesNoRanks(const ForwardStep& step);

/// Checks that a session has one rank. INVALID_ARGUMENT.
absl::Status CheckOneRank(const SessionSpec& spec);

/// Checks that dim 0 of `tensor` can be divided over the ranks if `divides_rows`, else over the
/// copies of the layers.
absl::Status CheckDividesRows(const std::string& field, const Tensor& tensor,
                              const ParallelSpec& parallel, bool divides_rows);
/// Checks that `tensor` has the `rows` rows that are routed to experts.
absl::Status CheckIsRoutedRows(const std::string& field, const Tensor& tensor, int64_t rows);

}  // namespace quantgate

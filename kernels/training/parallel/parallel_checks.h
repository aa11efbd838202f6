// What a session on several ranks refuses before there are ranks. Private to kernels/training.
#pragma once

#include "kernels/training/training_session.h"

namespace quantgate {

/// Rows of a batch whose experts ranks divide, a bound on untrusted input.
inline constexpr int64_t kRoutedRowsMax = int64_t{1} << 22;

/// INVALID_ARGUMENT naming field, value and rule: the numbers of ranks, what goes together, that
/// each layer takes what the one before it gives of the columns and rows of its output, that there
/// are experts where ranks divide some; and that no layer of a session on one rank is divided.
absl::Status CheckSessionRanks(const SessionSpec& spec);

/// INVALID_ARGUMENT naming "parallel.amax_groups[ROLE]" unless the session's ranks and its layers
/// have its groups under `recipe`.
absl::Status CheckSessionAmaxGroups(const SessionSpec& spec, const Recipe& recipe);
/// Likewise "forward.amax_groups[ROLE]" of those that one forward names; of weights that are held
/// quantized none is a forward's.
absl::Status CheckForwardAmaxGroups(const AmaxGroups& groups, const SessionSpec& spec,
                                    const Recipe& recipe);
/// That a forward of a session on one rank names none.
absl::Status CheckNoAmaxGroups(const ForwardStep& step);

/// That a session has one rank: INVALID_ARGUMENT.
absl::Status CheckOneRank(const SessionSpec& spec);

/// That the ranks divide dim 0 of `tensor`, of which each has a part where `divides_rows`, each
/// copy of the layers elsewhere.
absl::Status CheckDividesRows(const std::string& field, const Tensor& tensor,
                              const ParallelSpec& parallel, bool divides_rows);
/// That `tensor` is of the `rows` that are routed to experts.
absl::Status CheckIsRoutedRows(const std::string& field, const Tensor& tensor, int64_t rows);

}  // namespace quantgate

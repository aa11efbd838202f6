// AmaxGroups: over which ranks the amax of an operand is reduced, an argument of a call and never a
// property of a tensor or a quantizer (docs/ranks.md section 4.1).
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/quantize/recipe/recipe.h"

namespace quantgate {

struct AmaxGroup {
  enum class Kind {
    kDefault,  ///< The group over which codes are joined; of delayed scaling all ranks.
    kNone,     ///< Every rank's own.
    kTensor,   ///< The ranks that divide weights.
    kData,     ///< Those with the same part of every copy.
    kWorld,    ///< All ranks.
    kRanks,    ///< `ranks`.
  };
  Kind kind = Kind::kDefault;
  std::vector<std::vector<int>> ranks = {};  ///< Of kRanks.

  bool is_named() const { return kind != Kind::kDefault; }
  std::string Text() const;  ///< "default", "none", "tensor", ..., "0,2/1,3".
  friend bool operator==(const AmaxGroup&, const AmaxGroup&) = default;
};

/// Of what Text gives. INVALID_ARGUMENT with the value and what there is.
absl::StatusOr<AmaxGroup> ParseAmaxGroup(std::string_view text);

/// By the role of the operand; a role without one has kDefault.
using AmaxGroups = std::map<TensorRole, AmaxGroup>;

const AmaxGroup& AmaxGroupOf(const AmaxGroups& groups, TensorRole role);
/// `groups` with those of a call in place of its own, and without kDefault.
AmaxGroups WithGroupsOfCall(AmaxGroups groups, const AmaxGroups& call);
/// "input=none,grad_output=0,2/1,3"; empty: none is named.
std::string AmaxGroupsText(const AmaxGroups& groups);
/// "amax_groups[input]".
std::string AmaxGroupField(TensorRole role);

}  // namespace quantgate

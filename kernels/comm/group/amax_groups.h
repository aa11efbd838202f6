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
    kDefault,  ///< The group over which codes are joined; all ranks under delayed scaling.
    kNone,     ///< No reduction: every rank keeps its own amax.
    kTensor,   ///< The tensor-parallel ranks, which divide weights.
    kData,     ///< The data-parallel ranks, which hold the same part of every copy.
    kWorld,    ///< All ranks.
    kRanks,    ///< The lists in `ranks`.
  };
  Kind kind = Kind::kDefault;
  std::vector<std::vector<int>> ranks = {};  ///< kRanks: lists of ranks of the world.

  bool is_named() const { return kind != Kind::kDefault; }
  std::string Text() const;  ///< "default", "none", "tensor", ..., "0,2/1,3".
  friend bool operator==(const AmaxGroup&, const AmaxGroup&) = default;
};

/// Parses what AmaxGroup::Text gives. INVALID_ARGUMENT with the value and the known forms.
absl::StatusOr<AmaxGroup> ParseAmaxGroup(std::string_view text);

/// The group of each operand's role; a role that is not in the map has kDefault.
using AmaxGroups = std::map<TensorRole, AmaxGroup>;

const AmaxGroup& AmaxGroupOf(const AmaxGroups& groups, TensorRole role);
/// `groups` overridden by those that a call names, without the entries that are kDefault.
AmaxGroups WithGroupsOfCall(AmaxGroups groups, const AmaxGroups& call);
/// "input=none,grad_output=0,2/1,3"; empty where no group is named.
std::string AmaxGroupsText(const AmaxGroups& groups);
/// The field's name in errors: "amax_groups[input]".
std::string AmaxGroupField(TensorRole role);

}  // namespace quantgate

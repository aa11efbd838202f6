// The description of a collective call that each member of a group posts before any byte moves. The
// call begins only when the descriptions of all members agree.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor/tensor.h"

namespace quantgate {

enum class CallKind {
  kAllGather,
  kAllGatherParts,
  kAllToAll,
  kReduceScatter,
  kAllReduce,
  kAllReduceMax,
  kBarrier,
  kCheckAgreement,
  kExchange,
};
inline constexpr int kCallKinds = 9;
std::string_view CallKindName(CallKind kind);  ///< "all_gather", "all_reduce_max", ...

struct CallSignature {
  CallKind kind = CallKind::kBarrier;
  bool has_tensor = false;
  DType dtype = DType::kF32;
  Shape shape = {};
  /// Whether members may bring different numbers of rows (entries of the first dim).
  bool rows_are_free = false;
  std::vector<int64_t> rows = {};  ///< The rows of each owner in a reduce-scatter.
  std::string detail = {};         ///< A reduction profile's name, or what members agree on.
};

/// Whether two members that post these make the same call.
bool IsSameCall(const CallSignature& a, const CallSignature& b);

/// "all_gather bf16[8x16]", "reduce_scatter bf16[8x16] rows 4, 4 (rank_asc_fp32)".
std::string CallText(const CallSignature& call);

}  // namespace quantgate

#include "kernels/comm/overlap_member.h"

#include <utility>

#include "kernels/base/status_macros.h"

namespace quantgate {

absl::StatusOr<int> AddGemm(TaskGraph& graph, std::string name, int rank, OverlapMember& member,
                            GemmDesc desc, std::vector<int> after) {
  const size_t index = member.gemms.size();
  member.gemms.emplace_back();
  return graph.Add({std::move(name), rank, OverlapResource::kCompute, -1, std::move(after),
                    [&member, desc = std::move(desc), index](Engine& engine) -> absl::Status {
                      QG_ASSIGN_OR_RETURN(member.gemms[index],
                                          engine.Gemm(desc, member.cancellation));
                      return absl::OkStatus();
                    },
                    /*is_beside=*/index % 2 == 1});
}

absl::Status AddWholeGemms(TaskGraph& graph, const OverlapMembers& members) {
  for (size_t rank = 0; rank < members.size(); ++rank) {
    QG_RETURN_IF_ERROR(
        AddGemm(graph, "gemm", static_cast<int>(rank), *members[rank], members[rank]->gemm, {})
            .status());
  }
  return absl::OkStatus();
}

}  // namespace quantgate

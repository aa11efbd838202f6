#include "kernels/comm/overlap/overlap_member.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace quantgate {

absl::StatusOr<SharedRun::Run> SharedRun::Get(absl::Duration deadline,
                                              absl::FunctionRef<absl::StatusOr<Run>()> make) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (is_being_made_) {
    const auto is_made = [this] { return run_.has_value(); };
    if (is_made_.wait_for(lock, absl::ToChronoNanoseconds(deadline), is_made)) return *run_;
    return absl::DeadlineExceededError(
        absl::StrCat("another rank, which adds the tasks of an overlapped call, did not do so "
                     "within ",
                     absl::FormatDuration(deadline)));
  }
  is_being_made_ = true;
  lock.unlock();
  absl::StatusOr<Run> run = make();
  lock.lock();
  run_ = run;
  is_made_.notify_all();
  return run;
}

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

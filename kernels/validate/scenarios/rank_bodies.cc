#include "kernels/validate/scenarios/rank_bodies.h"

#include "kernels/validate/scenarios/virtual_ranks.h"

namespace quantgate {

bool RunOnRanks(ScenarioContext& context, int ranks, std::string_view what,
                absl::FunctionRef<absl::Status(const GatherContext& rank)> body) {
  const auto world = MakeVirtualRanks(context, ranks);
  absl::Status status = world.status();
  if (status.ok()) {
    status = (*world)->Run(
        [&](Rank& rank) {
          return body({rank.engine(), rank.group(kWorldGroup), rank.faults(), rank.cancellation()});
        },
        context.cancellation());
  }
  context.ExpectCode(what, status, absl::StatusCode::kOk);
  return status.ok();
}

}  // namespace quantgate

// Calls of ranks: shards land where they belong, and ranks that differ are told so.
#include <functional>
#include <latch>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/comm/row_blocks.h"
#include "kernels/validate/scenarios/faults/comm_faults.h"
#include "kernels/validate/scenarios/ranks/virtual_ranks.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

/// An i32 tensor in which no two rows are alike.
absl::StatusOr<Tensor> MarkedRows(int64_t rows) {
  QG_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(DType::kI32, {rows, 5}));
  for (int64_t i = 0; i < tensor.element_count(); ++i) {
    tensor.as<int32_t>()[i] = static_cast<int32_t>(i);
  }
  return tensor;
}

// ---- Placement

absl::Status CheckPlacement(ScenarioContext& context) {
  for (const int size : {1, 2, 3, 4, 8}) {
    QG_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, MakeVirtualRanks(context, size));
    // Equal numbers of rows; one more for some ranks; one row, so that most ranks have none.
    for (const int64_t rows : {int64_t{3} * size, int64_t{2} * size + size / 2, int64_t{1}}) {
      QG_ASSIGN_OR_RETURN(const Tensor whole, MarkedRows(rows));
      QG_ASSIGN_OR_RETURN(const std::vector<Tensor> shards, RowBlocks(whole, EvenRows(rows, size)));
      const std::vector<TensorsOfRank> results =
          RunRanks(context, "all_gather", *world, [&](Rank& rank) -> absl::StatusOr<TensorsOfRank> {
            ProcessGroup& group = rank.group(kWorldGroup);
            TensorsOfRank wholes(1);
            QG_ASSIGN_OR_RETURN(wholes[0], group.AllGather(shards[rank.index()]));
            return wholes;
          });
      for (const TensorsOfRank& wholes : results) {
        QG_RETURN_IF_ERROR(context.ExpectSameBits(absl::StrCat("gathered from ", size, " ranks"),
                                                  wholes[0], whole));
      }
      if (context.difference_count() > 0) return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

// ---- Calls that differ

absl::Status Gather(Rank& rank, DType dtype, Shape shape) {
  QG_ASSIGN_OR_RETURN(const Tensor tensor, rank.engine().Allocate(dtype, std::move(shape)));
  return rank.group(kWorldGroup).AllGather(tensor).status();
}

absl::Status Reduce(Rank& rank, ReductionProfile profile) {
  QG_ASSIGN_OR_RETURN(const Tensor tensor, rank.engine().Allocate(DType::kBF16, {8, 4}));
  return rank.group(kWorldGroup).AllReduce(tensor, profile).status();
}

using Call = std::function<absl::Status(Rank&)>;

/// Rank 1 makes the call `one` where the others make the call `others`. If `one` is empty, rank 1
/// ends.
struct Mismatch {
  const char* name;
  Call others, one;
  const char* message = "every member must make the same call";
};

Call Then(const Call& first, const Call& second) {
  return [=](Rank& rank) {
    const absl::Status status = first(rank);
    return status.ok() ? second(rank) : status;
  };
}

Call GatherOf(DType dtype, Shape shape) {
  return [=](Rank& rank) { return Gather(rank, dtype, shape); };
}

std::vector<Mismatch> Mismatches() {
  const Call gather = GatherOf(DType::kBF16, {2, 4});
  const Call reduce = [](Rank& rank) { return Reduce(rank, {}); };
  const Call reduce_otherwise = [](Rank& rank) { return Reduce(rank, {ReductionKind::kNcclRing}); };
  return {
      {"other dtype", gather, GatherOf(DType::kF16, {2, 4})},
      {"other size", gather, GatherOf(DType::kBF16, {2, 6})},
      {"other profile", reduce, reduce_otherwise},
      {"other call", gather, reduce},
      {"other order", Then(gather, reduce), Then(reduce, gather)},
      {"call left out", gather, nullptr, "rank 1 has ended"},
  };
}

/// Expects every rank's call to fail with this code and with this text in its error.
void ExpectToldToAll(ScenarioContext& context, const std::string& name,
                     const std::vector<absl::Status>& statuses, absl::StatusCode code,
                     std::string_view message) {
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    const std::string where = absl::StrCat(name, ", rank ", rank);
    context.ExpectCode(where, statuses[rank], code);
    const std::string found(statuses[rank].message());
    context.Expect(found.find(message) != std::string::npos, where, found, message);
  }
}

absl::Status CheckMismatches(ScenarioContext& context) {
  for (const Mismatch& mismatch : Mismatches()) {
    QG_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, MakeVirtualRanks(context, 3));
    std::vector<absl::Status> statuses = StatusOfEachRank(context, *world, [&](Rank& rank) {
      const Call& call = rank.index() == 1 ? mismatch.one : mismatch.others;
      return call ? call(rank) : absl::OkStatus();
    });
    if (!mismatch.one) statuses.erase(statuses.begin() + 1);
    ExpectToldToAll(context, mismatch.name, statuses, absl::StatusCode::kFailedPrecondition,
                    mismatch.message);
    if (context.difference_count() > 0) return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status CheckGlobalOrder(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, MakeVirtualRanks(context, 2));
  const std::vector<absl::Status> statuses = StatusOfEachRank(context, *world, [](Rank& rank) {
    return rank.group(rank.index() == 0 ? kNeighbours : kHalfApart).Barrier();
  });
  ExpectToldToAll(context, "groups in two orders", statuses, absl::StatusCode::kFailedPrecondition,
                  "one global order");
  return absl::OkStatus();
}

/// Rank 1 does not come until the others have given up.
absl::Status CheckDeadline(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const std::unique_ptr<World> world,
                      MakeVirtualRanks(context, 3, {.deadline = absl::Milliseconds(20)}));
  std::latch others_are_done(2);
  const std::vector<absl::Status> statuses = StatusOfEachRank(context, *world, [&](Rank& rank) {
    if (rank.index() == 1) others_are_done.wait();
    const absl::Status status = Gather(rank, DType::kU8, {1, 1});
    if (rank.index() != 1) others_are_done.count_down();
    return status;
  });
  ExpectToldToAll(context, "a rank that does not come", statuses,
                  absl::StatusCode::kDeadlineExceeded, "did not come within");
  return absl::OkStatus();
}

/// After all that, new ranks on the same engine work.
absl::Status CheckAfterwards(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, MakeVirtualRanks(context, 3));
  for (const absl::Status& status : StatusOfEachRank(context, *world, [](Rank& rank) {
         return Gather(rank, DType::kBF16, {2, 4});
       })) {
    context.ExpectCode("all_gather of new ranks", status, absl::StatusCode::kOk);
  }
  return absl::OkStatus();
}

absl::Status CheckDifferences(ScenarioContext& context) {
  for (const auto check : {&CheckMismatches, &CheckGlobalOrder, &CheckDeadline, &CheckAfterwards}) {
    QG_RETURN_IF_ERROR(check(context));
    if (context.difference_count() > 0) return absl::OkStatus();
  }
  return absl::OkStatus();
}

}  // namespace

ScenarioGroup GroupCallScenarios() {
  ScenarioGroup group;
  group.scenarios = {
      {.name = "gathered-shards-stand-in-rank-order",
       .invariant = "Shards come back to where they were in the whole, empty ones too.",
       .criterion = "Bit-equal to a tensor in which no two rows are alike: 1 to 8 ranks, even and "
                    "uneven shards.",
       .faults = {kFaultChunkOrder, kFaultShardOffset, kFaultEmptyRankSkips},
       .recipes = {"bf16"},
       .run = &CheckPlacement},
      {.name = "ranks-that-differ-are-told",
       .invariant = "Ranks that make another call, in another order, of another size or dtype or "
                    "not at all get a typed error, all of them (D38).",
       .criterion = "FAILED_PRECONDITION or DEADLINE_EXCEEDED with the reason on every rank; new "
                    "ranks work.",
       .faults = {kFaultCallsNotCompared, kFaultDeadlinePasses},
       .recipes = {"bf16"},
       .run = &CheckDifferences},
  };
  group.faults = {
      InCommunication(kFaultChunkOrder,
                      "Joins the parts of an all-gather from the last rank to the first."),
      InCommunication(kFaultEmptyRankSkips,
                      "Leaves out a collective call where the rank has no rows."),
      InCommunication(kFaultCallsNotCompared,
                      "Begins a call without comparing the members' calls."),
      InCommunication(kFaultDeadlinePasses, "Goes on with what it has when a deadline passes."),
  };
  return group;
}

}  // namespace quantgate

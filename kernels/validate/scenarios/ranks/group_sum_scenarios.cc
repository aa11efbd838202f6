// Sums over ranks: their order, their roundings and who owns which row.
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/comm/row_blocks.h"
#include "kernels/validate/scenarios/faults/comm_faults.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"
#include "kernels/validate/scenarios/ranks/virtual_ranks.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

constexpr int64_t kSumColumns = 24;

/// The definition of a reduction profile in terms of its own (docs/ranks.md section 1.1).
struct ProfileByHand {
  const char* name;
  int first = 0;             ///< The first rank of the sum, counted from the owner of the row.
  int step = 1;              ///< How many ranks further the next one is.
  bool from_zero = false;    ///< The sum begins at rank 0, whichever rank owns the row.
  bool rounds_each = false;  ///< Each sum is rounded to bf16.
};
constexpr std::array<ProfileByHand, 6> kProfiles = {{
    {.name = "rank_asc_fp32", .from_zero = true},
    {.name = "ub_p2p", .step = -1},
    {.name = "ub_atomic"},
    {.name = "nccl_ring", .first = 1, .rounds_each = true},
    {.name = "bf16_rotated:0", .rounds_each = true},
    {.name = "bf16_rotated:2", .first = 2, .rounds_each = true},
}};

absl::StatusOr<Tensor> SumByHand(const std::vector<Tensor>& parts, const ProfileByHand& profile,
                                 const std::vector<int64_t>& rows_of_owners) {
  const int size = static_cast<int>(parts.size());
  QG_ASSIGN_OR_RETURN(Tensor sum, Tensor::Allocate(DType::kBF16, parts[0].shape()));
  QG_ASSIGN_OR_RETURN(Tensor rounded, Tensor::Allocate(DType::kBF16, {1}));
  int64_t index = 0;
  for (int owner = 0; owner < size; ++owner) {
    const int64_t end = index + rows_of_owners[owner] * kSumColumns;
    for (; index < end; ++index) {
      float total = 0;
      for (int i = 0; i < size; ++i) {
        const int begin = profile.from_zero ? 0 : owner + profile.first;
        const int rank = ((begin + i * profile.step) % size + size) % size;
        total = i == 0 ? ValueAt(parts[rank], index) : total + ValueAt(parts[rank], index);
        if (!profile.rounds_each) continue;
        SetValue(rounded, 0, total);
        total = ValueAt(rounded, 0);
      }
      SetValue(sum, index, total);
    }
  }
  return sum;
}

/// Partial sums with large numbers that cancel beside small ones, so that every order and rounding
/// shows: the large numbers of two ranks that are two apart differ in sign alone.
absl::StatusOr<std::vector<Tensor>> Partials(ScenarioContext& context, int size, int64_t rows) {
  std::vector<Tensor> partials;
  QG_ASSIGN_OR_RETURN(const Tensor large, context.Generate(Distribution::kNormal, 400, DType::kBF16,
                                                           {rows, kSumColumns}, 65536));
  for (int rank = 0; rank < size; ++rank) {
    QG_ASSIGN_OR_RETURN(Tensor partial,
                        context.Generate(Distribution::kNormal, 401 + static_cast<uint64_t>(rank),
                                         DType::kBF16, {rows, kSumColumns}, 0x1p-4f));
    for (int64_t i = 0; i < partial.element_count(); ++i) {
      if ((rank + i) % 2 == 1) continue;
      SetValue(partial, i, (rank / 2 + i) % 2 == 0 ? ValueAt(large, i) : -ValueAt(large, i));
    }
    partials.push_back(std::move(partial));
  }
  return partials;
}

/// Rows of each owner: as many as twice its rank, so that the first has none.
std::vector<int64_t> UnequalRows(int size) {
  std::vector<int64_t> rows;
  for (int rank = 0; rank < size; ++rank) rows.push_back(2 * rank);
  return rows;
}
int64_t TotalOf(const std::vector<int64_t>& rows) {
  int64_t total = 0;
  for (const int64_t count : rows) total += count;
  return total;
}

/// The rank's tensor in the memory of its engine.
absl::StatusOr<Tensor> OnEngine(Rank& rank, const std::vector<Tensor>& tensors) {
  return rank.engine().ToDevice(tensors[rank.index()], rank.cancellation());
}

/// Each rank's block of a reduce-scatter, and the whole of an all-reduce.
std::vector<TensorsOfRank> SumBothWays(ScenarioContext& context, World& world,
                                       const std::vector<Tensor>& partials,
                                       const std::vector<int64_t>& rows, const char* profile) {
  return RunRanks(context, profile, world, [&](Rank& rank) -> absl::StatusOr<TensorsOfRank> {
    QG_ASSIGN_OR_RETURN(const ReductionProfile by_name, ParseReductionProfile(profile));
    QG_ASSIGN_OR_RETURN(const Tensor partial, OnEngine(rank, partials));
    ProcessGroup& group = rank.group(kWorldGroup);
    TensorsOfRank sums(2);
    QG_ASSIGN_OR_RETURN(sums[0], group.ReduceScatter(partial, rows, by_name));
    QG_ASSIGN_OR_RETURN(sums[1], group.AllReduce(partial, by_name));
    return sums;
  });
}

absl::Status CheckProfile(ScenarioContext& context, World& world,
                          const std::vector<Tensor>& partials, const ProfileByHand& profile) {
  const std::vector<int64_t> rows = UnequalRows(world.size());
  const std::vector<TensorsOfRank> results =
      SumBothWays(context, world, partials, rows, profile.name);
  QG_ASSIGN_OR_RETURN(const Tensor scattered, SumByHand(partials, profile, rows));
  QG_ASSIGN_OR_RETURN(const Tensor reduced,
                      SumByHand(partials, profile, EvenRows(partials[0].shape()[0], world.size())));
  int64_t begin = 0;
  for (size_t rank = 0; rank < results.size(); ++rank) {
    const std::string name = absl::StrCat(profile.name, " on rank ", rank, " of ", world.size());
    QG_ASSIGN_OR_RETURN(const Tensor block, scattered.RowRange(begin, rows[rank]));
    QG_RETURN_IF_ERROR(context.ExpectSameBits("reduce_scatter " + name, results[rank][0], block));
    QG_RETURN_IF_ERROR(context.ExpectSameBits("all_reduce " + name, results[rank][1], reduced));
    begin += rows[rank];
  }
  return absl::OkStatus();
}

absl::Status CheckProfilesOf(ScenarioContext& context, int size) {
  QG_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, MakeVirtualRanks(context, size));
  QG_ASSIGN_OR_RETURN(const std::vector<Tensor> partials,
                      Partials(context, size, TotalOf(UnequalRows(size))));
  for (const ProfileByHand& profile : kProfiles) {
    QG_RETURN_IF_ERROR(CheckProfile(context, *world, partials, profile));
    if (context.difference_count() > 0) return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status CheckProfiles(ScenarioContext& context) {
  for (const int size : {1, 3, 4, 8}) QG_RETURN_IF_ERROR(CheckProfilesOf(context, size));
  return absl::OkStatus();
}

// ---- Two ranks

absl::Status CheckTwoRanks(ScenarioContext& context) {
  QG_RETURN_IF_ERROR(CheckProfilesOf(context, 2));
  if (context.difference_count() > 0) return absl::OkStatus();
  // With two ranks the sums by hand are equal under all profiles; if not, a ProfileByHand is wrong.
  const std::vector<int64_t> rows = UnequalRows(2);
  QG_ASSIGN_OR_RETURN(const std::vector<Tensor> partials, Partials(context, 2, TotalOf(rows)));
  QG_ASSIGN_OR_RETURN(const Tensor first, SumByHand(partials, kProfiles[0], rows));
  for (const ProfileByHand& profile : kProfiles) {
    QG_ASSIGN_OR_RETURN(const Tensor sum, SumByHand(partials, profile, rows));
    QG_RETURN_IF_ERROR(context.ExpectSameBits(profile.name, sum, first));
  }
  return absl::OkStatus();
}

// ---- Reduce-scatter and all-gather

absl::Status CheckScatterThenGather(ScenarioContext& context) {
  for (const int size : {2, 3, 4, 8}) {
    const std::vector<int64_t> rows = EvenRows(3 * size + 1, size);
    QG_ASSIGN_OR_RETURN(const std::vector<Tensor> partials, Partials(context, size, TotalOf(rows)));
    QG_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, MakeVirtualRanks(context, size));
    const std::vector<TensorsOfRank> results =
        RunRanks(context, "reduce_scatter, all_gather and all_reduce", *world,
                 [&](Rank& rank) -> absl::StatusOr<TensorsOfRank> {
                   QG_ASSIGN_OR_RETURN(const Tensor partial, OnEngine(rank, partials));
                   ProcessGroup& group = rank.group(kWorldGroup);
                   QG_ASSIGN_OR_RETURN(const Tensor block, group.ReduceScatter(partial, rows, {}));
                   TensorsOfRank wholes(2);
                   QG_ASSIGN_OR_RETURN(wholes[0], group.AllGather(block));
                   QG_ASSIGN_OR_RETURN(wholes[1], group.AllReduce(partial, {}));
                   return wholes;
                 });
    QG_ASSIGN_OR_RETURN(const Tensor expected, SumByHand(partials, kProfiles[0], rows));
    for (const TensorsOfRank& wholes : results) {
      QG_RETURN_IF_ERROR(context.ExpectSameBits("joined blocks", wholes[0], expected));
      QG_RETURN_IF_ERROR(context.ExpectSameBits("all_reduce", wholes[1], expected));
    }
  }
  return absl::OkStatus();
}

// ---- Timing

absl::Status CheckTiming(ScenarioContext& context) {
  constexpr int kSize = 8;
  constexpr uint64_t kRuns = 20;
  const std::vector<int64_t> rows = EvenRows(4 * kSize, kSize);
  QG_ASSIGN_OR_RETURN(const std::vector<Tensor> partials, Partials(context, kSize, TotalOf(rows)));
  for (uint64_t run = 1; run <= kRuns; ++run) {
    context.SetStep(static_cast<int64_t>(run));
    QG_ASSIGN_OR_RETURN(const std::unique_ptr<World> world,
                        MakeVirtualRanks(context, kSize, {.noise = {run}}));
    const ProfileByHand& profile = kProfiles[run % kProfiles.size()];
    const std::vector<TensorsOfRank> results =
        SumBothWays(context, *world, partials, rows, profile.name);
    QG_ASSIGN_OR_RETURN(const Tensor expected, SumByHand(partials, profile, rows));
    for (const TensorsOfRank& sums : results) {
      QG_RETURN_IF_ERROR(context.ExpectSameBits(profile.name, sums[1], expected));
    }
  }
  return absl::OkStatus();
}

EngineAlterations ElementAccumulation() {
  EngineAlterations alterations;
  alterations.sum = [](std::vector<Tensor>&, SumAccumulation& accumulation) {
    accumulation = SumAccumulation::kElement;
  };
  return alterations;
}

}  // namespace

ScenarioGroup GroupSumScenarios() {
  ScenarioGroup group;
  group.scenarios = {
      {.name = "two-ranks-sum-alike",
       .invariant = "Over two ranks every reduction profile gives the same bits (D08).",
       .criterion = "reduce_scatter and all_reduce bit-equal to sums by hand, which are all one.",
       .faults = {kFaultReduceScatterOwner},
       .recipes = {"bf16"},
       .run = &CheckTwoRanks},
      {.name = "reduction-profiles-have-their-bits",
       .invariant = "A sum over ranks has the order and the roundings of its profile (D09).",
       .criterion = "reduce_scatter and all_reduce bit-equal to sums by hand of large numbers that "
                    "cancel and small ones: 1 to 8 ranks, owners of unequal and of no rows.",
       .faults = {"bf16-accumulate-for-fp32", kFaultReduceScatterOwner},
       .recipes = {"bf16"},
       .run = &CheckProfiles},
      {.name = "scattered-sums-join-to-all-reduce",
       .invariant = "reduce_scatter and then all_gather is all_reduce where the order does not "
                    "depend on the owner (D10).",
       .criterion = "Both bit-equal to a sum by hand, 2 to 8 ranks.",
       .faults = {kFaultReduceScatterOwner, kFaultShardOffset, kFaultChunkOrder},
       .recipes = {"bf16"},
       .run = &CheckScatterThenGather},
      {.name = "sums-do-not-depend-on-timing",
       .invariant = "The same calls give the same bits whichever rank comes first (D37).",
       .criterion = "20 runs of 8 ranks under random delays, bit-equal to sums by hand.",
       .faults = {kFaultArrivalOrder},
       .recipes = {"bf16"},
       .run = &CheckTiming},
  };
  group.faults = {
      InCommunication(kFaultReduceScatterOwner, "Gives each owner the rows of the next one."),
      {"bf16-accumulate-for-fp32", "Rounds each sum of an fp32 chain to bf16.", 0,
       &ElementAccumulation},
      InCommunication(kFaultShardOffset, "Begins blocks of rows one row late."),
      InCommunication(kFaultArrivalOrder, "Adds the parts in the order in which the ranks came."),
  };
  return group;
}

}  // namespace quantgate

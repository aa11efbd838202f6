// Overlapped calls in which one rank dies or is stuck: before the call, at each GEMM, copy and sum
// that it has in it, and after. Every member gets the same typed error, within the deadline, and
// the next world on the same engines has the right bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <memory>

#include "absl/strings/str_cat.h"
#include "tests/comm/overlap_values.h"
#include "tests/comm/troubled_engine.h"

namespace quantgate {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Property;

constexpr int kSize = 4;
constexpr int kTroubled = 1;
constexpr int64_t kRows = 3, kWidth = 16;
const OverlapName kName = {"layer0", "buffer", "bf16"};

auto IsError(absl::StatusCode code, const std::string& part) {
  return AllOf(Property(&absl::Status::code, code),
               Property(&absl::Status::message, HasSubstr(part)));
}

struct MethodCase {
  const char* name;
  /// The rank's end of the call.
  absl::StatusOr<Tensor> (*call)(Overlap& overlap, int rank);
};

GemmDesc RowsGemm(int rank) { return MakeGemm(Payload::kBf16, kRows, kWidth, kWidth, rank); }
GemmDesc WholeGemm(int rank) {
  return MakeGemm(Payload::kBf16, kRows * kSize, kWidth, kWidth, rank);
}
std::vector<int64_t> RowsOfOwners() { return std::vector<int64_t>(kSize, kRows); }

absl::StatusOr<Tensor> GatherAndMultiply(Overlap& overlap, AllGatherGemmCall call) {
  absl::StatusOr<GatheredGemm> result = overlap.AllGatherGemm(call);
  if (!result.ok()) return result.status();
  return result->gemm.d;
}
absl::StatusOr<Tensor> MultiplyAndReduce(Overlap& overlap, const ReduceScatterGemmCall& call) {
  absl::StatusOr<ScatteredGemm> result = overlap.ReduceScatterGemm(call);
  if (!result.ok()) return result.status();
  return result->y;
}

constexpr MethodCase kMethods[] = {
    {"Ring",
     [](Overlap& overlap, int rank) {
       return GatherAndMultiply(overlap, {.name = kName, .gemm = RowsGemm(rank)});
     }},
    {"RingInPieces",
     [](Overlap& overlap, int rank) {
       return GatherAndMultiply(overlap, {.name = kName, .gemm = RowsGemm(rank), .pieces = 2});
     }},
    {"Aggregate",
     [](Overlap& overlap, int rank) {
       return GatherAndMultiply(overlap,
                                {.name = kName, .gemm = RowsGemm(rank), .aggregate = true});
     }},
    {"External",
     [](Overlap& overlap, int rank) {
       return GatherAndMultiply(overlap, {.name = kName,
                                          .gemm = RowsGemm(rank),
                                          .beside = {MarkedTensor(rank, DType::kU8, {2, 8})}});
     }},
    {"PointToPoint",
     [](Overlap& overlap, int rank) {
       return MultiplyAndReduce(overlap,
                                {.name = kName, .gemm = WholeGemm(rank), .rows = RowsOfOwners()});
     }},
    {"Pipelined",
     [](Overlap& overlap, int rank) {
       return MultiplyAndReduce(overlap, {.name = kName,
                                          .gemm = WholeGemm(rank),
                                          .rows = RowsOfOwners(),
                                          .method = OverlapMethod::kPipeline,
                                          .profile = {}});
     }},
    {"BulkAllGather",
     [](Overlap& overlap, int rank) -> absl::StatusOr<Tensor> {
       absl::StatusOr<GatheredGemm> result =
           overlap.BulkAllGather({.name = kName,
                                  .gemm = WholeGemm(rank),
                                  .shard = {MarkedTensor(rank, DType::kU8, {2, 8})}});
       if (!result.ok()) return result.status();
       const auto parts = result->gathered.Read();
       if (!parts.ok()) return parts.status();
       return Joined({(*parts)[0].Reinterpret(DType::kU8, {1, 64}).value(),
                      result->gemm.d.Reinterpret(DType::kU8, {6, 64}).value()});
     }},
    {"BulkReduceScatter",
     [](Overlap& overlap, int rank) -> absl::StatusOr<Tensor> {
       absl::StatusOr<ScatteredGemm> result = overlap.BulkReduceScatter(
           {.name = kName,
            .gemm = WholeGemm(rank),
            .partial = MakeOperand(Payload::kBf16, kRows * kSize, kWidth, 7 + rank).data,
            .rows = RowsOfOwners()});
       if (!result.ok()) return result.status();
       return result->y;
     }},
};

/// What goes wrong at the troubled rank's operation number `at`, counted from 0. Before the call
/// and after it are operations too.
struct Trouble {
  bool is_stuck = false;  ///< Until all others have ended; else it dies.
  int at = -1;
  std::atomic<int> operations = 0;
  std::latch others_have_ended{kSize - 1};

  absl::Status Before() {
    if (operations++ != at) return absl::OkStatus();
    if (!is_stuck) return absl::UnavailableError("killed in the middle of a call");
    others_have_ended.wait();
    return absl::OkStatus();
  }
};

class OverlapFailures : public testing::TestWithParam<MethodCase> {
 protected:
  /// Options of a world whose rank kTroubled asks `trouble` before each operation.
  static WorldOptions OptionsOf(Trouble& trouble, absl::Duration deadline) {
    return {.deadline = deadline,
            .wrap_engine = [&trouble](Engine& engine, int rank) -> std::unique_ptr<Engine> {
              return std::make_unique<TroubledEngine>(engine, [&trouble, rank](bool) {
                return rank == kTroubled ? trouble.Before() : absl::OkStatus();
              });
            }};
  }
  /// The call, and a barrier in which a rank that is done waits for the others.
  static absl::Status CallThenMeet(Rank& rank, Trouble& trouble, Tensor* output) {
    const bool is_troubled = rank.index() == kTroubled;
    OverlapRank end(rank);
    if (is_troubled) {
      if (absl::Status status = trouble.Before(); !status.ok()) return end.group.Fail(status);
    }
    const absl::StatusOr<Tensor> result = GetParam().call(*end.overlap, rank.index());
    if (!result.ok()) return result.status();
    if (output != nullptr) *output = *result;
    if (is_troubled) {
      if (absl::Status status = trouble.Before(); !status.ok()) return end.group.Fail(status);
    }
    return end.group.Barrier();
  }
  static std::vector<absl::Status> RunTroubled(Ranks& ranks, Trouble& trouble) {
    return ranks.StatusOfEach([&](Rank& rank) {
      const absl::Status status = CallThenMeet(rank, trouble, nullptr);
      if (rank.index() != kTroubled) trouble.others_have_ended.count_down();
      return status;
    });
  }
  /// The outputs of ranks that nothing goes wrong with.
  static std::vector<Tensor> Outputs(Ranks& ranks, Trouble& trouble) {
    std::vector<Tensor> outputs(kSize);
    const auto statuses = ranks.StatusOfEach(
        [&](Rank& rank) { return CallThenMeet(rank, trouble, &outputs[rank.index()]); });
    EXPECT_THAT(statuses, Each(absl::OkStatus()));
    return outputs;
  }
};

TEST_P(OverlapFailures, GiveEveryMemberTheSameErrorAndTheNextWorldTheRightBits) {
  Trouble none;
  Ranks healthy(kSize, OptionsOf(none, absl::Seconds(60)));
  const std::vector<Tensor> expected = Outputs(healthy, none);
  ASSERT_GE(none.operations, 4);  // Before it, at least two tasks, and after it.
  for (int at = 0; at < none.operations; ++at) {
    for (const bool is_stuck : {false, true}) {
      SCOPED_TRACE(absl::StrCat(is_stuck ? "stuck" : "dies", " at operation ", at, " of ",
                                none.operations.load()));
      Trouble trouble{.is_stuck = is_stuck, .at = at};
      const absl::Duration deadline = is_stuck ? absl::Milliseconds(50) : absl::Seconds(60);
      Ranks ranks(kSize, OptionsOf(trouble, deadline));
      const std::vector<absl::Status> statuses = RunTroubled(ranks, trouble);
      EXPECT_THAT(statuses, Each(is_stuck ? IsError(absl::StatusCode::kDeadlineExceeded, "50ms")
                                          : IsError(absl::StatusCode::kUnavailable, "killed")));
      EXPECT_THAT(statuses, Each(statuses[0]));
      Ranks again(std::move(ranks), {});
      Trouble gone;
      EXPECT_EQ(BytesOf(Outputs(again, gone)), BytesOf(expected));
    }
  }
}

/// Whoever comes first adds the tasks of all ranks; the others wait for that no longer than for
/// anything else.
TEST_P(OverlapFailures, EndWhereTheTasksAreNotAdded) {
  Trouble stuck{.is_stuck = true, .at = 0};
  class StuckAllocator final : public ForwardingEngine {
   public:
    StuckAllocator(Engine& engine, Trouble& trouble)
        : ForwardingEngine(engine), trouble_(trouble) {}
    absl::StatusOr<Tensor> Allocate(DType dtype, Shape shape) override {
      if (absl::Status status = trouble_.Before(); !status.ok()) return status;
      return forwarded().Allocate(dtype, std::move(shape));
    }

   private:
    Trouble& trouble_;
  };
  WorldOptions options{.deadline = absl::Milliseconds(50)};
  options.wrap_engine = [&](Engine& engine, int) {
    return std::make_unique<StuckAllocator>(engine, stuck);
  };
  Ranks ranks(kSize, options);
  const auto statuses = ranks.StatusOfEach([&](Rank& rank) {
    OverlapRank end(rank);
    const absl::Status status = GetParam().call(*end.overlap, rank.index()).status();
    stuck.others_have_ended.count_down();
    return status;
  });
  EXPECT_THAT(statuses, Each(IsError(absl::StatusCode::kDeadlineExceeded, "within 50ms")));
}

TEST_P(OverlapFailures, EndWhenTheRunIsCancelled) {
  Trouble none;
  Ranks healthy(kSize, OptionsOf(none, absl::Seconds(60)));
  Outputs(healthy, none);
  Cancellation cancellation;
  Trouble stuck{.is_stuck = true, .at = none.operations / 2};
  WorldOptions options{.deadline = absl::Seconds(60)};
  options.wrap_engine = [&](Engine& engine, int rank) -> std::unique_ptr<Engine> {
    return std::make_unique<TroubledEngine>(engine, [&, rank](bool) {
      if (rank != kTroubled) return absl::OkStatus();
      if (stuck.operations == stuck.at) cancellation.Cancel();
      return stuck.Before();
    });
  };
  Ranks ranks(kSize, options);
  const auto statuses = ranks.StatusOfEach(
      [&](Rank& rank) {
        const absl::Status status = CallThenMeet(rank, stuck, nullptr);
        if (rank.index() != kTroubled) stuck.others_have_ended.count_down();
        return status;
      },
      &cancellation);
  EXPECT_THAT(statuses, Each(Property(&absl::Status::code, absl::StatusCode::kCancelled)));
}

INSTANTIATE_TEST_SUITE_P(Methods, OverlapFailures, testing::ValuesIn(kMethods),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace quantgate

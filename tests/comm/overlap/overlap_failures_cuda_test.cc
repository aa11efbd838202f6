// Overlapped calls of ranks on GPUs in which one rank's thread dies or is stuck before the call, in
// the middle and after: every member gets the same typed error, and the next world on the same
// engines, under NCCL with the same communicators, has the right bits.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/comm/nccl/communicator_cache.h"
#include "tests/comm/cuda_worlds.h"
#include "tests/comm/overlap/overlap_troubles.h"

namespace quantgate {
namespace QG_TEST_FILE {

WorldOptions With(CommunicatorCache& communicators, WorldOptions options = {}) {
  options.communicators = &communicators;
  return options;
}

void ExpectTypedErrors(const CudaWorldCase& world, const OverlapCallCase& one, int at,
                       bool is_stuck, const std::string& expected,
                       CommunicatorCache& communicators) {
  SCOPED_TRACE(absl::StrCat(is_stuck ? "stuck" : "dies", " at operation ", at));
  OverlapTrouble trouble{.is_stuck = is_stuck, .at = at};
  const absl::Duration deadline = is_stuck ? absl::Milliseconds(200) : absl::Seconds(60);
  {
    CudaRanks ranks(world, With(communicators, OptionsWith(trouble, deadline)));
    for (const absl::Status& status : RunTroubled(one, ranks.world(), trouble)) {
      EXPECT_EQ(status.code(),
                is_stuck ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kUnavailable)
          << status;
    }
  }
  OverlapTrouble gone;
  CudaRanks again(world, With(communicators));
  EXPECT_EQ(OverlapOutputs(one, again.world(), gone), expected);
}

class CudaOverlapFailures : public testing::TestWithParam<OverlapCallCase> {};

TEST_P(CudaOverlapFailures, GiveTypedErrorsAndTheNextWorldTheRightBits) {
  for (const CudaWorldCase& world : CudaWorldCases()) {
    if (world.size != kOverlapRanks) continue;
    SCOPED_TRACE(CaseText(world));
    CommunicatorCache communicators;
    OverlapTrouble none;
    CudaRanks healthy(world, With(communicators, OptionsWith(none, absl::Seconds(60))));
    const std::string expected = OverlapOutputs(GetParam(), healthy.world(), none);
    const int last = none.operations - 1;
    ASSERT_GE(last, 3);
    for (const int at : std::set<int>{0, 1, last / 2, last - 1, last}) {
      for (const bool is_stuck : {false, true}) {
        ExpectTypedErrors(world, GetParam(), at, is_stuck, expected, communicators);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, CudaOverlapFailures, testing::ValuesIn(OverlapCallCases()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace QG_TEST_FILE
}  // namespace quantgate

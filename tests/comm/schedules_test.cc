// Programs of random collective calls over random groups, under random delays: none stops and none
// gives other bytes.
#include <gtest/gtest.h>

#include "tests/comm/random_programs.h"
#include "tests/comm/ranks.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr int kSchedules = 1000;
/// Every so many schedules have delays, which cost time.
constexpr int kNoisePeriod = 5;

struct Schedule {
  int size = 1;
  RandomProgram program;
  WorldOptions options;
  std::mt19937 random;

  explicit Schedule(int seed) : random(static_cast<uint32_t>(seed)) {
    size = kWorldSizes[random() % std::size(kWorldSizes)];
    program = RandomProgram::Draw(size, random);
    if (seed % kNoisePeriod == 0) options.noise.seed = static_cast<uint64_t>(seed);
  }
};

TEST(Schedules, NoneOfAThousandStops) {
  static_assert(kSchedules / kNoisePeriod >= 100, "at least 100 of them have delays");
  for (int seed = 1; seed <= kSchedules; ++seed) {
    SCOPED_TRACE(seed);
    const Schedule schedule(seed);
    Ranks ranks(schedule.size, schedule.options);
    const absl::Status status = RunProgram(ranks.world(), schedule.program);
    ASSERT_TRUE(status.ok()) << status;
  }
}

// Whatever the others are in the middle of: they end too, the run says who died, and the same
// engines do the whole program after.
TEST(Schedules, ARankThatDiesEndsItsRunAlone) {
  constexpr int kDeaths = 200;
  for (int seed = 1; seed <= kDeaths; ++seed) {
    SCOPED_TRACE(seed);
    Schedule schedule(seed);
    const Death death{static_cast<int>(schedule.random() % static_cast<uint32_t>(schedule.size)),
                      schedule.random() % schedule.program.calls.size()};
    Ranks ranks(schedule.size, schedule.options);
    EXPECT_EQ(RunProgram(ranks.world(), schedule.program, death),
              absl::InternalError("rank " + std::to_string(death.rank) + ": killed"));
    Ranks again(std::move(ranks), {});
    const absl::Status status = RunProgram(again.world(), schedule.program);
    ASSERT_TRUE(status.ok()) << status;
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

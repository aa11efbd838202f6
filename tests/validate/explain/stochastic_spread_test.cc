// The test that codes must pass to be called stochastically rounded: how often it rejects what is,
// and that it rejects what is not.
#include "kernels/validate/explain/stochastic_spread.h"
#include "tests/base/exhaustive.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <iostream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace quantgate {
namespace QG_TEST_FILE {

using Random = std::mt19937_64;

double Uniform(Random& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

/// Whether a value at this fraction between two codes takes the upper.
using Rounding = std::function<bool(Random&, double fraction)>;
using Fractions = std::function<double(Random&)>;

SpreadResult Spread(StochasticChance chance, uint64_t seed, int count, const Fractions& fractions,
                    const Rounding& rounding) {
  Random random(seed);
  StochasticSpread spread(chance);
  for (int i = 0; i < count; ++i) {
    const double fraction = fractions(random);
    spread.Add(fraction, rounding(random, fraction));
  }
  return spread.Result();
}

bool Stochastic(Random& random, double fraction) { return Uniform(random) < fraction; }
/// A byte is added at 1/256 of the distance, and what reaches the upper code takes it.
bool StochasticByByte(Random& random, double fraction) {
  return fraction + static_cast<double>(random() >> 56) / 256 >= 1;
}

/// As far between codes as values are whose logarithms are spread evenly: nearer the lower.
double Skewed(Random& random) { return std::exp2(Uniform(random)) - 1; }
/// Codes as coarse beside the values as a few halves and quarters: bf16 sources under small scales.
double Coarse(Random& random) { return static_cast<double>(1 + random() % 15) / 16; }

// 20,000 tensors, each rejected with a chance of at most 1e-3: 20 are expected, and more than 40 of
// them have a chance of 2e-5. Fewer than 5 would be a test that cannot reject (2e-5 too).
TEST(StochasticSpread, RejectsWhatIsStochasticAsOftenAsItSays) {
  for (const auto& [name, fractions] : {std::pair<const char*, Fractions>{"even", Uniform},
                                        {"skewed", Skewed},
                                        {"coarse", Coarse}}) {
    for (const int count : {640, 4096}) {
      if (count == 4096 && std::string_view(name) != "even" && !IsExhaustive()) continue;
      const int seeds = count == 640 ? 20000 : 4000;
      int rejected = 0;
      for (int seed = 0; seed < seeds; ++seed) {
        const SpreadResult result =
            Spread(StochasticChance::kFraction, seed, count, fractions, Stochastic);
        ASSERT_TRUE(result.is_enough) << name;
        rejected += result.passes ? 0 : 1;
      }
      std::cout << name << ", " << count << " values: " << rejected << " of " << seeds
                << " rejected, " << kSpreadLevel * seeds << " expected at most\n";
      EXPECT_LE(rejected, seeds == 20000 ? 40 : 15) << name << " " << count;
      if (seeds == 20000) {
        EXPECT_GE(rejected, 5) << name;
      }
    }
  }
}

TEST(StochasticSpread, KnowsChancesOfAByte) {
  int rejected = 0, by_fraction = 0;
  for (int seed = 0; seed < 200; ++seed) {
    constexpr int kCount = 20000;
    rejected +=
        !Spread(StochasticChance::kEightBits, seed, kCount, Uniform, StochasticByByte).passes;
    by_fraction +=
        !Spread(StochasticChance::kFraction, seed, kCount, Uniform, StochasticByByte).passes;
  }
  EXPECT_LE(rejected, 3);      // Of 200 at 1e-3; 4 have a chance of 6e-5.
  EXPECT_LE(by_fraction, 40);  // A bias of 1/512 is 0.7 standard deviations here: not yet told.
  // A million values tell it: 4.8 standard deviations.
  EXPECT_FALSE(Spread(StochasticChance::kFraction, 1, 1 << 20, Uniform, StochasticByByte).passes);
  EXPECT_TRUE(Spread(StochasticChance::kEightBits, 1, 1 << 20, Uniform, StochasticByByte).passes);
}

// None of 500 tensors of the least size passes.
TEST(StochasticSpread, ImpostorsFail) {
  const auto nearest = [](Random&, double fraction) { return fraction > 0.5; };
  const std::vector<std::pair<const char*, Rounding>> impostors = {
      {"nearest", nearest},
      {"toward zero", [](Random&, double) { return false; }},
      {"away from zero", [](Random&, double) { return true; }},
      {"nearest under a scale that is 1 % off",
       [](Random& random, double fraction) {
         return fraction > 0.5 + 0.02 * (Uniform(random) - 0.5);
       }},
      {"nearest, 5 % of the codes moved to the other neighbour",
       [](Random& random, double fraction) {
         return (fraction > 0.5) != (Uniform(random) < 0.05);
       }},
      {"nearest of values with noise of half the distance",
       [](Random& random, double fraction) {
         return fraction + 0.5 * (Uniform(random) - 0.5) > 0.5;
       }},
      {"half nearest, half stochastic",
       [](Random& random, double fraction) {
         return Uniform(random) < 0.5 ? fraction > 0.5 : Stochastic(random, fraction);
       }},
      {"either code by a coin", [](Random& random, double) { return Uniform(random) < 0.5; }},
      {"the farther code", [](Random&, double fraction) { return fraction < 0.5; }},
  };
  for (const auto& [name, impostor] : impostors) {
    int passed = 0;
    for (int seed = 0; seed < 500; ++seed) {
      passed += Spread(StochasticChance::kFraction, seed, 640, Uniform, impostor).passes;
    }
    std::cout << name << ": " << passed << " of 500 pass\n";
    EXPECT_EQ(passed, 0) << name;
  }
}

/// floor(parts f) + 1/2 of the parts.
double MiddleOfPart(double fraction, int parts) {
  return (std::floor(fraction * parts) + 0.5) / parts;
}

int PassedOf(int seeds, int count, const Rounding& rounding) {
  int passed = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    passed += Spread(StochasticChance::kFraction, seed, count, Uniform, rounding).passes;
  }
  return passed;
}

// Chances that are wrong within a sixteenth of the distance alone: none of 100 tensors passes.
TEST(StochasticSpread, WrongChancesInsideOfASixteenthFail) {
  const std::vector<std::pair<const char*, Rounding>> impostors = {
      {"chances of 16 steps",
       [](Random& random, double fraction) {
         return Uniform(random) < MiddleOfPart(fraction, 16);
       }},
      {"chances of 8 steps",
       [](Random& random, double fraction) { return Uniform(random) < MiddleOfPart(fraction, 8); }},
      {"the low bits of the value in place of random ones",
       [](Random&, double fraction) {
         return fraction * 16 - std::floor(fraction * 16) < MiddleOfPart(fraction, 16);
       }},
      {"the low bits below a 256th",
       [](Random&, double fraction) {
         return fraction * 256 - std::floor(fraction * 256) < MiddleOfPart(fraction, 256);
       }},
      {"a tenth rounded to nearest",
       [](Random& random, double fraction) {
         return Uniform(random) < 0.1 ? fraction > 0.5 : Stochastic(random, fraction);
       }},
      {"a wave of 0.03 with 16 periods",
       [](Random& random, double fraction) {
         return Uniform(random) < fraction + 0.03 * std::sin(32 * M_PI * fraction);
       }},
      {"a wave of 0.04 with 11 periods",
       [](Random& random, double fraction) {
         return Uniform(random) < fraction + 0.04 * std::cos(22 * M_PI * fraction);
       }},
  };
  for (const auto& [name, impostor] : impostors) {
    EXPECT_EQ(PassedOf(100, 1 << 16, impostor), 0) << name;
  }
}

// The numbers of docs/quantizers.md section 1.6: of so many values at most one in 40 passes, and a
// quarter of them are too few.
TEST(StochasticSpread, TellsWhatItIsSaidToTell) {
  struct Row {
    const char* name;
    int count;
    Rounding rounding;
  };
  const std::vector<Row> rows = {
      {"a bias of 0.01", 56'000,
       [](Random& random, double fraction) { return Uniform(random) < fraction + 0.01; }},
      {"2 % rounded to nearest", 230'000,
       [](Random& random, double fraction) {
         return Uniform(random) < 0.02 ? fraction > 0.5 : Stochastic(random, fraction);
       }},
      {"half rounded to nearest", 512,
       [](Random& random, double fraction) {
         return Uniform(random) < 0.5 ? fraction > 0.5 : Stochastic(random, fraction);
       }},
      {"chances of 16 steps", 21'500,
       [](Random& random, double fraction) {
         return Uniform(random) < MiddleOfPart(fraction, 16);
       }},
      {"chances of 64 steps", 340'000,
       [](Random& random, double fraction) {
         return Uniform(random) < MiddleOfPart(fraction, 64);
       }},
      {"a wave of 0.02 with 16 periods", 57'500,
       [](Random& random, double fraction) {
         return Uniform(random) < fraction + 0.02 * std::sin(32 * M_PI * fraction);
       }},
  };
  constexpr int kSeeds = 80;
  for (const Row& row : rows) {
    const int passed = PassedOf(kSeeds, row.count, row.rounding);
    std::cout << row.name << ", " << row.count << " values: " << passed << " of " << kSeeds
              << " pass\n";
    EXPECT_LE(passed, 7) << row.name;  // Of 80 at 1/40; 8 have a chance of 1e-3.
    if (row.count / 4 >= kSpreadCountMin) {
      EXPECT_GE(PassedOf(kSeeds, row.count / 4, row.rounding), kSeeds / 2) << row.name;
    }
  }
}

// Nearest rounding but for a few near ties: what libraries that scale in another order differ in.
TEST(StochasticSpread, NearTiesAloneAreNotStochastic) {
  const auto nearest_but_for_ties = [](Random& random, double fraction) {
    return std::fabs(fraction - 0.5) < 0x1p-12 ? Uniform(random) < 0.5 : fraction > 0.5;
  };
  const SpreadResult result =
      Spread(StochasticChance::kFraction, 3, 131072, Uniform, nearest_but_for_ties);
  EXPECT_FALSE(result.passes);
  EXPECT_GT(result.slope, 100);
}

// One outcome of a chance of 2^-40 among ten thousand ordinary ones.
TEST(StochasticSpread, WhatCannotHappenIsNotStochastic) {
  Random random(5);
  StochasticSpread spread(StochasticChance::kFraction);
  for (int i = 0; i < 10000; ++i) {
    const double fraction = Uniform(random);
    spread.Add(fraction, Stochastic(random, fraction));
  }
  EXPECT_TRUE(spread.Result().passes);
  spread.Add(0x1p-40, true);
  EXPECT_FALSE(spread.Result().passes);
  EXPECT_LT(spread.Result().rarest, 1e-7);
}

TEST(StochasticSpread, FewValuesAreNotEnough) {
  const SpreadResult few = Spread(StochasticChance::kFraction, 1, 511, Uniform, Stochastic);
  EXPECT_FALSE(few.is_enough);
  EXPECT_FALSE(few.passes);
  // Many, but nearly on their codes.
  const SpreadResult near = Spread(
      StochasticChance::kFraction, 1, 10000, [](Random& r) { return Uniform(r) / 128; },
      Stochastic);
  EXPECT_LT(near.variance, kSpreadVarianceMin);
  EXPECT_FALSE(near.passes);
  // Nothing but ties, on which a coin does the same.
  const SpreadResult ties = Spread(
      StochasticChance::kFraction, 1, 10000, [](Random&) { return 0.5; }, Stochastic);
  EXPECT_FALSE(ties.is_enough);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

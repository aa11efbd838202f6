// The test that codes must pass to be called stochastically rounded: how often it rejects what is,
// and that it rejects what is not.
#include "kernels/validate/stochastic_spread.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <iostream>
#include <random>
#include <string>
#include <vector>

namespace quantgate {
namespace {

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
    // Half and half has a slope of 5.8 standard deviations, against 3.66: about 1.6 % pass.
    EXPECT_LE(passed, std::string(name) == "half nearest, half stochastic" ? 25 : 0) << name;
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

}  // namespace
}  // namespace quantgate

// Counting codes in tallies against counting them one by one.
#include "kernels/validate/reference/rounding_counts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace quantgate {
namespace QG_TEST_FILE {

std::vector<CodeFormat> EveryFormat() {
  std::vector<CodeFormat> formats(AllCodeFormats().begin(), AllCodeFormats().end());
  formats.insert(formats.end(), FnuzCodeFormats().begin(), FnuzCodeFormats().end());
  return formats;
}

void ExpectEqual(const FirstMiss& a, const FirstMiss& b) {
  EXPECT_EQ(a.at, b.at);
  EXPECT_EQ(a.given, b.given);
  EXPECT_EQ(a.expected, b.expected);
}

void ExpectEqual(const SpreadResult& a, const SpreadResult& b) {
  EXPECT_EQ(a.count, b.count);
  EXPECT_EQ(a.variance, b.variance);
  EXPECT_EQ(a.bias, b.bias);
  EXPECT_EQ(a.slope, b.slope);
  EXPECT_EQ(a.fine_chi_square, b.fine_chi_square);
  EXPECT_EQ(a.rarest, b.rarest);
}

void ExpectEqual(const RoundingCounts& a, const RoundingCounts& b) {
  EXPECT_EQ(a.counts_spread, b.counts_spread);
  EXPECT_EQ(a.count, b.count);
  EXPECT_EQ(a.zeros, b.zeros);
  EXPECT_EQ(a.between, b.between);
  EXPECT_EQ(a.ties, b.ties);
  EXPECT_EQ(a.overflowing, b.overflowing);
  EXPECT_EQ(a.neighbours, b.neighbours);
  for (int i = 0; i < kCodeRoundingCount; ++i) {
    SCOPED_TRACE(std::string(CodeRoundingName(static_cast<CodeRounding>(i))));
    EXPECT_EQ(a.rules[i].matches, b.rules[i].matches);
    EXPECT_EQ(a.rules[i].telling, b.rules[i].telling);
    EXPECT_EQ(a.rules[i].overflow_telling, b.rules[i].overflow_telling);
    EXPECT_EQ(a.rules[i].step_up, b.rules[i].step_up);
    EXPECT_EQ(a.rules[i].step_down, b.rules[i].step_down);
    EXPECT_EQ(a.rules[i].off_tie_max, b.rules[i].off_tie_max);
    ExpectEqual(a.rules[i].first, b.rules[i].first);
  }
  for (int i = 0; i < kZeroSignCount; ++i) {
    EXPECT_EQ(a.zero_signs[i].matches, b.zero_signs[i].matches);
    EXPECT_EQ(a.zero_signs[i].telling, b.zero_signs[i].telling);
    ExpectEqual(a.zero_signs[i].first, b.zero_signs[i].first);
  }
  ExpectEqual(a.first_non_neighbour, b.first_non_neighbour);
  ExpectEqual(a.fraction_chance.Result(), b.fraction_chance.Result());
  ExpectEqual(a.eight_bits.Result(), b.eight_bits.Result());
}

/// Values at every code, at the middle between each two, just beside both, between them, at both
/// ends of fp32 and beyond the largest code; with both signs.
std::vector<float> ValuesOf(const CodeFormat& format, std::mt19937& random) {
  std::vector<float> values = {0, std::numeric_limits<float>::denorm_min(),
                               std::numeric_limits<float>::min(), INFINITY, NAN};
  const auto add = [&](float value) {
    for (const float beside :
         {std::nextafter(value, 0.0f), value, std::nextafter(value, INFINITY)}) {
      values.push_back(beside);
    }
  };
  for (int code = 0; code < format.max; ++code) {
    const float lower = format.values[code], upper = format.values[code + 1];
    add(upper);
    add((lower + upper) / 2);
    for (int i = 0; i < 4; ++i) {
      values.push_back(std::uniform_real_distribution<float>(lower, upper)(random));
    }
  }
  for (int octave = 1; octave < 20; ++octave) add(std::ldexp(format.values[1], -octave));
  for (const float times : {1.03125f, 1.0625f, 1.125f, 1.25f, 4.0f}) {
    add(format.max_value() * times);
  }
  for (size_t i = 0, count = values.size(); i < count; ++i) values.push_back(-values[i]);
  return values;
}

// Codes by each rule, at random one of both neighbours, and random bytes.
TEST(RoundingTally, CountsAsOneByOne) {
  std::mt19937 random(20261128);
  for (const CodeFormat& format : EveryFormat()) {
    for (const Overflow overflow : {Overflow::kSaturate, Overflow::kNan}) {
      if (overflow == Overflow::kNan && !format.has_nan) continue;
      for (const bool counts_spread : {false, true}) {
        for (const int share_of_others : {0, 1, 50}) {  // Percent.
          for (const int choice : {0, 1, 2, 3}) {
            SCOPED_TRACE(std::string(format.name) + " " + std::to_string(choice));
            RoundingCounts expected;
            expected.counts_spread = counts_spread;
            RoundingTally tally(format, overflow, counts_spread);
            std::vector<float> values = ValuesOf(format, random);
            values.insert(values.end(), values.begin(), values.end());
            std::shuffle(values.begin(), values.end(), random);
            for (size_t at = 0; at < values.size(); ++at) {
              const float value = values[at];
              uint8_t code = format.encode(
                  value,
                  choice == 1 ? ElementRounding::kNearestAway : ElementRounding::kNearestEven,
                  overflow);
              const int magnitude = code & (format.sign - 1);
              // Toward zero, and at random up.
              const bool is_step = choice == 2 || (choice == 3 && random() % 2 == 0);
              if (is_step && magnitude > 0 && magnitude < format.max) --code;
              if (random() % 100 < static_cast<uint32_t>(share_of_others)) code = random() & 0xFF;
              expected.Add(format, overflow, value, code, static_cast<int64_t>(at));
              tally.Add(value, code, static_cast<int64_t>(at));
            }
            ExpectEqual(tally.Take(), expected);
            EXPECT_GT(expected.ties, 0);
            EXPECT_GT(expected.overflowing, 0);
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

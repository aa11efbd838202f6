// Delayed scaling's state: against an independent model's vectors, and by hand where the two update
// rules part ways.
#include "kernels/quantize/recipe/delayed_scaling.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

namespace quantgate {
namespace QG_TEST_FILE {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kFltMax = std::numeric_limits<float>::max();

DelayedScalingState StateOf(float scale, const std::vector<float>& history) {
  DelayedScalingState state;
  state.scale = *Tensor::FromScalar(scale);
  state.amax_history = *Tensor::FromBytes(DType::kF32, {static_cast<int64_t>(history.size())},
                                          std::as_bytes(std::span(history)));
  return state;
}

std::vector<float> HistoryOf(const DelayedScalingState& state) {
  const float* rows = state.amax_history.as<float>();
  return {rows, rows + state.amax_history.element_count()};
}

float ScaleOf(const DelayedScalingState& state) { return *state.scale.as<float>(); }

std::vector<uint32_t> BitsOf(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) {
    bits.push_back(std::isnan(value) ? 0x7FFFFFFF : std::bit_cast<uint32_t>(value));
  }
  return bits;
}

std::vector<float> FloatsOf(const std::string& words) {
  std::vector<float> values;
  std::stringstream stream(words);
  for (std::string word; std::getline(stream, word, ',');) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(std::stoul(word, nullptr, 16))));
  }
  return values;
}

TEST(DelayedScaling, IsTheModelsForEveryVector) {
  std::ifstream file(std::string(QUANTGATE_SOURCE_DIR) + "/tests/data/delayed_scaling_vectors.txt");
  int count = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) continue;
    std::stringstream words(line);
    std::string update, algorithm, scale, history, reduced, new_scale, new_history;
    float max_finite;
    DelayedScalingOptions options;
    words >> update >> algorithm >> max_finite >> options.margin >> scale >> history >> reduced >>
        new_scale >> new_history;
    options.update = update == "fused" ? ScaleUpdate::kFused : ScaleUpdate::kUnfused;
    options.algorithm = algorithm == "max" ? AmaxAlgorithm::kMax : AmaxAlgorithm::kMostRecent;
    const DelayedScalingState before = StateOf(FloatsOf(scale)[0], FloatsOf(history));
    const auto given = reduced == "-" ? std::nullopt : std::optional(FloatsOf(reduced)[0]);
    const DelayedScalingState after = *WithUpdate(before, options, max_finite, given);
    EXPECT_EQ(BitsOf({ScaleOf(after)}), BitsOf(FloatsOf(new_scale))) << line;
    EXPECT_EQ(BitsOf(HistoryOf(after)), BitsOf(FloatsOf(new_history))) << line;
    // The old state is a value of its own.
    EXPECT_EQ(BitsOf(HistoryOf(before)), BitsOf(FloatsOf(history)));
    if (HasFailure()) return;
    ++count;
  }
  EXPECT_GT(count, 1000);
}

struct Update {
  DelayedScalingOptions options;
  float scale;
  std::vector<float> history;
  float new_scale;
  std::vector<float> new_history;
};

void ExpectUpdate(const Update& row) {
  SCOPED_TRACE(row.options.update == ScaleUpdate::kFused ? "fused" : "unfused");
  const auto after = *WithUpdate(StateOf(row.scale, row.history), row.options, 448.0f);
  EXPECT_EQ(BitsOf({ScaleOf(after)}), BitsOf({row.new_scale}));
  EXPECT_EQ(BitsOf(HistoryOf(after)), BitsOf(row.new_history));
}

DelayedScalingOptions Options(ScaleUpdate update, AmaxAlgorithm algorithm = AmaxAlgorithm::kMax,
                              int margin = 0) {
  DelayedScalingOptions options;
  options.update = update;
  options.algorithm = algorithm;
  options.margin = margin;
  return options;
}

TEST(DelayedScaling, RollsTheNewestToTheEndAndFreesRowZero) {
  for (const ScaleUpdate update : {ScaleUpdate::kFused, ScaleUpdate::kUnfused}) {
    // The oldest row, 16, still counts in the update that drops it: 448 / 16.
    ExpectUpdate({Options(update), 1, {2, 16, 4, 8}, 28, {0, 4, 8, 2}});
    ExpectUpdate(
        {Options(update, AmaxAlgorithm::kMostRecent), 1, {2, 16, 4, 8}, 224, {0, 4, 8, 2}});
    ExpectUpdate({Options(update), 1, {7}, 64, {0}});
    ExpectUpdate({Options(update, AmaxAlgorithm::kMax, 3), 1, {7, 1}, 8, {0, 7}});
    ExpectUpdate({Options(update, AmaxAlgorithm::kMax, -1), 1, {7, 1}, 128, {0, 7}});
  }
}

TEST(DelayedScaling, AStepThatSawNothingTellsTheRulesApart) {
  ExpectUpdate({Options(ScaleUpdate::kFused), 3, {0, 5, 7}, 3, {0, 5, 7}});
  ExpectUpdate({Options(ScaleUpdate::kUnfused), 3, {0, 5, 7}, 64, {0, 7, 0}});
  ExpectUpdate({Options(ScaleUpdate::kFused, AmaxAlgorithm::kMostRecent), 3, {0, 7}, 3, {0, 7}});
  ExpectUpdate({Options(ScaleUpdate::kUnfused, AmaxAlgorithm::kMostRecent), 3, {0, 7}, 3, {0, 0}});
}

TEST(DelayedScaling, InfinityKeepsTheScaleAsLongAsItIsInTheHistory) {
  for (const ScaleUpdate update : {ScaleUpdate::kFused, ScaleUpdate::kUnfused}) {
    ExpectUpdate({Options(update), 3, {kInf, 5, 7}, 3, {0, 7, kInf}});
    ExpectUpdate({Options(update), 3, {2, kInf, 7}, 3, {0, 7, 2}});
    ExpectUpdate({Options(update), 3, {2, 7}, 64, {0, 2}});
  }
}

TEST(DelayedScaling, NanIsIgnoredByTheKernelAndPropagatedByTorch) {
  ExpectUpdate({Options(ScaleUpdate::kFused), 3, {kNan, 7, 1}, 64, {0, 1, kNan}});
  ExpectUpdate({Options(ScaleUpdate::kUnfused), 3, {kNan, 7, 1}, 3, {0, 1, kNan}});
}

TEST(DelayedScaling, AScaleThatOverflowsIsTheLargestFinite) {
  for (const ScaleUpdate update : {ScaleUpdate::kFused, ScaleUpdate::kUnfused}) {
    ExpectUpdate({Options(update), 3, {0x1p-149f, 0}, kFltMax, {0, 0x1p-149f}});
  }
}

TEST(DelayedScaling, ATwoStepTraceOfOneTensor) {
  // Fresh, two casts, update, one cast, update: amaxes 1.75 and 3.5, then 0.875.
  DelayedScalingState state = *FreshDelayedScaling(2);
  EXPECT_EQ(ScaleOf(state), 1.0f);
  state = *WithCast(*WithCast(state, 3.5f), 1.75f);
  EXPECT_EQ(HistoryOf(state), (std::vector<float>{3.5f, 0}));
  state = *WithUpdate(state, {}, 448.0f);
  EXPECT_EQ(ScaleOf(state), 128.0f);
  state = *WithUpdate(*WithCast(state, 0.875f), {}, 448.0f);
  EXPECT_EQ(HistoryOf(state), (std::vector<float>{0, 0.875f}));
  EXPECT_EQ(ScaleOf(state), 128.0f);  // 3.5 was the oldest row and counted once more.
  state = *WithUpdate(*WithCast(state, 0.875f), {}, 448.0f);
  EXPECT_EQ(ScaleOf(state), 512.0f);
}

TEST(DelayedScaling, CalibrationAssignsWhereACastMerges) {
  const DelayedScalingState state = StateOf(2, {9, 1});
  EXPECT_EQ(HistoryOf(*WithCalibration(state, 4)), (std::vector<float>{4, 1}));
  EXPECT_EQ(HistoryOf(*WithCast(state, 4)), (std::vector<float>{9, 1}));
  EXPECT_EQ(HistoryOf(*WithCast(state, kNan)), (std::vector<float>{9, 1}));
  EXPECT_EQ(ScaleOf(*WithCalibration(state, 4)), 2.0f);
}

TEST(DelayedScaling, AnotherHistoryLengthKeepsTheFirstRowsAndTheScale) {
  const DelayedScalingState state = StateOf(2, {9, 1, 5});
  EXPECT_EQ(HistoryOf(*WithHistoryLength(state, 2)), (std::vector<float>{9, 1}));
  EXPECT_EQ(HistoryOf(*WithHistoryLength(state, 5)), (std::vector<float>{9, 1, 5, 0, 0}));
  EXPECT_EQ(ScaleOf(*WithHistoryLength(state, 5)), 2.0f);
}

TEST(DelayedScaling, StatesFromOutsideAreChecked) {
  EXPECT_TRUE(CheckDelayedScaling(StateOf(2, {0, 1, kInf}), "input").ok());
  const auto message = [](const DelayedScalingState& state) {
    const absl::Status status = CheckDelayedScaling(state, "input");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(message({}), "input.scale is absent: must be f32[1]");
  EXPECT_EQ(message(StateOf(0, {1})), "input.scale is 0: must be positive and finite");
  EXPECT_EQ(message(StateOf(kInf, {1})), "input.scale is inf: must be positive and finite");
  EXPECT_EQ(message(StateOf(1, {1, -2})), "input.amax_history[1] is -2: an amax is not negative");
  EXPECT_EQ(message(StateOf(1, {})),
            "input.amax_history is f32[0]: must be f32[L], L from 1 to 1048576");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

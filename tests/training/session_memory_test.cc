// What a session holds for backwards after each step and at its peak, against sums of dims, bytes
// of dtypes and block lengths written down by hand (docs/sessions.md section 5).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/training/parallel/parallel_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::ElementsAre;

// fc1 is [96][64], fc2 [64][96], x [64][64]; bf16 takes 2 bytes, a code of mxfp8 1, and 32 of these
// a scale of 1 byte.
constexpr int64_t kX1 = kRows * kIn, kX2 = kRows * kHidden;
constexpr int64_t kW1 = kHidden * kIn, kW2 = kOut * kHidden;
constexpr int64_t MxBytes(int64_t elements) { return elements + elements / 32; }
// x columnwise; weights in both directions.
constexpr int64_t kMxX = MxBytes(kX1) + MxBytes(kX2);
constexpr int64_t kMxWeights = 2 * MxBytes(kW1) + 2 * MxBytes(kW2);
constexpr int64_t kMx = kMxX + kMxWeights;
constexpr int64_t kPlainX = 2 * (kX1 + kX2), kPlainWeights = 2 * (kW1 + kW2);

class SessionMemoryTest : public ::testing::Test {
 protected:
  void Open(const std::string& recipe) { session_ = OpenOn(*engine_, TwoLayerSpec(recipe)); }
  void Forward(const std::string& microbatch, ForwardStep how = {}) {
    how.microbatch = microbatch;
    how.x = ForwardOf(microbatch[0]).x;
    const auto done = session_->Forward(how, nullptr);
    ASSERT_TRUE(done.ok()) << done.status();
  }
  void Backward(const std::string& microbatch) {
    const auto done = session_->Backward(BackwardOf(9, microbatch), nullptr);
    ASSERT_TRUE(done.ok()) << done.status();
  }
  void ExpectSaved(int64_t bytes, int64_t held) const {
    const SavedMemory memory = session_->saved_memory();
    EXPECT_EQ(memory.on_device.bytes(), bytes);
    EXPECT_EQ(memory.on_device.held, held);
    EXPECT_EQ(memory.added(), bytes - held);
  }
  void ExpectPeak(int64_t bytes, int64_t step) const {
    EXPECT_EQ(session_->saved_memory().peak, bytes);
    EXPECT_EQ(session_->saved_memory().peak_step, step);
  }

  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
  std::unique_ptr<OneRankSession> session_;
};

TEST_F(SessionMemoryTest, IsThatOfMicrobatchesInFlight) {
  Open("mxfp8");
  ExpectSaved(0, 0);
  ForwardStep evaluation;
  evaluation.train = false;
  Forward("eval", evaluation);
  ExpectSaved(0, 0);
  Forward("a");
  ExpectSaved(kMx, 0);
  EXPECT_EQ(session_->saved_memory().on_device.scales, kMx / 33);
  Forward("b");
  ExpectSaved(2 * kMx, 0);
  Backward("b");
  ExpectSaved(kMx, 0);
  Backward("a");
  ASSERT_TRUE(session_->Optimize({}, nullptr).ok());
  ExpectSaved(0, 0);
  EXPECT_TRUE(session_->saved_memory().operands.empty());
  ExpectPeak(2 * kMx, 3);
}

TEST_F(SessionMemoryTest, NamesMicrobatchLayerAndOperand) {
  Open("mxfp8:backward_override=high_precision");
  Forward("a");
  std::vector<std::string> told;
  for (const SessionOperand& operand : session_->saved_memory().operands) {
    told.push_back(absl::StrCat(operand.microbatch, " ", operand.layer, " ", operand.operand, " ",
                                operand.format, " ", operand.size.data, "+", operand.size.scales,
                                "/", operand.size.held, " ", std::string(PlaceName(operand.place)),
                                " ", operand.rank));
  }
  EXPECT_THAT(
      told,
      ElementsAre("a fc1 x bf16 8192+0/0 device -1", "a fc1 weight bf16 12288+0/12288 device -1",
                  "a fc1 weight workspace mxfp8 6144+192/0 device -1",
                  "a fc2 x bf16 12288+0/0 device -1", "a fc2 weight bf16 12288+0/12288 device -1",
                  "a fc2 weight workspace mxfp8 6144+192/0 device -1"));
}

// Both microbatches save the parameters themselves.
TEST_F(SessionMemoryTest, CountsWhatTheSessionHoldsAnywayOnceAndApart) {
  Open("bf16");
  Forward("a");
  ExpectSaved(kPlainX + kPlainWeights, kPlainWeights);
  Forward("b");
  ExpectSaved(2 * kPlainX + kPlainWeights, kPlainWeights);
  ExpectPeak(2 * kPlainX, 2);
  // An update replaces the parameters; those that were saved are held for the backwards alone.
  Backward("b");
  ASSERT_TRUE(session_->Optimize({}, nullptr).ok());
  ExpectSaved(kPlainX + kPlainWeights, 0);
  ExpectPeak(kPlainX + kPlainWeights, 4);
}

TEST_F(SessionMemoryTest, CountsCachedWeightsAsHeldAnyway) {
  Open("mxfp8");
  ForwardStep how;
  how.is_first = Microbatch::kFirst;
  Forward("a", how);
  how.is_first = Microbatch::kLater;
  Forward("b", how);
  ExpectSaved(2 * kMxX + kMxWeights, kMxWeights);
}

TEST_F(SessionMemoryTest, OffloadMovesItToTheHostAndBack) {
  Open("mxfp8");
  Forward("a");
  Forward("b");
  ASSERT_TRUE(session_->Offload("a", nullptr).ok());
  ExpectSaved(kMx, 0);
  EXPECT_EQ(session_->saved_memory().on_host, kMx);
  EXPECT_EQ(session_->saved_memory().operands.front().place, SessionOperand::Place::kHost);
  ASSERT_TRUE(session_->Reload("a", nullptr).ok());
  ExpectSaved(2 * kMx, 0);
  EXPECT_EQ(session_->saved_memory().on_host, 0);
  ExpectPeak(2 * kMx, 2);
}

TEST_F(SessionMemoryTest, RecomputationSavesItsInputUntilItsBackward) {
  Open("mxfp8");
  ForwardStep how;
  how.recompute = true;
  Forward("a", how);
  ExpectSaved(2 * kX1, 0);
  EXPECT_EQ(session_->saved_memory().not_saved, kMx);
  EXPECT_EQ(session_->saved_memory().operands.size(), 5u);
  ExpectPeak(2 * kX1, 1);
  Backward("a");
  ExpectSaved(0, 0);
  EXPECT_EQ(session_->saved_memory().not_saved, 0);
  ExpectPeak(2 * kX1 + kMx, 2);
}

// x is saved as it is by both, and the weights are the parameters.
TEST_F(SessionMemoryTest, WhatARecomputationSharesWithItsInputCountsOnce) {
  Open("bf16");
  ForwardStep how;
  how.recompute = true;
  Forward("a", how);
  EXPECT_EQ(session_->saved_memory().not_saved, 2 * kX2);
  Backward("a");
  ExpectPeak(kPlainX, 2);
}

TEST_F(SessionMemoryTest, ARecomputationKeepsTheParametersThatItFound) {
  Open("bf16");
  ForwardStep how;
  how.recompute = true;
  Forward("a", how);
  Forward("b");
  Backward("b");
  ExpectSaved(2 * kX1, 0);
  ASSERT_TRUE(session_->Optimize({}, nullptr).ok());
  ExpectSaved(2 * kX1 + kPlainWeights + 2 * (kHidden + kOut), 0);  // And the biases.
}

TEST_F(SessionMemoryTest, DeferredGradientsKeepTheirOperands) {
  Open("mxfp8");
  ForwardStep how;
  how.defer_wgrad = true;
  Forward("a", how);
  Backward("a");
  // x of both layers, and their grad_output, [64][96] and [64][64], columnwise.
  ExpectSaved(2 * kMxX, 0);
  // Until the backward has succeeded, beside all that the forward saved.
  ExpectPeak(kMx + kMxX, 2);
  for (const SessionOperand& operand : session_->saved_memory().operands) {
    EXPECT_EQ(operand.microbatch, "");
  }
  ASSERT_TRUE(session_->Wgrad(nullptr).ok());
  ExpectSaved(0, 0);
}

TEST_F(SessionMemoryTest, AStepThatFailsOrIsTakenBackIsNotCounted) {
  Open("mxfp8");
  const auto restore = session_->RestorePoint();
  Forward("a");
  ForwardStep wrong = ForwardOf(1, "b");
  wrong.x = Normal(1, {kRows, kIn + 1});
  EXPECT_FALSE(session_->Forward(wrong, nullptr).ok());
  ExpectSaved(kMx, 0);
  restore();
  ExpectSaved(0, 0);
  ExpectPeak(0, 0);
}

TEST(RanksMemoryTest, IsTheSumOfTheRanks) {
  const auto engine = MakeCpuEngine({.threads = 1});
  SessionSpec spec = LinearLayers("mxfp8", {ParallelMode::kColumn, ParallelMode::kRow});
  spec.parallel = Ranks(2, 1, true);
  constexpr int64_t kSize = 256, kAll = kSize * kSize;
  const auto session = OpenRanks(
      *engine, spec,
      {{"fc1.weight", Normal(31, {kSize, kSize})}, {"fc2.weight", Normal(32, {kSize, kSize})}});
  ForwardStep forward;
  forward.x = Normal(1, {kSize, kSize});
  ASSERT_TRUE(session->Forward(forward, nullptr).ok());
  // A rank saves its rows of fc1's x, never the gathered whole, its columns of fc2's, and its half
  // of each weight in both directions.
  const int64_t of_rank = 2 * MxBytes(kAll / 2) + 4 * MxBytes(kAll / 2);
  const SavedMemory memory = session->saved_memory();
  EXPECT_EQ(memory.on_device.bytes(), 2 * of_rank);
  EXPECT_EQ(memory.added(), 2 * of_rank);
  EXPECT_EQ(memory.peak, 2 * of_rank);
  ASSERT_EQ(memory.operands.size(), 8u);
  EXPECT_EQ(memory.operands[0].rank, 0);
  EXPECT_EQ(memory.operands[0].size.data, kAll / 2);
  EXPECT_EQ(memory.operands[7].rank, 1);
  ASSERT_TRUE(session->Backward({"0", Normal(2, {kSize, kSize})}, nullptr).ok());
  EXPECT_EQ(session->saved_memory().on_device.bytes(), 0);
  EXPECT_EQ(session->saved_memory().peak, 2 * of_rank);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

// Weights cast from fragments of fp32 masters, against the whole weight quantized on one rank; and
// where fragments begin.
#include "kernels/training/sharding/master_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/training/sharding/shard_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr int64_t kOut = 192, kIn = 96;

/// Parts of any length, some empty, between even elements.
ShardBounds RandomBounds(int64_t elements, int ranks, uint32_t seed) {
  std::mt19937 random(seed);
  ShardBounds bounds = {0, elements};
  while (static_cast<int>(bounds.size()) <= ranks) {
    const bool is_empty = random() % 3 == 0;
    const auto any = static_cast<int64_t>(random() % static_cast<uint32_t>(elements));
    bounds.push_back(is_empty ? bounds[random() % bounds.size()] : any / 2 * 2);
  }
  std::sort(bounds.begin(), bounds.end());
  return bounds;
}

/// A weight of every rule; masters have bits that bf16 has not.
struct Weights {
  std::vector<WeightRule> rules = WeightRules();
  std::vector<Tensor> masters;

  Weights() {
    QuantizerSpec delayed = Fp8Tensor();
    delayed.scaling = Scaling::kDelayed;
    rules.push_back({"delayed", delayed});
    for (size_t i = 0; i < rules.size(); ++i) {
      masters.push_back(TroubledWeight(20 + i, DType::kF32, {kOut, kIn}));
    }
  }
  bool is_delayed(size_t i) const {
    return rules[i].quantizer.rowwise.scaling == Scaling::kDelayed;
  }
};

std::vector<MasterFragment> FragmentsOf(const Weights& weights,
                                        const std::vector<ShardBounds>& bounds, int rank) {
  std::vector<MasterFragment> fragments;
  for (size_t i = 0; i < weights.rules.size(); ++i) {
    const Tensor flat = *weights.masters[i].Reinterpret(DType::kF32, {kOut * kIn});
    fragments.push_back({.name = weights.rules[i].name,
                         .master = PartOf(flat, bounds[i][rank], bounds[i][rank + 1]),
                         .bounds = bounds[i],
                         .shape = {kOut, kIn},
                         .quantizer = weights.rules[i].quantizer});
    if (weights.is_delayed(i)) fragments.back().scale = *Tensor::FromScalar(0.75f);
  }
  return fragments;
}

QuantizedTensor Expected(const Weights& weights, size_t i, Requantization requantization) {
  const Tensor source = requantization == Requantization::kFromF32
                            ? weights.masters[i]
                            : *CastTensor(weights.masters[i], DType::kBF16, {});
  QuantizeArguments arguments;
  if (weights.is_delayed(i)) arguments.scale = *Tensor::FromScalar(0.75f);
  QuantizedTensor whole =
      *QuantizeCpu(source, weights.rules[i].quantizer, {true, true}, arguments, {});
  whole.source_dtype = DType::kBF16;
  return whole;
}

void ExpectCast(const Weights& weights, const std::vector<ShardBounds>& bounds, int ranks,
                Requantization requantization) {
  std::vector<std::vector<QuantizedMaster>> cast(ranks);
  const absl::Status status = OnRanks(ranks, [&](const GatherContext& context) -> absl::Status {
    const int rank = context.group.rank();
    QG_ASSIGN_OR_RETURN(
        cast[rank],
        QuantizeMasterWeights(context, FragmentsOf(weights, bounds, rank), requantization));
    return absl::OkStatus();
  });
  ASSERT_TRUE(status.ok()) << status;
  for (size_t i = 0; i < weights.rules.size(); ++i) {
    SCOPED_TRACE(weights.rules[i].name);
    const QuantizedTensor expected = Expected(weights, i, requantization);
    for (int rank = 0; rank < ranks; ++rank) {
      ExpectSameQuantized(cast[rank][i].weight, expected);
      if (weights.is_delayed(i)) {
        EXPECT_TRUE(SameBits(cast[rank][i].delayed_amax, expected.rowwise->amax));
      }
    }
  }
}

TEST(MasterWeights, FragmentsAreTheWholeWeight) {
  const Weights weights;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (const Requantization requantization :
         {Requantization::kFromF32, Requantization::kThroughBf16}) {
      SCOPED_TRACE(
          absl::StrCat(ranks, " ranks, ", std::string(RequantizationName(requantization))));
      std::vector<ShardBounds> bounds;
      for (size_t i = 0; i < weights.rules.size(); ++i) {
        bounds.push_back(RandomBounds(kOut * kIn, ranks, static_cast<uint32_t>(100 * i) + ranks));
      }
      ExpectCast(weights, bounds, ranks, requantization);
    }
  }
}

// Weights laid end to end and cut evenly: what begins within another weight's rank.
TEST(MasterWeights, FlatBuffersCutEvenlyAreTheWholeWeights) {
  const Weights weights;
  const std::vector<Shape> shapes(weights.rules.size(), Shape{kOut, kIn});
  for (const int ranks : {3, 8}) {
    const std::vector<ShardBounds> bounds = FlatBounds(shapes, ranks, 2);
    ExpectCast(weights, bounds, ranks, Requantization::kThroughBf16);
  }
}

TEST(MasterWeights, ARankWithoutElementsTakesPart) {
  const Weights weights;
  std::vector<ShardBounds> bounds(weights.rules.size(), ShardBounds{0, 0, kOut * kIn, kOut * kIn});
  ExpectCast(weights, bounds, 3, Requantization::kThroughBf16);
}

int64_t DifferingBytes(const Tensor& a, const Tensor& b) {
  int64_t differing = 0;
  for (size_t i = 0; i < a.byte_size(); ++i) differing += a.bytes()[i] != b.bytes()[i] ? 1 : 0;
  return differing;
}

// Rounding twice is another quantizer: the two ways differ, each in its own whole weight's bytes
// (which the tests above compare), and in few of them.
TEST(MasterWeights, TheTwoWaysDifferInFewBytes) {
  const Weights weights;
  for (size_t i = 0; i < weights.rules.size(); ++i) {
    if (!weights.rules[i].quantizer.rowwise.is_quantized()) continue;
    const Tensor direct = Expected(weights, i, Requantization::kFromF32).rowwise->data;
    const Tensor rounded = Expected(weights, i, Requantization::kThroughBf16).rowwise->data;
    const int64_t differing = DifferingBytes(direct, rounded);
    EXPECT_GT(differing, 0) << weights.rules[i].name;
    EXPECT_LT(differing, direct.element_count() / 10) << weights.rules[i].name;
  }
}

TEST(MasterWeights, NanAndInfinityMeetOnOneRank) {
  Weights weights;
  for (Tensor& master : weights.masters) {
    master.as<float>()[777] = std::numeric_limits<float>::quiet_NaN();
    master.as<float>()[9000] = -std::numeric_limits<float>::infinity();
  }
  std::vector<ShardBounds> bounds;
  for (size_t i = 0; i < weights.rules.size(); ++i) {
    bounds.push_back(RandomBounds(kOut * kIn, 4, static_cast<uint32_t>(i)));
  }
  ExpectCast(weights, bounds, 4, Requantization::kThroughBf16);
}

// ---- refusals

std::string Refusal(const MasterFragment& of_rank_0, const MasterFragment& of_rank_1) {
  const absl::Status status = OnRanks(2, [&](const GatherContext& context) {
    const MasterFragment& own = context.group.rank() == 0 ? of_rank_0 : of_rank_1;
    return QuantizeMasterWeights(context, {&own, 1}, Requantization::kFromF32).status();
  });
  return std::string(status.message());
}

MasterFragment Half(int rank, const Quantizer& quantizer, int64_t cut) {
  const int64_t count = rank == 0 ? cut : kOut * kIn - cut;
  return {.name = "w",
          .master = Generated(Distribution::kNormal, 1, DType::kF32, {count}),
          .bounds = {0, cut, kOut * kIn},
          .shape = {kOut, kIn},
          .quantizer = quantizer};
}

TEST(MasterWeights, RefusesWhatCannotBeCut) {
  const auto refusal = [](const Quantizer& quantizer, int64_t cut) {
    return Refusal(Half(0, quantizer, cut), Half(1, quantizer, cut));
  };
  EXPECT_EQ(refusal(Mxfp8(), 333), "");
  EXPECT_NE(refusal(Nvfp4Tiles(), 333)
                .find("w.bounds is 333: fragments of FP4 codes, two to a byte, begin at even "
                      "elements"),
            std::string::npos);
  Quantizer derived = TwoRules(Fp8Tensor(), Fp8Tensor(DType::kF8E5M2));
  derived.columnwise_source = ColumnwiseSource::kRowwiseDequantized;
  EXPECT_NE(refusal(derived, 2)
                .find("w.columnwise_source is rowwise_dequantized: no rank has the "
                      "rowwise codes that columnwise ones would be made from"),
            std::string::npos);
  EXPECT_NE(refusal(TwoRules(Fp8Tensor(), Mxfp8()), 2)
                .find("w.columnwise.format is mxfp8: of two rules, masters are cast to per-tensor "
                      "FP8, fp8_rowwise and identity"),
            std::string::npos);
  QuantizerSpec lines = Nvfp4Tiles();
  lines.block_dim = 1;
  EXPECT_NE(refusal(lines, 2).find("w.quantizer.block_dim is 1: nvfp4 is cut into fragments with "
                                   "tiles (block_dim 2) only"),
            std::string::npos);
}

TEST(MasterWeights, BoundsThatDifferAreFoundBeforeBytesMove) {
  MasterFragment other = Half(1, Fp8Tensor(), 4);
  const std::string refusal = Refusal(Half(0, Fp8Tensor(), 2), other);
  EXPECT_NE(refusal.find("shapes and bounds of master weights"), std::string::npos) << refusal;
}

TEST(ShardBounds, AreEvenAndInOrder) {
  EXPECT_EQ(EvenBounds(512, 3, 128), (ShardBounds{0, 256, 384, 512}));
  EXPECT_EQ(EvenBounds(200, 4, 128), (ShardBounds{0, 128, 200, 200, 200}));
  const Shape shapes[] = {{3, 3}, {1}, {4}};
  const std::vector<ShardBounds> flat = FlatBounds(shapes, 4, 2);
  EXPECT_EQ(flat[0], (ShardBounds{0, 4, 8, 9, 9}));
  EXPECT_EQ(flat[1], (ShardBounds{0, 0, 0, 1, 1}));
  EXPECT_EQ(flat[2], (ShardBounds{0, 0, 0, 2, 4}));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

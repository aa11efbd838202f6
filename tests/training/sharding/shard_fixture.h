// Ranks on the CPU for tests of sharded weights, difficult weights, and comparisons.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "kernels/comm/group/world.h"
#include "kernels/comm/quantized_gather.h"
#include "kernels/training/sharding/shard_bounds.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {

/// World::Run of `body` on `ranks` ranks, each with its own CPU engine.
inline absl::Status OnRanks(int ranks,
                            absl::FunctionRef<absl::Status(const GatherContext& context)> body) {
  std::vector<std::unique_ptr<Engine>> engines;
  WorldOptions options;
  for (int rank = 0; rank < ranks; ++rank) {
    engines.push_back(MakeCpuEngine({.threads = 1}));
    options.engines.push_back(engines.back().get());
  }
  auto world = World::Create(options);
  if (!world.ok()) return world.status();
  return (*world)->Run(
      [&](Rank& rank) {
        return body({rank.engine(), rank.group(kWorldGroup), rank.faults(), rank.cancellation()});
      },
      nullptr);
}

/// Rows whose magnitude grows with their place, so that every rank has another amax, and the
/// largest element last.
inline Tensor TroubledWeight(uint64_t seed, DType dtype, Shape shape) {
  std::vector<float> values = ToValues(Generated(Distribution::kNormal, seed, DType::kF32, shape));
  const size_t columns = static_cast<size_t>(shape[1]);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] *= std::ldexp(1.0f, static_cast<int>(i / columns / 64) - 3);
  }
  values.back() = -300.0f;
  return FromValues(dtype, std::move(shape), values);
}

/// Elements [begin, end) of dim 0.
inline Tensor PartOf(const Tensor& whole, int64_t begin, int64_t end) {
  Shape shape = whole.shape();
  shape[0] = end - begin;
  int64_t row = DTypeBytes(whole.dtype());
  for (size_t dim = 1; dim < shape.size(); ++dim) row *= shape[dim];
  return *Tensor::FromBytes(whole.dtype(), std::move(shape),
                            whole.bytes().subspan(static_cast<size_t>(begin * row),
                                                  static_cast<size_t>((end - begin) * row)));
}

inline void ExpectSameCopy(const std::optional<QuantizedCopy>& subject,
                           const std::optional<QuantizedCopy>& reference) {
  ASSERT_EQ(subject.has_value(), reference.has_value());
  if (!subject.has_value()) return;
  EXPECT_TRUE(SameBits(subject->data, reference->data));
  EXPECT_EQ(subject->format, reference->format);
  EXPECT_EQ(subject->element, reference->element);
  EXPECT_EQ(subject->block_dim, reference->block_dim);
  if (reference->scale_inv.has_value()) {
    EXPECT_TRUE(SameBits(subject->scale_inv, reference->scale_inv));
  }
  ASSERT_EQ(subject->amax.has_value(), reference->amax.has_value());
  if (reference->amax.has_value()) {
    EXPECT_TRUE(SameBits(subject->amax, reference->amax));
  }
  ASSERT_EQ(subject->scale.has_value(), reference->scale.has_value());
  if (reference->scale.has_value()) {
    EXPECT_TRUE(SameBits(subject->scale, reference->scale));
  }
}

inline void ExpectSameQuantized(const QuantizedTensor& subject, const QuantizedTensor& reference) {
  EXPECT_EQ(subject.shape, reference.shape);
  EXPECT_EQ(subject.source_dtype, reference.source_dtype);
  ExpectSameCopy(subject.rowwise, reference.rowwise);
  ExpectSameCopy(subject.columnwise, reference.columnwise);
}

struct WeightRule {
  std::string name;
  Quantizer quantizer;
};

inline QuantizerSpec Fp8Tensor(DType element = DType::kF8E4M3) {
  return {.format = QuantizerFormat::kFp8Tensor, .element = element};
}
inline QuantizerSpec Fp8Tiles() {
  return {.format = QuantizerFormat::kFp8Block, .block_dim = 2, .power_2_scale = true};
}
inline QuantizerSpec Mxfp8(int block_dim = 1) {
  return {.format = QuantizerFormat::kMxfp8, .block_dim = block_dim};
}
inline QuantizerSpec Nvfp4Tiles() {
  return {.format = QuantizerFormat::kNvfp4, .element = DType::kF4E2M1x2, .block_dim = 2};
}
inline Quantizer TwoRules(const QuantizerSpec& rowwise, const QuantizerSpec& columnwise) {
  Quantizer quantizer(rowwise);
  quantizer.columnwise = columnwise;
  return quantizer;
}

/// Rules of every format for weights, delayed scaling aside.
inline std::vector<WeightRule> WeightRules() {
  QuantizerSpec powers = Fp8Tensor();
  powers.power_2_scale = true;
  QuantizerSpec floor = Mxfp8();
  floor.scale_rule = ScaleRule::kFloor;
  return {{"fp8_tensor", Fp8Tensor()},
          {"fp8_tensor e5m2, powers of two", powers},
          {"fp8_block tiles", Fp8Tiles()},
          {"mxfp8", Mxfp8()},
          {"mxfp8 floor", floor},
          {"mxfp8 tiles", Mxfp8(2)},
          {"nvfp4 tiles", Nvfp4Tiles()},
          {"identity", Quantizer()},
          {"e4m3 and e5m2", TwoRules(Fp8Tensor(), Fp8Tensor(DType::kF8E5M2))},
          {"fp8_tensor and identity", TwoRules(Fp8Tensor(), {})}};
}

}  // namespace quantgate

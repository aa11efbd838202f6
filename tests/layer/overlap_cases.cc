#include "tests/layer/overlap_cases.h"

#include <gtest/gtest.h>

#include <utility>

#include "tests/engine/tensor_values.h"

namespace quantgate {

std::vector<OverlapWay> OverlapWays(bool is_mxfp8) {
  using enum OverlapMethod;
  return {
      {"ring", {.fprop = kRingExchange}, {.dgrad = kRingExchange}},
      {"ring in pieces",
       {.fprop = kRingExchange, .pieces = 2},
       {.dgrad = kRingExchange, .pieces = 3}},
      {"aggregate",
       {.fprop = kRingExchange, .aggregate = true},
       {.dgrad = kRingExchange, .aggregate = true}},
      {"pipeline", {.dgrad = kPipeline, .splits = 2}, {.fprop = kPipeline, .splits = 2}},
      {"pipeline in another order",
       {.dgrad = kPipeline, .splits = 1},
       {.fprop = kPipeline, .splits = 2},
       "nccl_ring"},
      {"point to point", {.dgrad = kRingExchange}, {.fprop = kRingExchange, .pieces = 2}, "ub_p2p"},
      {"bulk", {.dgrad = kBulk, .wgrad = kBulk}, {}},
      {"bulk gather", {.dgrad = kBulk}, {}},
      {"bulk sum", {.wgrad = kBulk}, {}, "bf16_rotated:1"},
      {"defaults of 2 splits",
       {.fprop = kRingExchange, .dgrad = kBulk, .wgrad = kBulk},
       {.fprop = kPipeline,
        .dgrad = kRingExchange,
        .wgrad = is_mxfp8 ? kExternal : kNone,
        .splits = 2}},
  };
}

ParallelSetup SetupOf(const OverlapWay& way, int size) {
  return {.size = size,
          .sequence_parallel = true,
          .profile = *ParseReductionProfile(way.profile),
          .column_overlap = way.column,
          .row_overlap = way.row};
}

ParallelSetup WithoutOverlap(ParallelSetup setup) {
  setup.column_overlap = setup.row_overlap = {};
  return setup;
}

int64_t UnitOf(const std::string& recipe) { return recipe.starts_with("mxfp8") ? 128 : 16; }

LayerRequest LinearOf(ParallelMode mode, const std::string& recipe, int size) {
  const int64_t unit = UnitOf(recipe);
  return WithScales(SquareLinear(mode, unit * size, unit * size));
}

Tensor NormalTensor(uint64_t seed, Shape shape) {
  return Generated(Distribution::kNormal, seed, DType::kBF16, std::move(shape));
}

LayerRequest NormLayerOf(LayerKind kind, const std::string& recipe, int size) {
  const int64_t unit = UnitOf(recipe), columns = 2 * unit, divided = unit * size;
  LayerRequest request;
  request.layer.kind = kind;
  request.layer.parallel_mode = ParallelMode::kColumn;
  request.x = NormalTensor(1, {divided, columns});
  request.parameters["gamma"] = NormalTensor(2, {columns});
  request.parameters["beta"] = NormalTensor(3, {columns});
  request.seed = 7;
  if (kind == LayerKind::kLayerNormLinear) {
    request.parameters["weight"] = NormalTensor(4, {divided, columns});
    request.parameters["bias"] = NormalTensor(5, {divided});
    request.grad_output = NormalTensor(6, {divided, divided});
    return WithScales(request);
  }
  request.layer.activation.kind = ActivationKind::kGelu;
  request.parameters["fc1.weight"] = NormalTensor(4, {divided, columns});
  request.parameters["fc1.bias"] = NormalTensor(5, {divided});
  request.parameters["fc2.weight"] = NormalTensor(7, {columns, divided});
  request.parameters["fc2.bias"] = NormalTensor(8, {columns});
  request.grad_output = NormalTensor(6, {divided, columns});
  return WithScales(request);
}

LayerRequest AttentionLayerOf(LayerKind kind, const std::string& recipe, int size) {
  const int64_t unit = UnitOf(recipe), columns = 2 * unit, divided = unit * size;
  const int64_t head = unit / 2;
  LayerRequest request;
  request.layer.kind = kind;
  request.layer.parallel_mode = ParallelMode::kColumn;
  request.layer.attention = {
      .heads = 4 * size, .groups = size, .mask = AttentionMask::kCausal, .rotary_base = 100.0f};
  request.x = NormalTensor(1, {4 * size, unit / 4, columns});
  request.grad_output = NormalTensor(6, request.x.shape());
  request.parameters["qkv.weight"] = NormalTensor(4, {6 * head * size, columns});
  request.parameters["qkv.bias"] = NormalTensor(5, {6 * head * size});
  request.parameters["proj.weight"] = NormalTensor(7, {columns, 4 * head * size});
  request.parameters["proj.bias"] = NormalTensor(8, {columns});
  request.seed = 7;
  if (kind == LayerKind::kAttention) return WithScales(request);
  request.layer.activation.kind = ActivationKind::kGelu;
  for (const std::string norm : {"norm1", "norm2"}) {
    const uint64_t seed = norm == "norm1" ? 2 : 13;
    request.parameters[norm + ".gamma"] = NormalTensor(seed, {columns});
    request.parameters[norm + ".beta"] = NormalTensor(seed + 1, {columns});
  }
  request.parameters["fc1.weight"] = NormalTensor(9, {divided, columns});
  request.parameters["fc1.bias"] = NormalTensor(10, {divided});
  request.parameters["fc2.weight"] = NormalTensor(11, {columns, divided});
  request.parameters["fc2.bias"] = NormalTensor(12, {columns});
  return WithScales(request);
}

void ExpectSameTensors(const std::vector<NamedTensor>& subject,
                       const std::vector<NamedTensor>& reference) {
  ASSERT_EQ(subject.size(), reference.size());
  for (size_t i = 0; i < subject.size(); ++i) {
    EXPECT_EQ(subject[i].name, reference[i].name);
    EXPECT_TRUE(SameBits(subject[i].tensor, reference[i].tensor)) << reference[i].name;
  }
}

void ExpectSameGemms(const LayerResult& subject, const LayerResult& reference) {
  ASSERT_EQ(subject.gemms.size(), reference.gemms.size());
  for (size_t i = 0; i < subject.gemms.size(); ++i) {
    const GemmRecord& one = subject.gemms[i];
    const GemmRecord& other = reference.gemms[i];
    EXPECT_EQ(one.output, other.output);
    EXPECT_TRUE(SameBits(one.desc.a.data, other.desc.a.data)) << other.output;
    EXPECT_TRUE(SameBits(one.desc.b.data, other.desc.b.data)) << other.output;
    EXPECT_EQ(one.matrices, other.matrices) << other.output;
    // Attention's products have no d; what follows from them is among the intermediates.
    if (one.matrices > 0) continue;
    EXPECT_TRUE(SameBits(one.result.d, other.result.d)) << other.output;
  }
}

namespace {

void ExpectSameSaved(const LayerResult& subject, const LayerResult& reference) {
  ASSERT_EQ(subject.saved.size(), reference.saved.size());
  for (size_t i = 0; i < subject.saved.size(); ++i) {
    EXPECT_EQ(subject.saved[i].name, reference.saved[i].name);
    EXPECT_EQ(subject.saved[i].content, reference.saved[i].content);
    EXPECT_EQ(subject.saved[i].at_save, reference.saved[i].at_save) << reference.saved[i].name;
    EXPECT_EQ(subject.saved[i].at_use, reference.saved[i].at_use) << reference.saved[i].name;
    EXPECT_EQ(subject.saved[i].used, reference.saved[i].used) << reference.saved[i].name;
    EXPECT_EQ(subject.saved[i].size, reference.saved[i].size) << reference.saved[i].name;
  }
  // Buffers differ, so that the most at a time may.
  EXPECT_EQ(subject.gathered.peak > 0, reference.gathered.peak > 0);
  EXPECT_EQ(subject.gathered.held, 0);
  EXPECT_EQ(reference.gathered.held, 0);
}

}  // namespace

void ExpectSameResult(const LayerResult& subject, const LayerResult& reference) {
  ExpectSameTensors(subject.outputs, reference.outputs);
  ExpectSameTensors(subject.intermediates, reference.intermediates);
  ExpectSameTensors(subject.state, reference.state);
  ExpectSameGemms(subject, reference);
  ExpectSameSaved(subject, reference);
}

}  // namespace quantgate

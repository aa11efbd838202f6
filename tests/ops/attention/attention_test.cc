// Attention beside its GEMMs: rows written out as docs/numerics.md section 9 has them, with a tree
// over all keys; refusals, empty tensors, cancellation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/numerics/cast.h"
#include "kernels/numerics/transcendental.h"
#include "kernels/ops/attention/attention.h"
#include "kernels/tensor/generate/generate.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

const std::vector<DType> kFloats = {DType::kF32, DType::kBF16, DType::kF16};

float RoundedByCast(float value, DType dtype) {
  if (dtype == DType::kBF16) return DecodeFloat<BFloat16>(EncodeFloat<BFloat16>(value));
  if (dtype == DType::kF16) return DecodeFloat<Float16>(EncodeFloat<Float16>(value));
  return value;
}

/// Level by level over a power of two of terms, -0.0 behind the last.
float SumLevelByLevel(std::vector<float> terms) {
  size_t count = 1;
  while (count < terms.size()) count *= 2;
  terms.resize(count, -0.0f);
  for (; count > 1; count /= 2) {
    for (size_t i = 0; i < count / 2; ++i) terms[i] = terms[2 * i] + terms[2 * i + 1];
  }
  return terms[0];
}

bool IsLeftOut(AttentionMask mask, int64_t query, int64_t key, int64_t queries, int64_t keys) {
  return mask == AttentionMask::kCausal && key > query + keys - queries;
}

/// Rows of [queries][keys], one after the other; `row(values, left_out)` turns each into another.
template <class Row>
std::vector<float> ByRows(const std::vector<float>& values, int64_t queries, int64_t keys,
                          AttentionMask mask, const Row& row) {
  std::vector<float> result;
  for (size_t begin = 0; begin < values.size(); begin += keys) {
    const int64_t query = static_cast<int64_t>(begin) / keys % queries;
    std::vector<bool> left_out;
    for (int64_t key = 0; key < keys; ++key) {
      left_out.push_back(IsLeftOut(mask, query, key, queries, keys));
    }
    for (const float value : row(begin, left_out)) result.push_back(CanonicalFloat(value));
  }
  return result;
}

std::vector<float> ProbabilitiesByHand(const SoftmaxDesc& desc, int64_t queries, int64_t keys) {
  const std::vector<float> scores = ToValues(desc.scores);
  return ByRows(scores, queries, keys, desc.mask, [&](size_t begin, const auto& left_out) {
    std::vector<float> z(keys), terms(keys);
    float largest = -INFINITY;
    for (int64_t j = 0; j < keys; ++j) {
      z[j] = RoundedByCast(scores[begin + j] * desc.scale, desc.scores.dtype());
      if (!left_out[j] && !(z[j] <= largest)) largest = z[j];  // A NaN too, which then stays.
      if (std::isnan(largest)) break;
    }
    for (int64_t j = 0; j < keys; ++j) terms[j] = left_out[j] ? 0.0f : Exp(z[j] - largest);
    const float sum = SumLevelByLevel(terms);
    for (int64_t j = 0; j < keys; ++j) terms[j] = left_out[j] ? 0.0f : terms[j] / sum;
    return terms;
  });
}

std::vector<float> GradientByHand(const SoftmaxBackwardDesc& desc, int64_t queries, int64_t keys) {
  const std::vector<float> g = ToValues(desc.gradient), p = ToValues(desc.probabilities);
  return ByRows(g, queries, keys, desc.mask, [&](size_t begin, const auto& left_out) {
    std::vector<float> terms(keys);
    for (int64_t j = 0; j < keys; ++j) {
      terms[j] = left_out[j] ? 0.0f : g[begin + j] * p[begin + j];
    }
    const float sum = SumLevelByLevel(terms);
    for (int64_t j = 0; j < keys; ++j) {
      const float slope = RoundedByCast((g[begin + j] - sum) * p[begin + j], desc.gradient.dtype());
      terms[j] = left_out[j] ? 0.0f : slope * desc.scale;
    }
    return terms;
  });
}

std::vector<ExecutionContext> Paths() {
  std::vector<ExecutionContext> paths;
  for (const Isa isa : RunnableIsas()) paths.push_back({isa, 1, nullptr});
  paths.push_back({BestIsa(), 3, nullptr});
  return paths;
}

void ExpectRowsByHand(const SoftmaxDesc& desc, const Tensor& gradient) {
  const int64_t queries = desc.scores.shape()[1], keys = desc.scores.columns();
  const Tensor expected =
      FromValues(DType::kF32, desc.scores.shape(), ProbabilitiesByHand(desc, queries, keys));
  SoftmaxBackwardDesc backward = {gradient, expected, desc.scale, desc.mask};
  const Tensor slopes =
      FromValues(gradient.dtype(), gradient.shape(), GradientByHand(backward, queries, keys));
  for (const ExecutionContext& context : Paths()) {
    SCOPED_TRACE(std::string(IsaName(context.isa)));
    const SoftmaxResult result = *SoftmaxForwardCpu(desc, context);
    EXPECT_TRUE(SameBits(result.probabilities, expected));
    const DType dtype = desc.scores.dtype();
    if (dtype != DType::kF32) {
      EXPECT_TRUE(SameBits(result.rounded, *CastTensor(expected, dtype, {})));
    } else {
      EXPECT_EQ(result.rounded.data(), result.probabilities.data());
    }
    EXPECT_TRUE(SameBits(*SoftmaxBackwardCpu(backward, context), slopes));
  }
}

TEST(SoftmaxTest, RowsWrittenOut) {
  const std::pair<int64_t, int64_t> shapes[] = {{1, 1},   {2, 3},   {5, 5},   {7, 16},  {16, 17},
                                                {3, 127}, {9, 128}, {4, 300}, {2, 2050}};
  uint64_t seed = 0;
  for (const auto& [queries, keys] : shapes) {
    for (const DType dtype : kFloats) {
      for (const AttentionMask mask : {AttentionMask::kNone, AttentionMask::kCausal}) {
        for (const Distribution distribution : AllDistributions()) {
          SCOPED_TRACE(std::string(DistributionName(distribution)) + " " +
                       std::string(DTypeName(dtype)) + " " + std::to_string(queries) + "x" +
                       std::to_string(keys) + " " + std::string(AttentionMaskName(mask)));
          SoftmaxDesc desc;
          desc.scores = Generated(distribution, ++seed, dtype, {2, queries, keys});
          desc.scale = seed % 3 == 0 ? 1.0f : 1.7f;
          desc.mask = mask;
          ExpectRowsByHand(desc, Generated(distribution, ++seed, dtype, {2, queries, keys}));
          if (HasFailure()) return;  // The first of thousands says enough.
        }
      }
    }
  }
}

// What the mask leaves out is not read: NaN there changes nothing.
TEST(SoftmaxTest, WhatIsLeftOutDoesNotMatter) {
  SoftmaxDesc desc;
  desc.scores = Generated(Distribution::kNormal, 1, DType::kF32, {6, 9});
  desc.mask = AttentionMask::kCausal;
  const SoftmaxResult clean = *SoftmaxForwardCpu(desc, {});
  SoftmaxBackwardDesc backward = {Generated(Distribution::kNormal, 2, DType::kF32, {6, 9}),
                                  clean.probabilities, 1, AttentionMask::kCausal};
  const Tensor gradient = *SoftmaxBackwardCpu(backward, {});
  int left_out = 0;
  for (int64_t i = 0; i < 6; ++i) {
    for (int64_t j = i + 4; j < 9; ++j, ++left_out) {
      desc.scores.as<float>()[i * 9 + j] = NAN;
      backward.gradient.as<float>()[i * 9 + j] = INFINITY;
      EXPECT_EQ(clean.probabilities.as<uint32_t>()[i * 9 + j], 0u);
      EXPECT_EQ(gradient.as<uint32_t>()[i * 9 + j], 0u);
    }
  }
  EXPECT_EQ(left_out, 15);
  EXPECT_TRUE(SameBits(SoftmaxForwardCpu(desc, {})->probabilities, clean.probabilities));
  EXPECT_TRUE(SameBits(*SoftmaxBackwardCpu(backward, {}), gradient));
}

Tensor Zeros(DType dtype, Shape shape) {
  Tensor tensor = *Tensor::Allocate(dtype, std::move(shape));
  std::memset(tensor.data(), 0, tensor.byte_size());
  return tensor;
}

RotaryDesc Rotary() {
  RotaryDesc desc;
  desc.heads = Zeros(DType::kBF16, {4, 3, 8});
  desc.table = {Zeros(DType::kBF16, {3, 4}), Zeros(DType::kBF16, {3, 4})};
  return desc;
}

SoftmaxDesc Forward() {
  SoftmaxDesc desc;
  desc.scores = Zeros(DType::kF16, {2, 3, 5});
  return desc;
}

SoftmaxBackwardDesc Backward() {
  SoftmaxBackwardDesc desc;
  desc.gradient = Zeros(DType::kF16, {2, 3, 5});
  desc.probabilities = Zeros(DType::kF32, {2, 3, 5});
  return desc;
}

template <class Desc>
struct Refused {
  std::function<void(Desc&)> change;
  std::vector<std::string> words;
};

template <class Desc, class Check>
void ExpectRefused(const Desc& good, const Check& check, const std::vector<Refused<Desc>>& all) {
  EXPECT_TRUE(check(good).ok()) << check(good);
  for (const Refused<Desc>& one : all) {
    Desc changed = good;
    one.change(changed);
    const absl::Status status = check(changed);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    for (const std::string& word : one.words) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(word));
    }
  }
}

TEST(AttentionCheck, Rotary) {
  using Desc = RotaryDesc;
  ExpectRefused<Desc>(Rotary(), [](const Desc& desc) { return RotateCpu(desc, {}).status(); },
                      {{[](Desc& d) { d.heads = Tensor(); }, {"heads", "is absent"}},
                       {[](Desc& d) {
                          d.heads = Zeros(DType::kF8E4M3, {4, 3, 8});
                        },
                        {"heads", "f8_e4m3"}},
                       {[](Desc& d) {
                          d.heads = Zeros(DType::kBF16, {12, 8});
                        },
                        {"heads", "12x8", "rank 3"}},
                       {[](Desc& d) {
                          d.heads = Zeros(DType::kBF16, {4, 3, 7});
                        },
                        {"heads", "4x3x7", "even"}},
                       {[](Desc& d) {
                          d.heads = Zeros(DType::kBF16, {4, 3, 0});
                        },
                        {"heads", "at least 2"}},
                       {[](Desc& d) {
                          d.table.cosines = Zeros(DType::kF32, {3, 4});
                        },
                        {"table.cosines", "f32[3x4]", "must be bf16"}},
                       {[](Desc& d) {
                          d.table.sines = Zeros(DType::kBF16, {3, 8});
                        },
                        {"table.sines", "3x8", "must be 3x4"}},
                       {[](Desc& d) { d.period = 0; }, {"period is 0", "at least 1"}},
                       {[](Desc& d) { d.rotated = 2; }, {"rotated is 2", "0 to 1"}},
                       {[](Desc& d) { d.rotated = -1; }, {"rotated is -1"}}});
}

TEST(AttentionCheck, Softmax) {
  using Desc = SoftmaxDesc;
  ExpectRefused<Desc>(Forward(),
                      [](const Desc& desc) { return SoftmaxForwardCpu(desc, {}).status(); },
                      {{[](Desc& d) { d.scores = Tensor(); }, {"scores", "is absent"}},
                       {[](Desc& d) {
                          d.scores = Zeros(DType::kI32, {2, 3});
                        },
                        {"scores", "i32"}},
                       {[](Desc& d) { d.scores = Zeros(DType::kF32, {3}); }, {"scores", "queries"}},
                       {[](Desc& d) {
                          d.scores = Zeros(DType::kF32, {3, 0});
                        },
                        {"scores", "3x0", "at least 1"}},
                       {[](Desc& d) {
                          d.scores = Zeros(DType::kF32, {6, 5});
                          d.mask = AttentionMask::kCausal;
                        },
                        {"scores", "6x5", "as many keys as queries"}},
                       {[](Desc& d) { d.scale = NAN; }, {"scale", "finite"}},
                       {[](Desc& d) { d.scale = -INFINITY; }, {"scale", "finite"}}});
}

TEST(AttentionCheck, SoftmaxBackward) {
  using Desc = SoftmaxBackwardDesc;
  ExpectRefused<Desc>(Backward(),
                      [](const Desc& desc) { return SoftmaxBackwardCpu(desc, {}).status(); },
                      {{[](Desc& d) { d.gradient = Tensor(); }, {"gradient", "is absent"}},
                       {[](Desc& d) {
                          d.probabilities = Zeros(DType::kF16, {2, 3, 5});
                        },
                        {"probabilities", "f16", "must be f32"}},
                       {[](Desc& d) {
                          d.probabilities = Zeros(DType::kF32, {6, 5});
                        },
                        {"probabilities", "6x5", "2x3x5", "that of the gradient"}},
                       {[](Desc& d) { d.scale = INFINITY; }, {"scale", "inf", "finite"}},
                       {[](Desc& d) {
                          d.gradient = Zeros(DType::kF16, {6, 5});
                          d.probabilities = Zeros(DType::kF32, {6, 5});
                          d.mask = AttentionMask::kCausal;
                        },
                        {"gradient", "6x5", "as many keys as queries"}}});
}

TEST(AttentionCheck, TablesAndDims) {
  const auto table = [](float base, int64_t positions, int64_t columns, DType dtype) {
    return std::string(MakeRotaryTable(base, positions, columns, dtype).status().message());
  };
  EXPECT_EQ(table(1e4f, 3, 8, DType::kBF16), "");
  EXPECT_THAT(table(0, 3, 8, DType::kBF16), HasSubstr("base is 0: must be finite and above 0"));
  EXPECT_THAT(table(-2, 3, 8, DType::kBF16), HasSubstr("base is -2"));
  EXPECT_THAT(table(INFINITY, 3, 8, DType::kBF16), HasSubstr("base is inf"));
  EXPECT_THAT(table(NAN, 3, 8, DType::kBF16), HasSubstr("base is nan"));
  EXPECT_THAT(table(2, -1, 8, DType::kBF16), HasSubstr("positions is -1"));
  EXPECT_THAT(table(2, 3, 7, DType::kBF16), HasSubstr("columns is 7: must be even"));
  EXPECT_THAT(table(2, 3, 0, DType::kBF16), HasSubstr("columns is 0"));
  EXPECT_THAT(table(2, 3, 8, DType::kF8E4M3), HasSubstr("dtype is f8_e4m3"));
  const auto swap = [](const Tensor& source) {
    return std::string(SwapDimsCpu(source, {}).status().message());
  };
  EXPECT_THAT(swap(Tensor()), HasSubstr("source is absent"));
  EXPECT_THAT(swap(Zeros(DType::kF32, {3})), HasSubstr("source is f32[3]: must have at least"));
}

TEST(AttentionCheck, NoRows) {
  RotaryDesc rotary = Rotary();
  rotary.heads = Zeros(DType::kBF16, {0, 3, 8});
  EXPECT_EQ(TensorText(*RotateCpu(rotary, {})), "bf16[0x3x8]");
  rotary.heads = Zeros(DType::kBF16, {4, 0, 8});
  rotary.table = *MakeRotaryTable(1e4f, 0, 8, DType::kBF16);
  EXPECT_EQ(TensorText(*RotateCpu(rotary, {})), "bf16[4x0x8]");
  SoftmaxDesc forward = Forward();
  forward.scores = Zeros(DType::kF16, {2, 0, 5});
  for (const AttentionMask mask : {AttentionMask::kNone, AttentionMask::kCausal}) {
    forward.mask = mask;
    const SoftmaxResult result = *SoftmaxForwardCpu(forward, {});
    EXPECT_EQ(TensorText(result.probabilities), "f32[2x0x5]");
    EXPECT_EQ(TensorText(result.rounded), "f16[2x0x5]");
    const SoftmaxBackwardDesc backward = {forward.scores, result.probabilities, 1, mask};
    EXPECT_EQ(TensorText(*SoftmaxBackwardCpu(backward, {})), "f16[2x0x5]");
  }
  EXPECT_EQ(TensorText(*SwapDimsCpu(Zeros(DType::kF32, {0, 7, 2}), {})), "f32[7x0x2]");
  EXPECT_EQ(TensorText(*SwapDimsCpu(Zeros(DType::kF32, {3, 7, 0}), {})), "f32[7x3x0]");
}

TEST(AttentionCheck, StopsWhenCancelled) {
  Cancellation cancelled;
  cancelled.Cancel();
  const ExecutionContext context = {BestIsa(), 1, &cancelled};
  for (const absl::Status& status :
       {SwapDimsCpu(Forward().scores, context).status(), RotateCpu(Rotary(), context).status(),
        SoftmaxForwardCpu(Forward(), context).status(),
        SoftmaxBackwardCpu(Backward(), context).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  }
}

TEST(AttentionCheck, NamesOfMasks) {
  EXPECT_EQ(*ParseAttentionMask("none"), AttentionMask::kNone);
  EXPECT_EQ(*ParseAttentionMask("causal"), AttentionMask::kCausal);
  EXPECT_EQ(AttentionMaskName(AttentionMask::kCausal), "causal");
  EXPECT_THAT(std::string(ParseAttentionMask("Causal").status().message()),
              HasSubstr("attention mask is \"Causal\": unknown name; known: none, causal"));
}

TEST(SwapDimsTest, TwiceIsTheSame) {
  for (const DType dtype : {DType::kU8, DType::kBF16, DType::kF32, DType::kF64}) {
    Tensor source = *Tensor::Allocate(dtype, {13, 40, 3});
    for (size_t i = 0; i < source.byte_size(); ++i) {
      source.data()[i] = static_cast<std::byte>(i * 2654435761u >> 7);
    }
    for (const ExecutionContext& context : Paths()) {
      const Tensor swapped = *SwapDimsCpu(source, context);
      EXPECT_EQ(swapped.shape(), (Shape{40, 13, 3}));
      const size_t bytes = 3 * DTypeBytes(dtype);
      EXPECT_EQ(std::memcmp(swapped.data() + (5 * 13 + 7) * bytes,
                            source.data() + (7 * 40 + 5) * bytes, bytes),
                0);
      EXPECT_TRUE(SameBits(*SwapDimsCpu(swapped, context), source));
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

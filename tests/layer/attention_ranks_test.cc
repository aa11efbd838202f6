// Attention and transformer layers divided over ranks: each rank has whole groups of heads, and
// what ranks exchange are the inputs of qkv and fc1 and the sums behind proj and fc2.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/tensor_values.h"
#include "tests/layer/attention_by_hand.h"
#include "tests/layer/parallel_cases.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

constexpr int64_t kSequence = 32, kBatch = 4, kColumns = 128;

/// 32 x 4 rows of 128 columns in 8 heads of 4 groups of 16 columns.
LayerRequest AttentionOf(LayerKind kind) {
  const auto normal = [](uint64_t seed, Shape shape) {
    return Generated(Distribution::kNormal, seed, DType::kBF16, std::move(shape));
  };
  LayerRequest request;
  request.layer.kind = kind;
  request.layer.parallel_mode = ParallelMode::kColumn;
  request.layer.attention = {
      .heads = 8, .groups = 4, .mask = AttentionMask::kCausal, .rotary_base = 500.0f};
  request.x = normal(1, {kSequence, kBatch, kColumns});
  request.grad_output = normal(2, {kSequence, kBatch, kColumns});
  request.parameters["qkv.weight"] = normal(3, {256, kColumns});
  request.parameters["qkv.bias"] = normal(4, {256});
  request.parameters["proj.weight"] = normal(5, {kColumns, 128});
  request.parameters["proj.bias"] = normal(6, {kColumns});
  request.seed = 7;
  if (kind == LayerKind::kAttention) return WithScales(request);
  request.layer.activation.kind = ActivationKind::kSwiglu;
  request.parameters["norm1.gamma"] = normal(8, {kColumns});
  request.parameters["norm2.gamma"] = normal(13, {kColumns});
  request.parameters["fc1.weight"] = normal(9, {512, kColumns});
  request.parameters["fc1.bias"] = normal(10, {512});
  request.parameters["fc2.weight"] = normal(11, {kColumns, 256});
  request.parameters["fc2.bias"] = normal(12, {kColumns});
  return WithScales(request);
}

const Tensor& ValueOf(const LayerResult& result, const std::string& name) {
  for (const auto* tensors : {&result.intermediates, &result.outputs}) {
    for (const NamedTensor& one : *tensors) {
      if (one.name == name) return one.tensor;
    }
  }
  static const Tensor kAbsent;
  ADD_FAILURE() << "no value " << name;
  return kAbsent;
}

std::vector<Tensor> ValuesOf(const std::vector<LayerResult>& results, const std::string& name) {
  std::vector<Tensor> values;
  for (const LayerResult& result : results) values.push_back(ValueOf(result, name));
  return values;
}

TEST(ParallelAttention, HasTheWholeLayersHeads) {
  const LayerRequest request = AttentionOf(LayerKind::kAttention);
  for (const char* text : {"bf16", "fp8_delayed", "fp8_rowwise", "mxfp8", "mxfp6_e2m3",
                           "mxfp6_e3m2", "mxfp4", "mxfp8:backward_override=dequantized"}) {
    const LayerResult whole = RunCase(request, text);
    for (const int size : {2, 4}) {
      for (const bool sequence : {false, true}) {
        SCOPED_TRACE(absl::StrCat(text, " ", size, sequence ? " SP" : ""));
        const std::vector<LayerResult> results =
            RunRanks(request, *Recipe::Parse(text), {.size = size, .sequence_parallel = sequence});
        for (const char* value : {"qkv.y", "proj.x", "proj.dx", "qkv.grad_output"}) {
          EXPECT_TRUE(SameBits(JoinColumnsByHand(ValuesOf(results, value)), ValueOf(whole, value)))
              << value;
        }
        for (const char* gradient : {"qkv.dw", "qkv.db", "proj.dw"}) {
          EXPECT_TRUE(SameBits(Joined(request.layer, gradient, sequence, results),
                               OutputOf(whole, gradient)))
              << gradient;
        }
      }
    }
  }
}

/// One linear module of a layer on several ranks against linear layers of its parts.
class ModuleOnRanks {
 public:
  ModuleOnRanks(const LayerRequest& whole, const Recipe& recipe, bool sequence,
                const std::vector<LayerResult>& results, std::string name)
      : whole_(whole), recipe_(recipe), sequence_(sequence), results_(results), name_(name + ".") {}

  /// `x` and `dx`: the values that it reads and whose gradient it gives.
  void ExpectColumns(const std::string& x, const std::string& dx) {
    const std::vector<Tensor> xs = ValuesOf(results_, x), dxs = ValuesOf(results_, dx);
    std::vector<Tensor> partial_dx;
    for (size_t rank = 0; rank < results_.size(); ++rank) {
      const LayerResult part =
          Part(rank, sequence_ ? JoinRowsByHand(xs) : xs[0],
               ValueOf(results_[rank], name_ + "grad_output"), /*has_bias=*/true);
      EXPECT_TRUE(SameBits(ValueOf(results_[rank], name_ + "y"), OutputOf(part, "y"))) << name_;
      EXPECT_TRUE(SameBits(ValueOf(results_[rank], name_ + "dw"), OutputOf(part, "dw"))) << name_;
      partial_dx.push_back(OutputOf(part, "dx"));
    }
    EXPECT_TRUE(SameBits(sequence_ ? JoinRowsByHand(dxs) : dxs[0], SumByHand(partial_dx))) << name_;
  }
  void ExpectRows() {
    const std::vector<Tensor> dys = ValuesOf(results_, name_ + "grad_output");
    const std::vector<Tensor> ys = ValuesOf(results_, name_ + "y");
    std::vector<Tensor> partial_y;
    for (size_t rank = 0; rank < results_.size(); ++rank) {
      const LayerResult part = Part(rank, ValueOf(results_[rank], name_ + "x"),
                                    sequence_ ? JoinRowsByHand(dys) : dys[0], /*has_bias=*/false);
      EXPECT_TRUE(SameBits(ValueOf(results_[rank], name_ + "dx"), OutputOf(part, "dx"))) << name_;
      EXPECT_TRUE(SameBits(ValueOf(results_[rank], name_ + "dw"), OutputOf(part, "dw"))) << name_;
      partial_y.push_back(OutputOf(part, "y"));
    }
    EXPECT_TRUE(SameBits(sequence_ ? JoinRowsByHand(ys) : ys[0],
                         AddRowByHand(SumByHand(partial_y), whole_.parameters.at(name_ + "bias"))))
        << name_;
  }

 private:
  LayerResult Part(size_t rank, const Tensor& x, const Tensor& dy, bool has_bias) const {
    const LayerRequest shard =
        AloneShard(whole_, static_cast<int>(rank), static_cast<int>(results_.size()));
    LayerRequest linear;
    linear.x = x;
    linear.grad_output = dy;
    linear.parameters["weight"] = shard.parameters.at(name_ + "weight");
    if (has_bias) linear.parameters["bias"] = shard.parameters.at(name_ + "bias");
    linear.seed = whole_.seed;
    return RunCase(linear, recipe_);
  }

  const LayerRequest& whole_;
  const Recipe& recipe_;
  const bool sequence_;
  const std::vector<LayerResult>& results_;
  const std::string name_;
};

void ExpectCoreByHand(const LayerRequest& whole, const std::vector<LayerResult>& results) {
  AttentionOptions of_rank = whole.layer.attention;
  of_rank.heads /= static_cast<int64_t>(results.size());
  of_rank.groups /= static_cast<int64_t>(results.size());
  const auto flat = [](const Tensor& tensor) {
    return *tensor.Reinterpret(tensor.dtype(), {tensor.rows(), tensor.columns()});
  };
  for (const LayerResult& result : results) {
    const HandAttentionResult core =
        AttentionByHand({of_rank, kSequence, kBatch, flat(ValueOf(result, "qkv.y")),
                         flat(ValueOf(result, "proj.dx"))});
    EXPECT_TRUE(SameBits(flat(ValueOf(result, "proj.x")), core.context));
    EXPECT_TRUE(SameBits(flat(ValueOf(result, "qkv.grad_output")), core.dqkv));
  }
}

TEST(ParallelTransformerLayer, IsItsPartsAndSums) {
  const LayerRequest whole = AttentionOf(LayerKind::kTransformerLayer);
  for (const char* text :
       {"bf16", "fp8_current", "fp8_current:backward_override=high_precision", "fp8_rowwise",
        "fp8_block", "mxfp8", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4",
        "nvfp4:disable_stochastic_rounding=true", "nvfp4:backward_override=dequantized"}) {
    const Recipe recipe = *Recipe::Parse(text);
    for (const bool sequence : {false, true}) {
      SCOPED_TRACE(absl::StrCat(text, sequence ? " SP" : ""));
      const std::vector<LayerResult> results =
          RunRanks(whole, recipe, {.size = 2, .sequence_parallel = sequence});
      const auto module = [&](const char* name) {
        return ModuleOnRanks(whole, recipe, sequence, results, name);
      };
      module("qkv").ExpectColumns("qkv.x", "qkv.dx");
      ExpectCoreByHand(whole, results);
      module("proj").ExpectRows();
      module("fc1").ExpectColumns("fc1.x", "fc1.dx");
      module("fc2").ExpectRows();
      const auto joined = [&](const std::string& value) {
        const std::vector<Tensor> parts = ValuesOf(results, value);
        return sequence ? JoinRowsByHand(parts) : parts[0];
      };
      EXPECT_TRUE(SameBits(joined("add1.y"), SumByHand({joined("proj.y"), whole.x})));
      EXPECT_TRUE(SameBits(joined("y"), SumByHand({joined("fc2.y"), joined("add1.y")})));
      EXPECT_EQ(joined("dx").shape(), whole.x.shape());
    }
  }
}

// Under sequence parallelism the gradients of norms are summands, those of each rank's own rows.
TEST(ParallelTransformerLayer, HasNormGradientsOfItsOwnRows) {
  const LayerRequest whole = AttentionOf(LayerKind::kTransformerLayer);
  const std::vector<LayerResult> results =
      RunRanks(whole, *Recipe::Parse("bf16"), {.size = 2, .sequence_parallel = true});
  const auto engine = MakeCpuEngine({.threads = 1});
  for (size_t rank = 0; rank < 2; ++rank) {
    NormForwardDesc forward;
    forward.x = ValueOf(results[rank], "add1.y");
    forward.gamma = whole.parameters.at("norm2.gamma");
    const NormForwardResult saved = *engine->NormForward(forward, nullptr);
    NormBackwardDesc backward;
    backward.dz = ValueOf(results[rank], "fc1.dx");
    backward.x = forward.x;
    backward.gamma = forward.gamma;
    backward.mean = saved.mean;
    backward.rstd = saved.rstd;
    const NormGradients norm = *engine->NormBackward(backward, nullptr);
    EXPECT_TRUE(SameBits(OutputOf(results[rank], "norm2.dgamma"), norm.dgamma));
  }
}

TEST(ParallelAttention, DividesWholeGroups) {
  LayerRequest request = AttentionOf(LayerKind::kAttention);
  EXPECT_EQ(ParameterShardRule(request.layer, "qkv.weight"), (ShardRule{0, 1}));
  EXPECT_EQ(ParameterShardRule(request.layer, "qkv.bias"), (ShardRule{0, 1}));
  EXPECT_EQ(ParameterShardRule(request.layer, "proj.weight"), (ShardRule{1, 1}));
  EXPECT_EQ(ParameterShardRule(request.layer, "proj.bias"), ShardRule{});
  // One group of 62 query heads, a key head and a value head, of 4 columns each: ranks could divide
  // their 256 rows, but not the group.
  request.layer.attention = {.heads = 62, .groups = 1};
  const auto results = TryRanks(request, *Recipe::Parse("bf16"), {.size = 2});
  EXPECT_EQ(results.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(results.status().message()),
              HasSubstr("layer.attention.groups is 1: it must be a multiple of 2"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

// Every kind of layer divided over ranks: against the whole layer on one rank where no operand
// differs, and against its parts as layers of their own elsewhere.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/tensor_values.h"
#include "tests/layer/parallel_cases.h"

namespace quantgate {
namespace QG_TEST_FILE {

Tensor Normal(uint64_t seed, DType dtype, Shape shape) {
  return Generated(Distribution::kNormal, seed, dtype, std::move(shape));
}

/// 64 x 4 rows of 128 columns to 256 and back.
LayerRequest MlpCase(ActivationKind activation) {
  LayerRequest request;
  request.layer.kind = LayerKind::kLayerNormMlp;
  request.layer.parallel_mode = ParallelMode::kColumn;
  request.layer.activation.kind = activation;
  const int64_t hidden = 256, fc1 = IsGated(activation) ? 2 * hidden : hidden;
  request.x = Normal(1, DType::kBF16, {64, 4, 128});
  request.grad_output = Normal(2, DType::kBF16, {64, 4, 128});
  request.parameters["gamma"] = Normal(5, DType::kBF16, {128});
  request.parameters["beta"] = Normal(6, DType::kF32, {128});
  request.parameters["fc1.weight"] = Normal(7, DType::kF32, {fc1, 128});
  request.parameters["fc1.bias"] = Normal(8, DType::kBF16, {fc1});
  request.parameters["fc2.weight"] = Normal(9, DType::kBF16, {128, hidden});
  request.parameters["fc2.bias"] = Normal(10, DType::kBF16, {128});
  request.seed = 7;
  return WithScales(request);
}

const Tensor& IntermediateOf(const LayerResult& result, const std::string& name) {
  for (const NamedTensor& one : result.intermediates) {
    if (one.name == name) return one.tensor;
  }
  static const Tensor kAbsent;
  ADD_FAILURE() << "no intermediate " << name;
  return kAbsent;
}

std::vector<Tensor> Intermediates(const std::vector<LayerResult>& results,
                                  const std::string& name) {
  std::vector<Tensor> tensors;
  for (const LayerResult& result : results) tensors.push_back(IntermediateOf(result, name));
  return tensors;
}

/// A linear layer of these tensors alone.
LayerResult LinearOf(const Tensor& x, const Tensor& dy, const Tensor& weight, const Tensor& bias,
                     const Recipe& recipe) {
  LayerRequest request;
  request.x = x;
  request.grad_output = dy;
  request.parameters["weight"] = weight;
  if (bias.has_value()) request.parameters["bias"] = bias;
  request.seed = 7;
  return RunCase(request, recipe);
}

// What flows between the operations, under recipes that quantize what is rounded before (all but
// delayed scaling): fc1 and fc2 are linear layers of their own, the parts of y and dx are summed.
void ExpectMlpIsItsLinears(const std::string& text, const ParallelSetup& setup,
                           ActivationKind activation) {
  SCOPED_TRACE(absl::StrCat(text, " ", setup.size, setup.sequence_parallel ? " SP" : ""));
  const Recipe recipe = *Recipe::Parse(text);
  const LayerRequest whole = MlpCase(activation);
  const bool sequence = setup.sequence_parallel;
  const std::vector<LayerResult> results = RunRanks(whole, recipe, setup);
  const Tensor norm_out = sequence ? JoinRowsByHand(Intermediates(results, "norm_out"))
                                   : IntermediateOf(results[0], "norm_out");
  std::vector<Tensor> y, dnorm_out;
  for (int rank = 0; rank < setup.size; ++rank) {
    const LayerResult& result = results[static_cast<size_t>(rank)];
    const LayerRequest shard = AloneShard(whole, rank, setup.size);
    const Tensor& hidden = IntermediateOf(result, "fc1.y");
    const LayerResult fc1 =
        LinearOf(norm_out, IntermediateOf(result, "fc1.grad_output"),
                 shard.parameters.at("fc1.weight"), shard.parameters.at("fc1.bias"), recipe);
    EXPECT_TRUE(SameBits(hidden, OutputOf(fc1, "y")));
    EXPECT_TRUE(SameBits(OutputOf(result, "fc1.dw"), OutputOf(fc1, "dw")));
    dnorm_out.push_back(OutputOf(fc1, "dx"));
    const LayerResult fc2 = LinearOf(IntermediateOf(result, "fc2.x"), whole.grad_output,
                                     shard.parameters.at("fc2.weight"), {}, recipe);
    EXPECT_TRUE(SameBits(IntermediateOf(result, "fc2.dx"), OutputOf(fc2, "dx")));
    EXPECT_TRUE(SameBits(OutputOf(result, "fc2.dw"), OutputOf(fc2, "dw")));
    y.push_back(OutputOf(fc2, "y"));
  }
  EXPECT_TRUE(SameBits(Joined(whole.layer, "y", sequence, results),
                       AddRowByHand(SumByHand(y), whole.parameters.at("fc2.bias"))));
  const std::vector<Tensor> parts = Intermediates(results, "dnorm_out");
  EXPECT_TRUE(SameBits(sequence ? JoinRowsByHand(parts) : parts[0], SumByHand(dnorm_out)));
}

TEST(ParallelMlp, IsColumnParallelThenRowParallel) {
  for (const char* recipe : {"bf16", "fp8_current", "fp8_current:backward_override=high_precision",
                             "fp8_rowwise", "fp8_block", "nvfp4:disable_stochastic_rounding=true",
                             "nvfp4:backward_override=dequantized"}) {
    for (const bool sequence : {false, true}) {
      ExpectMlpIsItsLinears(recipe, {.size = 2, .sequence_parallel = sequence},
                            ActivationKind::kGelu);
      ExpectMlpIsItsLinears(recipe, {.size = 4, .sequence_parallel = sequence},
                            ActivationKind::kSwiglu);
    }
  }
  // MX sums the bias gradient before it rounds; what is compared here is the same.
  for (const char* recipe : {"mxfp8", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4"}) {
    ExpectMlpIsItsLinears(recipe, {.size = 2, .sequence_parallel = true}, ActivationKind::kSwiglu);
  }
}

// Of one rank's half of a gated fc1: gate and value of the same columns.
TEST(ParallelMlp, DividesBothHalvesOfAGatedLayer) {
  const LayerRequest whole = MlpCase(ActivationKind::kSwiglu);
  EXPECT_EQ(ParameterShardRule(whole.layer, "fc1.weight"), (ShardRule{0, 2}));
  EXPECT_EQ(ParameterShardRule(whole.layer, "fc1.bias"), (ShardRule{0, 2}));
  EXPECT_EQ(ParameterShardRule(whole.layer, "fc2.weight"), (ShardRule{1, 1}));
  EXPECT_EQ(ParameterShardRule(whole.layer, "fc2.bias"), ShardRule{});
  EXPECT_EQ(ParameterShardRule(whole.layer, "gamma"), ShardRule{});
  const Tensor& weight = whole.parameters.at("fc1.weight");
  const LayerRequest shard = AloneShard(whole, 1, 4);
  EXPECT_TRUE(SameBits(shard.parameters.at("fc1.weight"),
                       JoinRowsByHand({RowsOf(weight, 64, 64), RowsOf(weight, 256 + 64, 64)})));
}

// fc1's columns and fc2's inputs are the whole layer's, which no rank count changes.
TEST(ParallelMlp, HasTheWholeLayersHiddenValues) {
  for (const char* text :
       {"bf16", "fp8_delayed", "fp8_rowwise", "mxfp8", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4"}) {
    for (const ActivationKind activation : {ActivationKind::kGelu, ActivationKind::kSwiglu}) {
      for (const bool sequence : {false, true}) {
        const LayerRequest request = MlpCase(activation);
        const LayerResult whole = RunCase(request, text);
        const std::vector<LayerResult> results =
            RunRanks(request, *Recipe::Parse(text), {.size = 2, .sequence_parallel = sequence});
        EXPECT_TRUE(SameBits(JoinColumnsByHand(Intermediates(results, "fc2.x")),
                             IntermediateOf(whole, "fc2.x")))
            << text << sequence;
        EXPECT_TRUE(SameBits(JoinColumnsByHand(Intermediates(results, "fc2.dx")),
                             IntermediateOf(whole, "fc2.dx")));
        EXPECT_TRUE(SameBits(Joined(request.layer, "fc2.dw", sequence, results),
                             OutputOf(whole, "fc2.dw")));
        EXPECT_TRUE(SameBits(Joined(request.layer, "fc1.dw", sequence, results),
                             OutputOf(whole, "fc1.dw")));
      }
    }
  }
}

LayerRequest NormLinear(NormKind norm) {
  LayerRequest request = SquareLinear(ParallelMode::kColumn, 256, 128);
  request.layer.kind = LayerKind::kLayerNormLinear;
  request.layer.norm.kind = norm;
  request.parameters["gamma"] = Normal(5, DType::kF32, {128});
  return WithScales(request);
}

TEST(ParallelNormLinear, IsTheWholeLayer) {
  for (const NormKind norm : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    for (const char* text :
         {"bf16", "fp8_delayed", "fp8_rowwise", "mxfp8", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4"}) {
      for (const bool sequence : {false, true}) {
        const LayerRequest request = NormLinear(norm);
        const LayerResult whole = RunCase(request, text);
        const std::vector<LayerResult> results =
            RunRanks(request, *Recipe::Parse(text), {.size = 2, .sequence_parallel = sequence});
        for (const char* output : {"y", "dw", "db"}) {
          EXPECT_TRUE(
              SameBits(Joined(request.layer, output, sequence, results), OutputOf(whole, output)))
              << text << output << sequence;
        }
      }
    }
  }
}

// The gathered norm output is returned: it is gathered in high precision, shard and whole are
// quantized each by itself, and the bits are those of the shards' codes gathered.
TEST(ParallelNormLinear, ReturnsTheNormOutputOfAllRanks) {
  for (const char* text : {"bf16", "fp8_current", "fp8_rowwise", "fp8_block", "mxfp8", "mxfp6_e2m3",
                           "mxfp6_e3m2", "mxfp4", "nvfp4", "mxfp8:backward_override=dequantized"}) {
    SCOPED_TRACE(text);
    LayerRequest request = NormLinear(NormKind::kLayerNorm);
    const Recipe recipe = *Recipe::Parse(text);
    const ParallelSetup setup{.size = 2, .sequence_parallel = true};
    const std::vector<LayerResult> plain = RunRanks(request, recipe, setup);
    request.layer.return_norm_output = true;
    const std::vector<LayerResult> results = RunRanks(request, recipe, setup);
    const LayerResult whole = RunCase(request, recipe);
    EXPECT_TRUE(
        SameBits(Joined(request.layer, "norm_out", true, results), OutputOf(whole, "norm_out")));
    for (size_t rank = 0; rank < 2; ++rank) {
      for (const char* output : {"y", "dx", "dw"}) {
        EXPECT_TRUE(SameBits(OutputOf(results[rank], output), OutputOf(plain[rank], output)))
            << output;
      }
    }
  }
}

/// x -> norm -> column -> bias -> activation -> row -> bias -> add x.
LayerRequest ChainCase() {
  LayerRequest request;
  request.layer.kind = LayerKind::kChain;
  const auto add = [&](OperationKind kind, const char* name) -> OperationSpec& {
    OperationSpec operation;
    operation.kind = kind;
    operation.name = name;
    request.layer.operations.push_back(operation);
    return request.layer.operations.back();
  };
  add(OperationKind::kNorm, "ln").norm.kind = NormKind::kRmsNorm;
  add(OperationKind::kBasicLinear, "up").parallel_mode = ParallelMode::kColumn;
  add(OperationKind::kBias, "up_bias");
  add(OperationKind::kActivation, "act").activation.kind = ActivationKind::kSwiglu;
  add(OperationKind::kBasicLinear, "down").parallel_mode = ParallelMode::kRow;
  add(OperationKind::kBias, "down_bias");
  add(OperationKind::kAdd, "residual").addend = "x";
  request.x = Normal(1, DType::kBF16, {256, 128});
  request.grad_output = Normal(2, DType::kBF16, {256, 128});
  request.parameters["ln.gamma"] = Normal(17, DType::kBF16, {128});
  request.parameters["up.weight"] = Normal(18, DType::kBF16, {512, 128});
  request.parameters["up_bias.bias"] = Normal(19, DType::kBF16, {512});
  request.parameters["down.weight"] = Normal(20, DType::kF32, {128, 256});
  request.parameters["down_bias.bias"] = Normal(21, DType::kBF16, {128});
  request.seed = 7;
  return WithScales(request);
}

// The same operations as one layer: norm, fc1, activation and fc2 of a layernorm_mlp.
TEST(ParallelChain, IsTheMlpOfTheSameOperations) {
  LayerRequest chain = ChainCase();
  chain.layer.operations.pop_back();
  LayerRequest mlp;
  mlp.layer.kind = LayerKind::kLayerNormMlp;
  mlp.layer.parallel_mode = ParallelMode::kColumn;
  mlp.layer.norm.kind = NormKind::kRmsNorm;
  mlp.layer.activation.kind = ActivationKind::kSwiglu;
  mlp.x = chain.x;
  mlp.grad_output = chain.grad_output;
  mlp.seed = chain.seed;
  const std::pair<const char*, const char*> names[] = {{"ln.gamma", "gamma"},
                                                       {"up.weight", "fc1.weight"},
                                                       {"up_bias.bias", "fc1.bias"},
                                                       {"down.weight", "fc2.weight"},
                                                       {"down_bias.bias", "fc2.bias"}};
  for (const auto& [from, to] : names) mlp.parameters[to] = chain.parameters.at(from);
  mlp = WithScales(mlp);
  for (const bool fused : {true, false}) {
    chain.layer.fused = mlp.layer.fused = fused;
    for (const char* text : {"bf16", "fp8_delayed", "fp8_current", "fp8_rowwise", "mxfp8",
                             "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4", "nvfp4"}) {
      for (const bool sequence : {false, true}) {
        SCOPED_TRACE(absl::StrCat(text, fused, sequence));
        const ParallelSetup setup{.size = 2, .sequence_parallel = sequence};
        const std::vector<LayerResult> chains = RunRanks(chain, *Recipe::Parse(text), setup);
        const std::vector<LayerResult> mlps = RunRanks(mlp, *Recipe::Parse(text), setup);
        for (size_t rank = 0; rank < 2; ++rank) {
          EXPECT_TRUE(SameBits(OutputOf(chains[rank], "y"), OutputOf(mlps[rank], "y")));
          EXPECT_TRUE(SameBits(OutputOf(chains[rank], "dx"), OutputOf(mlps[rank], "dx")));
          EXPECT_TRUE(SameBits(OutputOf(chains[rank], "up.dw"), OutputOf(mlps[rank], "fc1.dw")));
          EXPECT_TRUE(SameBits(OutputOf(chains[rank], "down.dw"), OutputOf(mlps[rank], "fc2.dw")));
          EXPECT_TRUE(
              SameBits(OutputOf(chains[rank], "up_bias.db"), OutputOf(mlps[rank], "fc1.db")));
          EXPECT_TRUE(
              SameBits(OutputOf(chains[rank], "down_bias.db"), OutputOf(mlps[rank], "fc2.db")));
        }
      }
    }
  }
}

TEST(ParallelChain, AddsWhatIsDividedAlike) {
  const LayerRequest request = ChainCase();
  for (const bool sequence : {false, true}) {
    const ParallelSetup setup{.size = 2, .sequence_parallel = sequence};
    const std::vector<LayerResult> results = RunRanks(request, *Recipe::Parse("bf16"), setup);
    LayerRequest without = request;
    without.layer.operations.pop_back();
    const std::vector<LayerResult> branches = RunRanks(without, *Recipe::Parse("bf16"), setup);
    const Tensor branch = Joined(without.layer, "y", sequence, branches);
    EXPECT_TRUE(
        SameBits(Joined(request.layer, "y", sequence, results), SumByHand({branch, request.x})));
  }
}

TEST(ParallelGroupedLinear, CommunicatesNothing) {
  for (const ParallelMode mode : {ParallelMode::kColumn, ParallelMode::kRow}) {
    LayerRequest request = GroupedLinearCase();
    request.layer.parallel_mode = mode;
    if (mode == ParallelMode::kRow) {
      for (const char* bias : {"bias.0", "bias.1", "bias.2"}) request.parameters.erase(bias);
    }
    for (const char* text : {"bf16", "fp8_current", "fp8_rowwise", "fp8_block"}) {
      for (const bool sequence : {false, true}) {
        const std::vector<LayerResult> results =
            RunRanks(request, *Recipe::Parse(text), {.size = 2, .sequence_parallel = sequence});
        for (int rank = 0; rank < 2; ++rank) {
          ExpectSameOutputs(results[static_cast<size_t>(rank)],
                            RunCase(AloneShard(request, rank, 2), text));
        }
      }
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

// What the kinds of layers have to do with each other: experts with linear layers, layers with the
// chains of their parts, fused with unfused operations.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/layer/layer_step.h"
#include "tests/engine/order_recorder.h"
#include "tests/engine/tensor_values.h"
#include "tests/layer/layer_cases.h"

namespace quantgate {
namespace QG_TEST_FILE {

const char* const kClasses[] = {"bf16",
                                "fp8_current",
                                "fp8_delayed",
                                "fp8_block",
                                "mxfp8",
                                "nvfp4:disable_stochastic_rounding=true",
                                "fp8_current:backward_override=high_precision",
                                "mxfp8:backward_override=dequantized"};

OperationSpec Operation(OperationKind kind, const std::string& name) {
  OperationSpec operation;
  operation.kind = kind;
  operation.name = name;
  return operation;
}

/// Outputs by other names: {"dw", "l.dw"} compares subject's dw with reference's l.dw.
void ExpectSameAs(const LayerResult& subject, const LayerResult& reference,
                  const std::vector<std::pair<std::string, std::string>>& names) {
  for (const auto& [own, other] : names) {
    EXPECT_TRUE(SameBits(OutputOf(subject, own), OutputOf(reference, other))) << own;
  }
}

Tensor RowsOf(const Tensor& tensor, int64_t begin, int64_t count) {
  const size_t row = tensor.columns() * DTypeBytes(tensor.dtype());
  return *Tensor::FromBytes(tensor.dtype(), {count, tensor.columns()},
                            tensor.bytes().subspan(begin * row, count * row));
}

TEST(GroupedLinear, IsSeparateLinearLayers) {
  const LayerRequest grouped = GroupedLinearCase();
  for (const std::string recipe : {"nvfp4", "fp8_current", "fp8_delayed", "mxfp8", "bf16",
                                   "nvfp4:backward_override=dequantized"}) {
    const LayerResult all = RunCase(grouped, recipe);
    int64_t row = 0;
    for (uint32_t expert = 0; expert < 3; ++expert) {
      SCOPED_TRACE(absl::StrCat(recipe, " ", expert));
      const int64_t rows = grouped.layer.m_splits[expert];
      const std::string suffix = absl::StrCat(".", expert);
      const auto engine = MakeCpuEngine({});
      StepRecorder recorder(*engine, Arithmetic{}, nullptr);
      LayerState state;
      state.parameters["weight"].value = grouped.parameters.at("weight" + suffix);
      state.parameters["bias"].value = grouped.parameters.at("bias" + suffix);
      const StepOptions options{
          .recipe = *Recipe::Parse(recipe), .seed = grouped.seed, .first_call_id = 3 * expert};
      auto forward =
          ForwardLayer(recorder, LayerSpec{}, state, RowsOf(grouped.x, row, rows), options);
      ASSERT_TRUE(forward.ok()) << forward.status();
      auto backward = BackwardLayer(recorder, LayerSpec{}, state, std::move(forward->saved),
                                    RowsOf(grouped.grad_output, row, rows));
      ASSERT_TRUE(backward.ok()) << backward.status();
      EXPECT_TRUE(SameBits(RowsOf(OutputOf(all, "y"), row, rows), forward->y));
      EXPECT_TRUE(SameBits(RowsOf(OutputOf(all, "dx"), row, rows), backward->dx));
      ASSERT_EQ(backward->gradients.size(), 2u);
      EXPECT_TRUE(SameBits(OutputOf(all, "dw" + suffix), backward->gradients[0].tensor));
      EXPECT_TRUE(SameBits(OutputOf(all, "db" + suffix), backward->gradients[1].tensor));
      row += rows;
    }
  }
}

TEST(GroupedLinear, AnEmptyExpertChangesNothingAndItsGradientsAreZero) {
  const LayerRequest with = GroupedLinearCase();
  LayerRequest without = with;
  without.layer.m_splits = {32, 32};
  for (const char* word : {"weight", "bias"}) {
    auto& parameters = without.parameters;
    parameters[absl::StrCat(word, ".1")] = parameters.at(absl::StrCat(word, ".2"));
    parameters.erase(absl::StrCat(word, ".2"));
  }
  for (const char* recipe : kClasses) {
    SCOPED_TRACE(recipe);
    const LayerResult result = RunCase(with, recipe);
    ExpectSameAs(result, RunCase(without, recipe),
                 {{"y", "y"}, {"dx", "dx"}, {"dw.0", "dw.0"}, {"dw.2", "dw.1"}, {"db.2", "db.1"}});
    for (const char* name : {"dw.1", "db.1"}) {
      for (const float value : ToValues(OutputOf(result, name))) {
        EXPECT_EQ(value, 0.0f);
        EXPECT_FALSE(std::signbit(value));
      }
    }
  }
}

TEST(GroupedLinear, AnExpertWithoutRowsLeavesItsMainGradAlone) {
  LayerRequest request = GroupedLinearCase();
  for (int expert = 0; expert < 3; ++expert) {
    request.main_grads[absl::StrCat("weight.", expert)] =
        Generated(Distribution::kNormal, 30 + expert, DType::kF32, {96, 64});
  }
  for (const char* recipe : kClasses) {
    const LayerResult result = RunCase(request, recipe);
    EXPECT_TRUE(SameBits(OutputOf(result, "main_grad.1"), request.main_grads.at("weight.1")));
    EXPECT_FALSE(SameBits(OutputOf(result, "main_grad.0"), request.main_grads.at("weight.0")));
    EXPECT_FALSE(HasOutput(result, "dw.0"));
  }
}

TEST(GroupedLinear, PermutingExpertsPermutesWhatTheyGive) {
  LayerRequest request = GroupedLinearCase();
  LayerRequest turned = request;
  for (const char* word : {"weight.", "bias."}) {
    std::swap(turned.parameters.at(absl::StrCat(word, 0)),
              turned.parameters.at(absl::StrCat(word, 2)));
  }
  const auto turn = [](const Tensor& tensor) {
    std::vector<std::byte> bytes(tensor.bytes().begin() + tensor.byte_size() / 2,
                                 tensor.bytes().end());
    bytes.insert(bytes.end(), tensor.bytes().begin(),
                 tensor.bytes().begin() + tensor.byte_size() / 2);
    return *Tensor::FromBytes(tensor.dtype(), tensor.shape(), bytes);
  };
  turned.x = turn(request.x);
  turned.grad_output = turn(request.grad_output);
  for (const char* recipe : kClasses) {
    SCOPED_TRACE(recipe);
    const LayerResult a = RunCase(request, recipe), b = RunCase(turned, recipe);
    ExpectSameAs(a, b, {{"dw.0", "dw.2"}, {"dw.2", "dw.0"}, {"db.0", "db.2"}, {"db.2", "db.0"}});
    EXPECT_TRUE(SameBits(OutputOf(a, "y"), turn(OutputOf(b, "y"))));
    EXPECT_TRUE(SameBits(OutputOf(a, "dx"), turn(OutputOf(b, "dx"))));
  }
}

TEST(GroupedLinear, FollowsTheCustomRulesOfItsModuleType) {
  const std::string custom =
      R"(custom:rules=[{"module_type":"grouped_linear","quantizer":"mxfp8"},)"
      R"({"quantizer":"nvfp4"}])";
  for (const std::string knobs : {"", "backward_override=dequantized"}) {
    SCOPED_TRACE(knobs);
    const auto with = [&](const std::string& recipe, const char* separator) {
      return knobs.empty() ? recipe : absl::StrCat(recipe, separator, knobs);
    };
    LayerRequest linear = GroupedLinearCase();
    linear.layer = LayerSpec{};
    linear.parameters = {{"weight", linear.parameters.at("weight.0")}};
    const std::pair<LayerRequest, std::string> cases[] = {{GroupedLinearCase(), "mxfp8"},
                                                          {linear, "nvfp4"}};
    for (const auto& [request, plain] : cases) {
      SCOPED_TRACE(plain);
      const LayerResult subject = RunCase(request, with(custom, ","));
      const LayerResult reference = RunCase(request, with(plain, ":"));
      ASSERT_EQ(subject.outputs.size(), reference.outputs.size());
      for (const NamedTensor& output : reference.outputs) {
        EXPECT_TRUE(SameBits(OutputOf(subject, output.name), output.tensor)) << output.name;
      }
      ASSERT_EQ(subject.stages.size(), reference.stages.size());
      for (size_t i = 0; i < reference.stages.size(); ++i) {
        EXPECT_EQ(subject.stages[i].stage, reference.stages[i].stage);
      }
    }
  }
}

TEST(LayerNormLinear, IsTheChainOfItsParts) {
  LayerRequest layer = LayerNormLinearCase(NormKind::kLayerNorm);
  LayerRequest chain = layer;
  chain.layer = LayerSpec{};
  chain.layer.kind = LayerKind::kChain;
  chain.layer.operations = {Operation(OperationKind::kNorm, "n"),
                            Operation(OperationKind::kBasicLinear, "l"),
                            Operation(OperationKind::kBias, "b")};
  chain.parameters = {{"n.gamma", layer.parameters.at("gamma")},
                      {"n.beta", layer.parameters.at("beta")},
                      {"l.weight", layer.parameters.at("weight")},
                      {"b.bias", layer.parameters.at("bias")}};
  for (const char* recipe : kClasses) {
    for (const bool fused : {false, true}) {
      SCOPED_TRACE(absl::StrCat(recipe, fused));
      layer.layer.fused = chain.layer.fused = fused;
      ExpectSameAs(RunCase(layer, recipe), RunCase(chain, recipe),
                   {{"y", "y"},
                    {"dx", "dx"},
                    {"dw", "l.dw"},
                    {"db", "b.db"},
                    {"dgamma", "n.dgamma"},
                    {"dbeta", "n.dbeta"}});
    }
  }
}

TEST(LayerNormMlp, IsTheChainOfItsPartsUnderAnOverrideToo) {
  LayerRequest layer = LayerNormMlpCase(ActivationKind::kGelu);
  LayerRequest chain = layer;
  chain.layer = LayerSpec{};
  chain.layer.kind = LayerKind::kChain;
  chain.layer.operations = {
      Operation(OperationKind::kNorm, "n"),         Operation(OperationKind::kBasicLinear, "l1"),
      Operation(OperationKind::kBias, "b1"),        Operation(OperationKind::kActivation, "a"),
      Operation(OperationKind::kBasicLinear, "l2"), Operation(OperationKind::kBias, "b2")};
  chain.parameters = {{"n.gamma", layer.parameters.at("gamma")},
                      {"n.beta", layer.parameters.at("beta")},
                      {"l1.weight", layer.parameters.at("fc1.weight")},
                      {"b1.bias", layer.parameters.at("fc1.bias")},
                      {"l2.weight", layer.parameters.at("fc2.weight")},
                      {"b2.bias", layer.parameters.at("fc2.bias")}};
  for (const char* recipe : kClasses) {
    for (const bool fused : {false, true}) {
      SCOPED_TRACE(absl::StrCat(recipe, fused));
      layer.layer.fused = chain.layer.fused = fused;
      const LayerResult result = RunCase(layer, recipe);
      ExpectSameAs(result, RunCase(chain, recipe),
                   {{"y", "y"},
                    {"dx", "dx"},
                    {"fc1.dw", "l1.dw"},
                    {"fc1.db", "b1.db"},
                    {"fc2.dw", "l2.dw"},
                    {"fc2.db", "b2.db"},
                    {"dgamma", "n.dgamma"},
                    {"dbeta", "n.dbeta"}});
      const bool has_note =
          std::any_of(result.notes.begin(), result.notes.end(), [](const std::string& note) {
            return absl::StrContains(note, "Transformer Engine refuses it");
          });
      EXPECT_EQ(has_note, absl::StrContains(recipe, "backward_override"));
    }
  }
}

// Without a bias and a residual, the order of roundings is the same but for delayed scaling and the
// bias gradient of mxfp8 (docs/quantizers.md section 10.10).
TEST(FusedOperations, RoundAsUnfusedOnesWhereTheSpecificationSaysSo) {
  for (NamedCase one : AllLayerCases()) {
    // A residual's gradient is added before the norm's is rounded.
    if (one.name == "chain" || one.request.layer.kind == LayerKind::kTransformerLayer) continue;
    LayerRequest& request = one.request;
    for (auto& [name, tensor] : request.parameters) {
      if (absl::StrContains(name, "bias")) tensor = Tensor();
    }
    LayerRequest unfused = request;
    unfused.layer.fused = false;
    for (const char* recipe : kClasses) {
      SCOPED_TRACE(absl::StrCat(one.name, " ", recipe));
      const bool is_delayed = absl::StartsWith(recipe, "fp8_delayed");
      if (is_delayed && request.layer.traits().has(OperationKind::kNorm)) {
        EXPECT_FALSE(SameBits(OutputOf(RunCase(request, recipe), "y"),
                              OutputOf(RunCase(unfused, recipe), "y")));
        continue;
      }
      ExpectSameOutputs(RunCase(unfused, recipe), RunCase(request, recipe));
    }
  }
}

/// Codes of one sign as numbers that count the finite values between them.
int Rank(std::byte code) {
  const int bits = std::to_integer<int>(code);
  return (bits & 0x80) != 0 ? -(bits & 0x7F) : bits & 0x7F;
}

// A rounding to bf16 moves a value by at most 2^-9 of itself, an eighth of half an ulp of f8_e4m3
// (2^-4 of the binade at least): two roundings lead at most to the neighbouring code.
TEST(FusedOperations, NormAndCastDifferFromTheRoundedNormByOneUlpOfTheCodes) {
  LayerRequest request = WithScales(LayerNormLinearCase(NormKind::kLayerNorm));
  const auto codes_of = [&](bool fused, bool returned) {
    request.layer.fused = fused;
    request.layer.return_norm_output = returned;
    return RunCase(request, "fp8_delayed").gemms[0].desc.a.data;
  };
  const Tensor fused = codes_of(true, false), returned = codes_of(true, true);
  EXPECT_TRUE(SameBits(returned, codes_of(false, false)));
  int64_t different = 0;
  for (int64_t i = 0; i < fused.element_count(); ++i) {
    const int distance = std::abs(Rank(fused.bytes()[i]) - Rank(returned.bytes()[i]));
    EXPECT_LE(distance, 1) << i;
    different += distance;
  }
  EXPECT_GT(different, 0);
}

// Both are roundings of acc + bias, which differ by the product's own rounding: half an ulp of
// bf16 there (2^-9 |acc|), and half an ulp of either sum.
TEST(FusedOperations, ABiasBehindTheProductRoundsOnceMore) {
  LayerRequest request = LinearCase();
  const LayerResult fused = RunCase(request, "fp8_current");
  request.layer.fused = false;
  const LayerResult unfused = RunCase(request, "fp8_current");
  const std::vector<float> a = ToValues(OutputOf(fused, "y")), b = ToValues(OutputOf(unfused, "y"));
  const std::vector<float> product = ToValues(unfused.gemms[0].result.d);
  EXPECT_EQ(unfused.gemms[0].output, "product");
  bool differ = false;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_LE(std::abs(a[i] - b[i]),
              0x1p-8f * std::abs(product[i]) + 0x1p-8f * (std::abs(a[i]) + std::abs(b[i])));
    differ |= a[i] != b[i];
  }
  EXPECT_TRUE(differ);
  ExpectSameAs(fused, unfused, {{"dx", "dx"}, {"dw", "dw"}, {"db", "db"}});
}

TEST(FusedOperations, AResidualJoinsTheNormsGradientBeforeTheRounding) {
  LayerRequest request = ResidualChainCase();
  const LayerResult fused = RunCase(request, "bf16");
  request.layer.fused = false;
  const LayerResult unfused = RunCase(request, "bf16");
  EXPECT_FALSE(SameBits(OutputOf(fused, "dx"), OutputOf(unfused, "dx")));
  const auto has_stage = [](const LayerResult& result, const std::string& name) {
    return std::any_of(result.stages.begin(), result.stages.end(),
                       [&](const TimedStage& stage) { return stage.stage == name; });
  };
  EXPECT_FALSE(has_stage(fused, "add to dx"));
  EXPECT_TRUE(has_stage(unfused, "add to dx"));
}

TEST(NormOutput, IsReturnedRoundedAndReadByTheLinear) {
  LayerRequest request = LayerNormLinearCase(NormKind::kRmsNorm);
  request.layer.return_norm_output = true;
  for (const char* recipe : kClasses) {
    const LayerResult result = RunCase(request, recipe);
    EXPECT_EQ(OutputOf(result, "norm_out").dtype(), DType::kBF16);
    EXPECT_EQ(OutputOf(result, "norm_out").shape(), request.x.shape());
    LayerRequest linear = LinearCase();
    linear.x = OutputOf(result, "norm_out");
    ExpectSameAs(result, RunCase(linear, recipe), {{"y", "y"}, {"dw", "dw"}, {"db", "db"}});
  }
}

TEST(Chain, AQuantizeGivesTheBasicLinearTheCodesItWouldHaveMade) {
  LayerRequest plain = LinearCase();
  plain.layer.kind = LayerKind::kChain;
  plain.layer.operations = {Operation(OperationKind::kBasicLinear, "l")};
  plain.parameters = {{"l.weight", plain.parameters.at("weight")}};
  LayerRequest quantized = plain;
  quantized.layer.operations = {Operation(OperationKind::kQuantize, "q"),
                                Operation(OperationKind::kBasicLinear, "l"),
                                Operation(OperationKind::kQuantize, "dq")};
  quantized.layer.operations[2].quantize_forward = false;
  quantized.layer.operations[2].quantize_backward = true;
  for (const std::string recipe :
       {"bf16", "fp8_current", "fp8_rowwise", "fp8_block", "mxfp8",
        "nvfp4:disable_stochastic_rounding=true",
        "hybrid:fprop=mxfp8,dgrad=fp8_block,wgrad=fp8_block", "hybrid:fprop=mxfp8",
        "hybrid:dgrad=mxfp8", "fp8_current:backward_override=high_precision",
        "mxfp8:backward_override=dequantized"}) {
    SCOPED_TRACE(recipe);
    const LayerResult reference = RunCase(plain, recipe), result = RunCase(quantized, recipe);
    EXPECT_EQ(result.quantizations.size(), reference.quantizations.size());
    // Under high_precision what was given is the codes, which stand for the rounded values.
    if (absl::StrContains(recipe, "high_precision")) {
      ExpectSameAs(result, reference, {{"y", "y"}, {"dx", "dx"}});
      ExpectSameAs(result, RunCase(plain, "fp8_current:backward_override=dequantized"),
                   {{"l.dw", "l.dw"}});
      continue;
    }
    ExpectSameOutputs(result, reference);
  }
}

TEST(Chain, OtherReadersOfAQuantizeTakeWhatItsRowwiseCodesStandFor) {
  LayerRequest request = LinearCase();
  request.layer.kind = LayerKind::kChain;
  request.parameters.clear();
  request.grad_output = Generated(Distribution::kNormal, 40, DType::kBF16, {2, 32, 64});
  request.layer.operations = {Operation(OperationKind::kQuantize, "q"),
                              Operation(OperationKind::kScale, "s")};
  request.layer.operations[0].quantize_backward = true;
  request.layer.operations[1].factor = 1;
  const Recipe recipe = *Recipe::Parse("mxfp8");
  const LayerResult result = RunCase(request, recipe);
  for (const auto& [name, role, source] :
       {std::tuple{"y", TensorRole::kInput, request.x},
        std::tuple{"dx", TensorRole::kGradOutput, request.grad_output}}) {
    const QuantizedTensor codes =
        *QuantizeCpu(source, recipe.QuantizerFor(role), {true, false}, {}, ExecutionContext());
    EXPECT_TRUE(SameBits(OutputOf(result, name),
                         *DequantizeCpu(codes, Usage::kRowwise, DType::kBF16, ExecutionContext())))
        << name;
  }
  // An override leaves the gradient alone.
  const LayerResult dequantized = RunCase(request, "mxfp8:backward_override=dequantized");
  EXPECT_TRUE(SameBits(OutputOf(dequantized, "dx"), request.grad_output));
  EXPECT_TRUE(SameBits(OutputOf(dequantized, "y"), OutputOf(result, "y")));
}

TEST(Chain, ABiasSumsTheGradientThatItsQuantizeStandsFor) {
  LayerRequest request = LinearCase();
  request.layer.kind = LayerKind::kChain;
  request.layer.operations = {Operation(OperationKind::kBasicLinear, "l"),
                              Operation(OperationKind::kBias, "b"),
                              Operation(OperationKind::kQuantize, "q")};
  request.layer.operations[2].quantize_forward = false;
  request.layer.operations[2].quantize_backward = true;
  request.parameters = {{"l.weight", request.parameters.at("weight")},
                        {"b.bias", request.parameters.at("bias")}};
  const Recipe recipe = *Recipe::Parse("mxfp8");
  const Tensor dy = *request.grad_output.Reinterpret(DType::kBF16, {64, 96});
  const QuantizedTensor codes = *QuantizeCpu(dy, recipe.QuantizerFor(TensorRole::kGradOutput),
                                             {true, false}, {}, ExecutionContext());
  LayerRequest summed = LinearCase();
  summed.grad_output = *DequantizeCpu(codes, Usage::kRowwise, DType::kBF16, ExecutionContext())
                            ->Reinterpret(DType::kBF16, {2, 32, 96});
  const Tensor expected = OutputOf(RunCase(summed, recipe), "db");
  for (const bool fused : {false, true}) {
    request.layer.fused = fused;
    EXPECT_TRUE(SameBits(OutputOf(RunCase(request, recipe), "b.db"), expected)) << fused;
  }
  EXPECT_FALSE(SameBits(OutputOf(RunCase(LinearCase(), recipe), "db"), expected));
}

TEST(Chain, ABiasStaysBehindAProductThatSomethingElseReads) {
  LayerRequest request = LinearCase();
  request.layer.kind = LayerKind::kChain;
  request.layer.operations = {Operation(OperationKind::kBasicLinear, "l"),
                              Operation(OperationKind::kBias, "b"),
                              Operation(OperationKind::kAdd, "a")};
  request.layer.operations[2].addend = "l";
  request.parameters = {{"l.weight", request.parameters.at("weight")},
                        {"b.bias", request.parameters.at("bias")}};
  const LayerResult fused = RunCase(request, "bf16");
  EXPECT_EQ(fused.gemms[0].output, "l.y");
  EXPECT_FALSE(fused.gemms[0].desc.bias.has_value());
  request.layer.fused = false;
  ExpectSameOutputs(fused, RunCase(request, "bf16"));
  // Without the add it joins.
  request.layer.fused = true;
  request.layer.operations.pop_back();
  EXPECT_TRUE(RunCase(request, "bf16").gemms[0].desc.bias.has_value());
}

TEST(Chain, AddsEveryReadersGradient) {
  LayerRequest request = LinearCase();
  request.layer.kind = LayerKind::kChain;
  request.parameters.clear();
  request.grad_output = Generated(Distribution::kNormal, 41, DType::kBF16, {2, 32, 64});
  // y = (3 x + x) + 3 x: 7 x.
  request.layer.operations = {Operation(OperationKind::kScale, "s"),
                              Operation(OperationKind::kAdd, "a"),
                              Operation(OperationKind::kAdd, "b")};
  request.layer.operations[0].factor = 3;
  request.layer.operations[1].addend = "x";
  request.layer.operations[2].addend = "s";
  request.x = FromValues(DType::kBF16, {1, 4}, {1, -2, 3, 8});
  request.grad_output = FromValues(DType::kBF16, {1, 4}, {1, 2, -1, 4});
  const LayerResult result = RunCase(request, "bf16");
  EXPECT_EQ(ToValues(OutputOf(result, "y")), (std::vector<float>{7, -14, 21, 56}));
  EXPECT_EQ(ToValues(OutputOf(result, "dx")), (std::vector<float>{7, 14, -7, 28}));
}

TEST(LayerResidency, NothingIsReadBeforeTheLastOperation) {
  const auto cpu = MakeCpuEngine({});
  for (const NamedCase& one : AllLayerCases()) {
    for (const char* recipe : kClasses) {
      OrderRecorder engine(*cpu);
      const auto result =
          RunLayer(engine, one.request, *Recipe::Parse(recipe), Arithmetic{}, nullptr);
      ASSERT_TRUE(result.ok()) << one.name << recipe << ": " << result.status();
      EXPECT_GT(ExpectReadsLast(engine.operations), 0) << one.name << recipe;
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

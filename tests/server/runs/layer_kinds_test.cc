// Engine.Execute of every kind of layer through a real channel: outputs, what lies between, the
// command that repeats it; and what of a layer is refused.
#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>

#include <functional>

#include "tests/server/rpc/bad_input_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void Set(v1::LayerStep& step, const std::string& parameter, uint64_t seed,
         const std::vector<int64_t>& shape) {
  (*step.mutable_parameters())[parameter] = Generated("normal", seed, "bf16", shape);
}

v1::RunSpec SpecOf(const std::string& kind) {
  v1::RunSpec spec;
  v1::LayerStep& step = *spec.mutable_step();
  step.mutable_layer()->set_kind(kind);
  *step.mutable_x() = Generated("normal", 1, "bf16", {64, 32});
  *step.mutable_grad_output() = Generated("normal", 2, "bf16", {64, 48});
  *spec.add_variants() = MakeVariant("fp8_current", "none", "sm90");
  return spec;
}

v1::RunSpec LayerNormLinearSpec() {
  v1::RunSpec spec = SpecOf("layernorm_linear");
  v1::LayerStep& step = *spec.mutable_step();
  step.mutable_layer()->mutable_norm()->set_kind("rmsnorm");
  step.mutable_layer()->mutable_norm()->set_epsilon(1e-6f);
  step.mutable_layer()->mutable_norm()->set_zero_centered_gamma(true);
  step.mutable_layer()->set_return_norm_output(true);
  Set(step, "weight", 3, {48, 32});
  Set(step, "gamma", 4, {32});
  return spec;
}

v1::RunSpec LayerNormMlpSpec() {
  v1::RunSpec spec = SpecOf("layernorm_mlp");
  v1::LayerStep& step = *spec.mutable_step();
  step.mutable_layer()->mutable_activation()->set_kind("clamped_swiglu");
  step.mutable_layer()->mutable_activation()->set_limit(2);
  Set(step, "gamma", 3, {32});
  Set(step, "beta", 4, {32});
  Set(step, "fc1.weight", 5, {128, 32});
  Set(step, "fc2.weight", 6, {48, 64});
  (*step.mutable_main_grads())["fc2.weight"] = Generated("normal", 7, "f32", {48, 64});
  return spec;
}

v1::RunSpec GroupedLinearSpec() {
  v1::RunSpec spec = SpecOf("grouped_linear");
  v1::LayerStep& step = *spec.mutable_step();
  for (const int64_t rows : {32, 0, 32}) step.mutable_layer()->add_m_splits(rows);
  for (int i = 0; i < 3; ++i) Set(step, "weight." + std::to_string(i), 10 + i, {48, 32});
  return spec;
}

v1::RunSpec ChainSpec() {
  v1::RunSpec spec = SpecOf("chain");
  v1::LayerStep& step = *spec.mutable_step();
  const auto add = [&](const char* name, const char* kind) -> v1::Operation& {
    v1::Operation& operation = *step.mutable_layer()->add_operations();
    operation.set_name(name);
    operation.set_kind(kind);
    return operation;
  };
  add("fc", "basic_linear");
  add("b", "bias");
  add("act", "activation").mutable_activation()->set_kind("silu");
  add("half", "scale").set_factor(0.5f);
  step.mutable_layer()->set_fused(false);
  Set(step, "fc.weight", 3, {48, 32});
  Set(step, "b.bias", 4, {48});
  return spec;
}

/// x has 32 columns of 64 rows: a sequence of 64.
v1::RunSpec AttentionSpec() {
  v1::RunSpec spec = SpecOf("attention");
  v1::LayerStep& step = *spec.mutable_step();
  v1::Attention& attention = *step.mutable_layer()->mutable_attention();
  attention.set_heads(4);
  attention.set_groups(2);
  attention.set_mask("causal");
  attention.set_rotary_base(100);
  Set(step, "qkv.weight", 3, {64, 32});
  Set(step, "proj.weight", 4, {48, 32});
  return spec;
}

/// The one variant's report; the run's goes to `report`.
v1::VariantReport RunOn(TestServer& server, const v1::RunSpec& spec, v1::RunReport& report) {
  v1::ExecuteRequest request;
  *request.mutable_spec() = spec;
  grpc::ClientContext context;
  const auto reader = server.engine().Execute(&context, request);
  v1::VariantReport variant;
  v1::RunEvent event;
  while (reader->Read(&event)) {
    if (event.has_variant()) variant = event.variant().report();
  }
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(event.finished().state(), v1::RUN_STATE_SUCCEEDED) << event.finished().status_message();
  report = event.finished().report();
  // All tensors are generated, so that the request is kept as it was.
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(report.request(), spec));
  return variant;
}

class LayerKindsTest : public BadInputTest {
 protected:
  v1::VariantReport Run(const v1::RunSpec& spec, v1::RunReport& report) {
    return RunOn(server_, spec, report);
  }
  static std::vector<std::string> Names(const v1::VariantReport& variant, bool intermediates) {
    std::vector<std::string> names;
    for (const v1::OutputReport& output : variant.outputs()) {
      if (output.intermediate() == intermediates) names.push_back(output.tensor().name());
    }
    return names;
  }
  static std::vector<std::string> Inputs(const v1::RunReport& report) {
    std::vector<std::string> names;
    for (const v1::InputTensor& input : report.inputs()) {
      names.push_back(input.name());
      EXPECT_NE(input.fingerprint().low(), 0u);
    }
    return names;
  }
};

TEST_F(LayerKindsTest, LayerNormLinear) {
  v1::RunReport report;
  const v1::VariantReport variant = Run(LayerNormLinearSpec(), report);
  EXPECT_THAT(Names(variant, false), ElementsAre("y", "norm_out", "dx", "dw", "dgamma"));
  EXPECT_THAT(Names(variant, true), ElementsAre("dnorm_out"));
  EXPECT_THAT(Inputs(report),
              ElementsAre("x", "grad_output", "parameters[gamma]", "parameters[weight]"));
  for (const v1::OutputReport& output : variant.outputs()) {
    EXPECT_TRUE(output.has_bound()) << output.tensor().name();
    EXPECT_TRUE(output.bound().pass()) << output.tensor().name();
    EXPECT_EQ(output.tensor().has_data(), !output.intermediate());
  }
}

TEST_F(LayerKindsTest, LayerNormMlp) {
  v1::RunReport report;
  const v1::VariantReport variant = Run(LayerNormMlpSpec(), report);
  EXPECT_THAT(Names(variant, false),
              ElementsAre("y", "dx", "fc1.dw", "fc2.main_grad", "dgamma", "dbeta"));
  EXPECT_THAT(Names(variant, true),
              ElementsAre("norm_out", "fc1.y", "fc2.x", "dnorm_out", "fc1.grad_output", "fc2.dx"));
  EXPECT_THAT(Inputs(report),
              ElementsAre("x", "grad_output", "parameters[beta]", "parameters[fc1.weight]",
                          "parameters[fc2.weight]", "parameters[gamma]", "main_grads[fc2.weight]"));
}

TEST_F(LayerKindsTest, GroupedLinear) {
  v1::RunReport report;
  const v1::VariantReport variant = Run(GroupedLinearSpec(), report);
  EXPECT_THAT(Names(variant, false), ElementsAre("y", "dx", "dw.0", "dw.1", "dw.2"));
}

TEST_F(LayerKindsTest, AsManyExpertsAsThereMayBe) {
  constexpr int kExperts = 256;
  v1::RunSpec spec;
  v1::LayerStep& step = *spec.mutable_step();
  step.mutable_layer()->set_kind("grouped_linear");
  *step.mutable_x() = Generated("normal", 1, "bf16", {16 * kExperts, 32});
  *step.mutable_grad_output() = Generated("normal", 2, "bf16", {16 * kExperts, 32});
  for (int i = 0; i < kExperts; ++i) {
    step.mutable_layer()->add_m_splits(16);
    Set(step, "weight." + std::to_string(i), i, {32, 32});
    Set(step, "bias." + std::to_string(i), i, {32});
  }
  *spec.add_variants() = MakeVariant("fp8_current", "none", "sm90");
  v1::RunReport report;
  const v1::VariantReport variant = Run(spec, report);
  ASSERT_EQ(variant.outputs_size(), 2 + 2 * kExperts);
  // All of each output but the heat maps of the last ones.
  EXPECT_TRUE(variant.outputs(0).against_exact().error().has_heat_map());
  const v1::OutputReport& last = variant.outputs(1 + 2 * kExperts);
  EXPECT_EQ(last.tensor().name(), "db.255");
  EXPECT_FALSE(last.against_exact().error().has_heat_map());
  EXPECT_EQ(last.against_exact().error().element_count(), 32);
  EXPECT_THAT(variant.notes(), testing::Contains(HasSubstr("heat maps of the last")));
}

TEST_F(LayerKindsTest, Chain) {
  v1::RunReport report;
  const v1::VariantReport variant = Run(ChainSpec(), report);
  EXPECT_THAT(Names(variant, false), ElementsAre("y", "dx", "fc.dw", "b.db"));
}

TEST(LayerMetricsTest, CountsRunsByLayer) {
  TestServer server([](ServerOptions& options) { options.metrics_listen = "127.0.0.1:0"; });
  v1::RunReport report;
  (void)RunOn(server, LayerNormMlpSpec(), report);
  const std::string metrics = server.HttpGet("/metrics");
  const auto runs = [&](const std::string& layer) {
    return MetricValue(metrics, "quantgate_run_total{mode=\"none\",op=\"" + layer +
                                    "\",outcome=\"ok\",recipe=\"fp8_current\"}");
  };
  EXPECT_EQ(runs("layernorm_mlp"), 1);
  // Of what did not run there is no series.
  EXPECT_EQ(runs("linear"), -1);
  EXPECT_EQ(runs("chain"), -1);
  // Outputs count by what they are: fc1.dw, and fc2.main_grad.
  for (const char* tensor : {"dw", "main_grad", "dgamma", "y"}) {
    EXPECT_EQ(
        MetricValue(metrics, std::string("quantgate_error_rel_rmse_count{mode=\"none\",recipe=") +
                                 "\"fp8_current\",tensor=\"" + tensor + "\"}"),
        1)
        << tensor;
  }
  EXPECT_GT(MetricValue(metrics, "quantgate_run_stage_seconds_count{stage=\"operation\"}"), 0);
}

TEST_F(LayerKindsTest, Attention) {
  v1::RunReport report;
  const v1::VariantReport variant = Run(AttentionSpec(), report);
  EXPECT_THAT(Names(variant, false), ElementsAre("y", "dx", "qkv.dw", "proj.dw"));
  EXPECT_THAT(Names(variant, true), ElementsAre("qkv.y", "core.heads", "proj.x", "core.dheads",
                                                "qkv.grad_output", "proj.dx"));
  std::vector<std::string> lines;
  for (const v1::GemmLine& gemm : variant.gemms()) {
    if (gemm.output() == "core.context") lines.push_back(gemm.text());
  }
  EXPECT_THAT(lines, ElementsAre(HasSubstr("4 x (m=64 n=8 k=64 bf16 x bf16 -> bf16")));
}

TEST_F(LayerKindsTest, CapabilitiesListThem) {
  v1::Capabilities capabilities;
  grpc::ClientContext context;
  ASSERT_TRUE(server_.info().GetCapabilities(&context, {}, &capabilities).ok());
  EXPECT_THAT(capabilities.layers(),
              ElementsAre("linear", "layernorm_linear", "layernorm_mlp", "grouped_linear", "chain",
                          "attention", "transformer_layer"));
  EXPECT_THAT(capabilities.activations(),
              ElementsAre("gelu", "geglu", "glu", "qgelu", "qgeglu", "relu", "reglu", "srelu",
                          "sreglu", "silu", "swiglu", "clamped_swiglu"));
  EXPECT_THAT(capabilities.norms(), ElementsAre("layernorm", "rmsnorm"));
}

struct LayerRow {
  const char* name;
  v1::RunSpec (*spec)();
  std::function<void(v1::LayerStep&)> spoil;
  Refusal refusal;
};

TEST_F(LayerKindsTest, RefusesWhatMakesNoLayer) {
  constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  const std::vector<LayerRow> rows = {
      {"a parameter of no layer",
       LayerNormLinearSpec,
       [](v1::LayerStep& s) {
         Set(s, "wieght", 9, {48, 32});
       },
       {kInvalid, "spec.step.parameters[wieght]", "bf16[48x32]", "weight, bias, gamma"}},
      {"no gamma",
       LayerNormLinearSpec,
       [](v1::LayerStep& s) { s.mutable_parameters()->erase("gamma"); },
       {kInvalid, "spec.step.parameters[gamma]", "absent", "layernorm_linear layer needs it"}},
      {"beta of an rmsnorm",
       LayerNormLinearSpec,
       [](v1::LayerStep& s) { Set(s, "beta", 9, {32}); },
       {kInvalid, "spec.step.parameters[beta]", "bf16[32]", "weight, bias, gamma"}},
      {"gamma that does not fit",
       LayerNormLinearSpec,
       [](v1::LayerStep& s) { Set(s, "gamma", 9, {48}); },
       {kInvalid, "spec.step.parameters[gamma]", "bf16[48]", "32"}},
      {"an unknown norm",
       LayerNormLinearSpec,
       [](v1::LayerStep& s) { s.mutable_layer()->mutable_norm()->set_kind("batchnorm"); },
       {kInvalid, "spec.step.layer.norm.kind", "\"batchnorm\"", "layernorm, rmsnorm"}},
      {"a negative epsilon",
       LayerNormLinearSpec,
       [](v1::LayerStep& s) { s.mutable_layer()->mutable_norm()->set_epsilon(-1); },
       {kInvalid, "spec.step.layer.norm.epsilon", "-1", "0"}},
      {"an unknown activation",
       LayerNormMlpSpec,
       [](v1::LayerStep& s) { s.mutable_layer()->mutable_activation()->set_kind("mish"); },
       {kInvalid, "spec.step.layer.activation.kind", "\"mish\"", "clamped_swiglu"}},
      {"fc2 that does not take what the gate leaves",
       LayerNormMlpSpec,
       [](v1::LayerStep& s) {
         Set(s, "fc2.weight", 9, {48, 128});
       },
       {kInvalid, "spec.step.parameters[fc2.weight]", "bf16[48x128]", "64"}},
      {"splits that do not add up",
       GroupedLinearSpec,
       [](v1::LayerStep& s) { s.mutable_layer()->set_m_splits(1, 16); },
       {kInvalid, "spec.step.layer.m_splits", "sum 80", "it must be 64"}},
      {"a negative split",
       GroupedLinearSpec,
       [](v1::LayerStep& s) { s.mutable_layer()->set_m_splits(1, -1); },
       {kInvalid, "spec.step.layer.m_splits[1]", "-1", "at least 0"}},
      {"no splits",
       GroupedLinearSpec,
       [](v1::LayerStep& s) { s.mutable_layer()->clear_m_splits(); },
       {kInvalid, "spec.step.layer.m_splits", "0 experts", "from 1 to 256"}},
      {"too many splits",
       GroupedLinearSpec,
       [](v1::LayerStep& s) {
         while (s.layer().m_splits_size() < 257) s.mutable_layer()->add_m_splits(0);
       },
       {kInvalid, "spec.step.layer.m_splits", "257 given", "at most 256"}},
      {"splits of another layer",
       LayerNormLinearSpec,
       [](v1::LayerStep& s) { s.mutable_layer()->add_m_splits(64); },
       {kInvalid, "spec.step.layer.m_splits", "1 experts", "grouped_linear's"}},
      {"a norm of a layer without one",
       GroupedLinearSpec,
       [](v1::LayerStep& s) { s.mutable_layer()->mutable_norm()->set_kind("rmsnorm"); },
       {kInvalid, "spec.step.layer.norm", "given",
        "of layernorm_linear, layernorm_mlp, transformer_layer"}},
      {"an activation of a layer without one",
       LayerNormLinearSpec,
       [](v1::LayerStep& s) { s.mutable_layer()->mutable_activation()->set_kind("gelu"); },
       {kInvalid, "spec.step.layer.activation", "given", "of layernorm_mlp, transformer_layer"}},
      {"heads of a layer without attention",
       LayerNormLinearSpec,
       [](v1::LayerStep& s) { s.mutable_layer()->mutable_attention()->set_heads(2); },
       {kInvalid, "spec.step.layer.attention", "given", "of attention, transformer_layer"}},
      {"a limit of an activation without one",
       LayerNormMlpSpec,
       [](v1::LayerStep& s) { s.mutable_layer()->mutable_activation()->set_kind("swiglu"); },
       {kInvalid, "spec.step.layer.activation.limit", "given", "of clamped_swiglu"}},
      {"a factor of an addition",
       ChainSpec,
       [](v1::LayerStep& s) { s.mutable_layer()->mutable_operations(3)->set_kind("add"); },
       {kInvalid, "spec.step.layer.operations[3].factor", "given", "of scale"}},
      {"an addend of a bias",
       ChainSpec,
       [](v1::LayerStep& s) { s.mutable_layer()->mutable_operations(1)->set_addend("x"); },
       {kInvalid, "spec.step.layer.operations[1].addend", "given", "of add"}},
      {"an activation of a linear operation",
       ChainSpec,
       [](v1::LayerStep& s) {
         s.mutable_layer()->mutable_operations(0)->mutable_activation()->set_kind("silu");
       },
       {kInvalid, "spec.step.layer.operations[0].activation", "given", "of activation"}},
      {"a norm of an activation",
       ChainSpec,
       [](v1::LayerStep& s) {
         s.mutable_layer()->mutable_operations(2)->mutable_norm()->set_kind("rmsnorm");
       },
       {kInvalid, "spec.step.layer.operations[2].norm", "given", "of norm"}},
      {"a gradient's quantization of a scale",
       ChainSpec,
       [](v1::LayerStep& s) {
         s.mutable_layer()->mutable_operations(3)->set_quantize_backward(true);
       },
       {kInvalid, "spec.step.layer.operations[3].quantize_backward", "given", "of quantize"}},
      {"an unknown operation",
       ChainSpec,
       [](v1::LayerStep& s) { s.mutable_layer()->mutable_operations(0)->set_kind("conv"); },
       {kInvalid, "spec.step.layer.operations[0].kind", "\"conv\"", "basic_linear"}},
      {"an operation without a kind",
       ChainSpec,
       [](v1::LayerStep& s) { s.mutable_layer()->mutable_operations(1)->clear_kind(); },
       {kInvalid, "spec.step.layer.operations[1].kind", "", "has a kind"}},
      {"a name that a shell would read",
       ChainSpec,
       [](v1::LayerStep& s) { s.mutable_layer()->mutable_operations(0)->set_name("a'; rm -r"); },
       {kInvalid, "spec.step.layer.operations[0].name", "; rm -r", "letters"}},
      {"the same name twice",
       ChainSpec,
       [](v1::LayerStep& s) { s.mutable_layer()->mutable_operations(1)->set_name("fc"); },
       {kInvalid, "spec.step.layer.operations[1].name", "fc", "another operation"}},
      {"an addend that comes later",
       ChainSpec,
       [](v1::LayerStep& s) {
         s.mutable_layer()->mutable_operations(3)->clear_factor();
         s.mutable_layer()->mutable_operations(3)->set_kind("add");
         s.mutable_layer()->mutable_operations(3)->set_addend("later");
       },
       {kInvalid, "spec.step.layer.operations[3].addend", "later", "earlier operation"}},
      {"no operations",
       ChainSpec,
       [](v1::LayerStep& s) { s.mutable_layer()->clear_operations(); },
       {kInvalid, "spec.step.layer.operations", "0 operations", "from 1 to 64"}},
      {"too many operations",
       ChainSpec,
       [](v1::LayerStep& s) {
         while (s.layer().operations_size() < 65) s.mutable_layer()->add_operations();
       },
       {kInvalid, "spec.step.layer.operations", "65 given", "at most 64"}},
      {"a parameter name that no layer has",
       ChainSpec,
       [](v1::LayerStep& s) { Set(s, "a b", 9, {48}); },
       {kInvalid, "spec.step.parameters[\"a b\"]", "given", "letters, digits"}},
      {"a main gradient of no weight",
       LayerNormMlpSpec,
       [](v1::LayerStep& s) {
         (*s.mutable_main_grads())["weight"] = Generated("normal", 9, "f32", {48, 64});
       },
       {kInvalid, "spec.step.main_grads[weight]", "f32[48x64]", "no such weight"}},
      {"an unknown mask",
       AttentionSpec,
       [](v1::LayerStep& s) { s.mutable_layer()->mutable_attention()->set_mask("all"); },
       {kInvalid, "spec.step.layer.attention.mask", "\"all\"", "none, causal"}},
      {"attention without heads",
       AttentionSpec,
       [](v1::LayerStep& s) { s.mutable_layer()->mutable_attention()->clear_heads(); },
       {kInvalid, "spec.step.layer.attention.heads", "0", "at least 1"}},
      {"a grad_output that does not fit",
       ChainSpec,
       [](v1::LayerStep& s) {
         *s.mutable_grad_output() = Generated("normal", 9, "bf16", {64, 32});
       },
       {kInvalid, "spec.step.grad_output", "bf16[64x32]", "64x48"}},
      {"a parameter without a source",
       ChainSpec,
       [](v1::LayerStep& s) { (*s.mutable_parameters())["b.bias"].Clear(); },
       {kInvalid, "spec.step.parameters[\"b.bias\"]", "", "give inline, stored or generate"}},
  };
  for (const LayerRow& row : rows) {
    SCOPED_TRACE(row.name);
    v1::ExecuteRequest request;
    *request.mutable_spec() = row.spec();
    row.spoil(*request.mutable_spec()->mutable_step());
    ExpectRefused(Execute(request), row.refusal);
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

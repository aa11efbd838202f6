// Runs of attention and of transformer layers: each output and each tensor between operations is
// judged by what it was made of, on one rank and on several.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/validate/ranks/parallel_report.h"
#include "kernels/validate/reference/exact_values.h"
#include "tests/validate/rank_variants.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

constexpr int64_t kSequence = 16, kBatch = 4, kColumns = 64, kHead = 16;

/// Numbers of a spread that keeps scores small: probabilities of all sizes.
Tensor Small(uint64_t seed, Shape shape, float scale = 0x1p-3f) {
  GeneratorSpec spec;
  spec.distribution = Distribution::kNormal;
  spec.seed = seed;
  spec.dtype = DType::kBF16;
  spec.shape = std::move(shape);
  spec.scale = scale;
  return *Generate(spec, ExecutionContext());
}

LayerRequest StepOf(LayerKind kind, const AttentionOptions& attention) {
  LayerRequest step;
  step.layer.kind = kind;
  step.layer.attention = attention;
  const int64_t rows = (attention.heads + 2 * attention.group_count()) * kHead;
  step.x = Small(1, {kSequence, kBatch, kColumns}, 1);
  step.grad_output = Small(2, {kSequence, kBatch, kColumns}, 1);
  step.parameters = {{"qkv.weight", Small(3, {rows, kColumns})},
                     {"qkv.bias", Small(4, {rows})},
                     {"proj.weight", Small(5, {kColumns, attention.heads * kHead})},
                     {"proj.bias", Small(6, {kColumns})}};
  if (kind == LayerKind::kAttention) return step;
  // Two norms with the same parameters would give what they give in each other's place.
  for (const std::string norm : {"norm1", "norm2"}) {
    const uint64_t seed = norm == "norm1" ? 7 : 12;
    step.parameters[norm + ".gamma"] = Small(seed, {kColumns}, 1);
    step.parameters[norm + ".beta"] = Small(seed + 1, {kColumns});
  }
  step.parameters["fc1.weight"] = Small(9, {128, kColumns});
  step.parameters["fc1.bias"] = Small(10, {128});
  step.parameters["fc2.weight"] = Small(11, {kColumns, 128});
  return step;
}

const AttentionOptions kPlain = {.heads = 4};
const AttentionOptions kGrouped = {
    .heads = 4, .groups = 2, .mask = AttentionMask::kCausal, .rotary_base = 100.0f};

void ExpectWithinBounds(const RunReport& report) {
  EXPECT_TRUE(report.verdict.pass) << report.verdict.finding;
  for (const VariantReport& variant : report.variants) {
    for (const OutputReport& output : variant.outputs) {
      SCOPED_TRACE(absl::StrCat(variant.label, ": ", output.tensor));
      ASSERT_TRUE(output.bound.has_value());
      EXPECT_TRUE(output.bound->pass) << output.bound->worst_ratio;
      EXPECT_EQ(output.against_exact.error.element_count, output.value.element_count());
      EXPECT_EQ(output.against_unquantized.element_count, output.value.element_count());
    }
  }
}

TEST(AttentionRuns, KeepTheBoundsOfWhatEachOutputWasMadeOf) {
  for (const LayerKind kind : {LayerKind::kAttention, LayerKind::kTransformerLayer}) {
    for (const AttentionOptions& attention : {kPlain, kGrouped}) {
      for (const bool fused : {true, false}) {
        LayerRunRequest request;
        request.step = StepOf(kind, attention);
        request.step.layer.fused = fused;
        request.requirement = Requirement::kBound;
        for (const char* recipe : {"bf16", "fp8_current", "fp8_delayed", "mxfp8",
                                   "mxfp8:backward_override=dequantized", "nvfp4"}) {
          request.variants.push_back({*Recipe::Parse(recipe), {}});
        }
        ExpectWithinBounds(RunOk(request));
      }
    }
  }
}

TEST(AttentionRuns, TakeOtherDTypesAndBudgetTheModulesAlone) {
  LayerRunRequest request;
  request.step = StepOf(LayerKind::kTransformerLayer, kGrouped);
  request.step.x = *CastTensor(request.step.x, DType::kF32, ExecutionContext());
  request.step.grad_output = *CastTensor(request.step.grad_output, DType::kF16, ExecutionContext());
  request.requirement = Requirement::kBound;
  request.error_budget = true;
  for (const char* recipe : {"bf16", "bf16:activation_dtype=f16",
                             "fp8_current:activation_dtype=f16", "mxfp8:activation_dtype=bf16"}) {
    request.variants.push_back({*Recipe::Parse(recipe), {}});
  }
  const RunReport report = RunOk(request);
  ExpectWithinBounds(report);
  for (const VariantReport& variant : report.variants) {
    // Three GEMMs of each of four modules.
    EXPECT_EQ(variant.error_budgets.size(), 12u) << variant.label;
    EXPECT_EQ(variant.gemms.size(), 18u) << variant.label;
  }
}

TEST(AttentionRuns, ReportWhatLiesBetweenAndProductsInOneLine) {
  LayerRunRequest request;
  request.step = StepOf(LayerKind::kAttention, kGrouped);
  request.variants = {{*Recipe::Parse("mxfp8"), {}}};
  const RunReport report = RunOk(request);
  const VariantReport& variant = report.variants[0];
  std::vector<std::string> between;
  for (const OutputReport& output : variant.outputs) {
    if (output.is_intermediate) between.push_back(output.tensor);
  }
  EXPECT_THAT(between, testing::ElementsAre("qkv.y", "core.heads", "proj.x", "core.dheads",
                                            "qkv.grad_output", "proj.dx"));
  EXPECT_EQ(OutputOf(variant, "proj.x").arithmetic, "sm90");
  EXPECT_EQ(OutputOf(variant, "core.heads").arithmetic, "fp32 operations");
  EXPECT_THAT(OutputOf(variant, "proj.x").bound->bound.derivation, HasSubstr("GEMMs of length 16"));
  std::vector<std::string> products;
  for (const VariantReport::GemmLine& line : variant.gemms) {
    if (line.output.rfind("core.", 0) != 0) continue;
    products.push_back(line.output);
    EXPECT_THAT(line.text, HasSubstr("16 x (m=16 n=16 k=16 bf16 x bf16 -> bf16"));
  }
  EXPECT_THAT(products, testing::ElementsAre("core.scores", "core.context", "core.dprobabilities",
                                             "core.dv", "core.dq", "core.dk"));
  EXPECT_THAT(variant.notes, testing::Contains(HasSubstr("is not quantized: scores")));
}

/// Whether `value` is what `output` of the step should be, by its own operands.
bool IsWithinBound(Engine& engine, const LayerRequest& step, const LayerResult& result,
                   const std::string& output, const Tensor& value) {
  ExactValues exact(engine, step, nullptr);
  OutputReporter reporter(engine, step, exact, nullptr);
  const auto part = reporter.ReportPart(result, {output, value});
  EXPECT_TRUE(part.ok()) << part.status();
  return part.ok() && part->bound.has_value() && part->bound->pass;
}

// What another mask, no rotation or another base would give leaves the bound.
TEST(AttentionRuns, KnowTheContextsOfAnotherAttention) {
  const auto engine = MakeCpuEngine({});
  const auto run = [&](const AttentionOptions& attention) {
    const LayerRequest step = StepOf(LayerKind::kAttention, attention);
    return *RunLayer(*engine, step, *Recipe::Parse("bf16"), Arithmetic{}, nullptr);
  };
  const LayerRequest step = StepOf(LayerKind::kAttention, kGrouped);
  const LayerResult right = run(kGrouped);
  const char* const outputs[] = {"proj.x", "qkv.grad_output"};
  for (const char* output : outputs) {
    const Tensor own = FindComputed(right, output);
    EXPECT_TRUE(IsWithinBound(*engine, step, right, output, own)) << output;
    // One element alone.
    std::vector<float> values = ToValues(own);
    values[values.size() / 2] += 0.5f;
    const Tensor spoilt = FromValues(own.dtype(), own.shape(), values);
    EXPECT_FALSE(IsWithinBound(*engine, step, right, output, spoilt)) << output;
  }
  using enum AttentionMask;
  const AttentionOptions others[] = {
      {.heads = 4, .groups = 2, .rotary_base = 100.0f},
      {.heads = 4, .groups = 2, .mask = kCausal},
      {.heads = 4, .groups = 2, .mask = kCausal, .rotary_base = 20.0f}};
  for (const AttentionOptions& other : others) {
    const LayerResult wrong = run(other);
    for (const char* output : outputs) {
      EXPECT_FALSE(IsWithinBound(*engine, step, right, output, FindComputed(wrong, output)))
          << output;
    }
  }
}

// Of two ranks under sequence parallelism: a sum that lacks one rank's part, one element of one
// rank's gradient, and rows that a rank has in place of the other's.
TEST(AttentionRuns, RefuseWhatOneOfSeveralRanksGotWrong) {
  LayerRequest layer = StepOf(LayerKind::kTransformerLayer, kGrouped);
  layer.layer.parallel_mode = ParallelMode::kColumn;
  const LayerRunRequest request =
      Twins(layer, "bf16", {.tensor_parallel = 2, .sequence_parallel = true});
  const auto engine = MakeCpuEngine({.threads = 2});
  RankEngines engines(*engine);
  auto step = RunOnRanks(request.step, *engine, request.variants[1],
                         *engines.EnginesFor(*request.variants[1].parallel), nullptr, nullptr);
  ASSERT_TRUE(step.ok()) << step.status();
  ExactValues exact(*engine, request.step, nullptr);
  OutputReporter whole(*engine, request.step, exact, nullptr);
  const auto violations = [&](const std::string& name) {
    ParallelReporter reporter(*engine, whole, request.step, request.variants[1], *step, nullptr);
    const auto reported = reporter.Report(name);
    EXPECT_TRUE(reported.ok()) << reported.status();
    if (!reported.ok() || !reported->report.bound.has_value()) return int64_t{-1};
    EXPECT_EQ(reported->report.bound->pass, reported->report.bound->violation_count == 0);
    return reported->report.bound->violation_count;
  };
  LayerResult& second = step->ranks[1].result;
  const auto find = [&](const std::string& name) -> Tensor& {
    for (auto* tensors : {&second.outputs, &second.intermediates}) {
      for (NamedTensor& tensor : *tensors) {
        if (tensor.name == name) return tensor.tensor;
      }
    }
    ADD_FAILURE() << "no " << name;
    return second.outputs[0].tensor;
  };
  for (const char* name : {"proj.y", "fc1.dx", "qkv.dw", "qkv.db", "norm1.dgamma", "proj.x"}) {
    EXPECT_EQ(violations(name), 0) << name;
  }
  const int64_t rows = kSequence * kBatch / 2;
  const auto own_rows = [&](const Tensor& whole_sum) {
    const std::vector<float> values = ToValues(whole_sum);
    return std::vector<float>(values.begin() + rows * kColumns, values.end());
  };
  for (const std::string sum : {"proj.y", "fc1.dx"}) {
    Tensor& mine = find(sum);
    std::vector<float> lacking = own_rows(FindGemm(second, sum)->result.d);
    const std::vector<float> bias = ToValues(step->ranks[1].request.parameters.at("proj.bias"));
    for (size_t i = 0; sum == "proj.y" && i < lacking.size(); ++i) lacking[i] += bias[i % kColumns];
    mine = FromValues(mine.dtype(), mine.shape(), lacking);
    EXPECT_GT(violations(sum), rows * kColumns / 2) << sum;
  }
  for (const char* name : {"qkv.dw", "qkv.db", "norm1.dgamma"}) {
    Tensor& mine = find(name);
    std::vector<float> values = ToValues(mine);
    values[values.size() / 2] *= 1.25f;
    mine = FromValues(mine.dtype(), mine.shape(), values);
    EXPECT_EQ(violations(name), 1) << name;
  }
  Tensor& context = find("proj.x");
  for (const NamedTensor& others : step->ranks[0].result.intermediates) {
    if (others.name == "proj.x") context = others.tensor;
  }
  EXPECT_GT(violations("proj.x"), rows * kColumns / 4);
}

TEST(AttentionRuns, NoRowsGiveNothing) {
  for (const Shape& shape : {Shape{0, kBatch, kColumns}, Shape{kSequence, 0, kColumns}}) {
    LayerRunRequest request;
    request.step = StepOf(LayerKind::kTransformerLayer, kGrouped);
    request.step.x = *Tensor::Allocate(DType::kBF16, shape);
    request.step.grad_output = request.step.x;
    request.step.layer.parallel_mode = ParallelMode::kColumn;
    request.variants = {{*Recipe::Parse("bf16"), {}},
                        {*Recipe::Parse("fp8_current"), {}},
                        {*Recipe::Parse("bf16"), {}, ParallelSpec{.sequence_parallel = true}},
                        {*Recipe::Parse("fp8_current"), {}, ParallelSpec{}}};
    const RunReport report = RunOk(request);
    for (const VariantReport& variant : report.variants) {
      for (const OutputReport& output : variant.outputs) {
        EXPECT_TRUE(output.against_exact.parity.equal) << output.tensor;
      }
    }
  }
}

TEST(AttentionRuns, RefuseWhatIsNoAttention) {
  struct Refused {
    AttentionOptions attention;
    Shape x;
    const char* text;
  };
  const Refused cases[] = {
      {{}, {16, 4, 64}, "layer.attention.heads is 0: it must be at least 1"},
      {{.heads = 4, .groups = 3}, {16, 4, 64}, "layer.attention.groups is 3: it must divide heads"},
      {{.heads = 5}, {16, 4, 64}, "parameters[qkv.weight] is 192 rows: N, its first dim"},
      {{.heads = 4, .rotary_base = -1.0f}, {16, 4, 64}, "layer.attention.rotary_base is -1"},
      {{.heads = 64, .rotary_base = 10.0f}, {16, 4, 64}, "it rotates pairs of columns"},
      {{.heads = 4}, {2, 2, 16, 64}, "its rank must be 2 or 3"},
      {{.heads = 6, .groups = 3}, {16, 4, 64}, "K, its last dim, must be 96"}};
  for (const Refused& refused : cases) {
    LayerRunRequest request;
    request.step = StepOf(LayerKind::kAttention, kPlain);
    request.step.layer.attention = refused.attention;
    request.step.x = Small(1, refused.x);
    request.step.grad_output = Tensor();
    request.variants = {{*Recipe::Parse("bf16"), {}}};
    const auto report = TryRun(request);
    EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(report.status().message()), HasSubstr(refused.text));
  }
  LayerRunRequest request;
  request.step = StepOf(LayerKind::kAttention, kPlain);
  request.step.layer.parallel_mode = ParallelMode::kRow;
  request.variants = {{*Recipe::Parse("bf16"), {}}};
  EXPECT_THAT(std::string(TryRun(request).status().message()),
              HasSubstr("an attention is column-parallel"));
  request.step.layer.parallel_mode = ParallelMode::kNone;
  request.step.layer.return_norm_output = true;
  EXPECT_THAT(std::string(TryRun(request).status().message()),
              HasSubstr("an attention has no norm"));
}

TEST(AttentionRuns, OnSeveralRanksAreWholeAndWithinBounds) {
  for (const LayerKind kind : {LayerKind::kAttention, LayerKind::kTransformerLayer}) {
    for (const char* recipe : {"bf16", "fp8_current", "mxfp8"}) {
      for (const bool sequence_parallel : {false, true}) {
        SCOPED_TRACE(absl::StrCat(recipe, sequence_parallel ? " sp" : ""));
        LayerRequest step = StepOf(kind, kGrouped);
        step.layer.parallel_mode = ParallelMode::kColumn;
        const RunReport report = RunOk(
            Twins(step, recipe, {.tensor_parallel = 2, .sequence_parallel = sequence_parallel}));
        ExpectWholeAndWithinBounds(report);
        if (kind == LayerKind::kTransformerLayer || std::string(recipe) == "fp8_current") continue;
        // Heads are those of one rank; only y and dx are sums over ranks.
        for (const char* output : {"qkv.dw", "qkv.db", "proj.dw"}) {
          EXPECT_TRUE(HasBitsOfOneRank(report, output)) << output;
        }
      }
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

// The truth table of docs/quantizers.md section 9: for every override and every choice of
// gradients, which operands are quantized, saved and read, and what comes back.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/engine/forwarding_engine.h"
#include "kernels/layer/layer.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

LayerRequest SmallRequest() {
  LayerRequest request;
  request.x = Generated(Distribution::kNormal, 1, DType::kBF16, {2, 8, 32});
  request.parameters["weight"] = Generated(Distribution::kNormal, 2, DType::kBF16, {48, 32});
  request.parameters["bias"] = Generated(Distribution::kNormal, 3, DType::kBF16, {48});
  request.grad_output = Generated(Distribution::kNormal, 4, DType::kBF16, {2, 8, 48});
  return request;
}

RequiresGrad GradientsOf(const std::string& letters) {
  return {letters.find('x') != std::string::npos, letters.find('w') != std::string::npos,
          letters.find('b') != std::string::npos};
}

LayerResult RunStep(const LayerRequest& request, const std::string& recipe) {
  const auto engine = MakeCpuEngine({});
  auto result = RunLayer(*engine, request, *Recipe::Parse(recipe), Arithmetic{}, nullptr);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : LayerResult{};
}

std::string OutputsText(const LayerResult& result) {
  return absl::StrJoin(result.outputs, " ", [](std::string* text, const NamedTensor& output) {
    absl::StrAppend(text, output.name);
  });
}

// "input rc": quantized in both usages.
std::string QuantizationsText(const LayerResult& result) {
  return absl::StrJoin(
      result.quantizations, ", ", [](std::string* text, const QuantizationRecord& record) {
        absl::StrAppend(text, std::string(TensorRoleName(record.role)), " ",
                        record.usages.rowwise ? "r" : "", record.usages.columnwise ? "c" : "");
      });
}

// "x[f8_e4m3 columnwise codes]", and "unused" behind what no GEMM reads.
std::string SavedText(const LayerResult& result) {
  return absl::StrJoin(result.saved, ", ", [](std::string* text, const SavedOperand& saved) {
    absl::StrAppend(text, saved.name, "[", saved.content, "]", saved.used ? "" : " unused");
  });
}

std::string GemmsText(const LayerResult& result) {
  return absl::StrJoin(result.gemms, "; ", [](std::string* text, const GemmRecord& gemm) {
    const char* layout = gemm.desc.layout == GemmLayout::kTN   ? "tn"
                         : gemm.desc.layout == GemmLayout::kNN ? "nn"
                                                               : "nt";
    absl::StrAppend(text, gemm.output, " = ", layout, " ", gemm.a.Text(), ", ", gemm.b.Text());
  });
}

std::vector<std::string> StageNames(const LayerResult& result) {
  std::vector<std::string> names;
  for (const TimedStage& time : result.stages) names.push_back(time.stage);
  return names;
}

struct Row {
  std::string override_mode;
  std::string gradients;
  std::string outputs;
  std::string quantizations;
  std::string saved;
  std::string backward_gemms;
};

const std::string kDgradFp8 = "dx = tn grad_output quantized rowwise, weight quantized columnwise";
const std::string kWgradFp8 = "dw = tn grad_output quantized columnwise, x quantized columnwise";
const std::string kXColumnwise = "x[f8_e4m3 columnwise codes]";
const std::string kXRowwise = "x[f8_e4m3 rowwise codes]";
const std::string kWeightBoth = "weight[f8_e4m3 rowwise and columnwise codes]";
const std::string kWeightRowwise = "weight[f8_e4m3 rowwise codes]";
const std::string kWeightGiven = "weight[bf16 as given]";
const std::string kWorkspace = "weight workspace[f8_e4m3 rowwise codes] unused";

// clang-format off
const Row kRows[] = {
    {"none", "xwb", "y dx dw db", "input rc, weight rc, grad_output rc",
     kXColumnwise + ", " + kWeightBoth, kDgradFp8 + "; " + kWgradFp8},
    {"none", "xw", "y dx dw", "input rc, weight rc, grad_output rc",
     kXColumnwise + ", " + kWeightBoth, kDgradFp8 + "; " + kWgradFp8},
    {"none", "xb", "y dx db", "input r, weight rc, grad_output r", kWeightBoth, kDgradFp8},
    {"none", "x", "y dx", "input r, weight rc, grad_output r", kWeightBoth, kDgradFp8},
    {"none", "wb", "y dw db", "input rc, weight r, grad_output c",
     kXColumnwise + ", " + kWeightRowwise + " unused", kWgradFp8},
    {"none", "w", "y dw", "input rc, weight r, grad_output c",
     kXColumnwise + ", " + kWeightRowwise + " unused", kWgradFp8},
    {"none", "b", "y db", "input r, weight r", kWeightRowwise + " unused", ""},
    {"none", "", "y", "input r, weight r", "", ""},

    {"high_precision", "xwb", "y dx dw db", "input r, weight r",
     "x[bf16 as given], " + kWeightGiven + ", " + kWorkspace,
     "dx = nn grad_output, weight; dw = nt grad_output, x"},
    {"high_precision", "xw", "y dx dw", "input r, weight r",
     "x[bf16 as given], " + kWeightGiven + ", " + kWorkspace,
     "dx = nn grad_output, weight; dw = nt grad_output, x"},
    {"high_precision", "xb", "y dx db", "input r, weight r", kWeightGiven + ", " + kWorkspace,
     "dx = nn grad_output, weight"},
    {"high_precision", "x", "y dx", "input r, weight r", kWeightGiven + ", " + kWorkspace,
     "dx = nn grad_output, weight"},
    {"high_precision", "wb", "y dw db", "input r, weight r",
     "x[bf16 as given], " + kWeightGiven + " unused, " + kWorkspace, "dw = nt grad_output, x"},
    {"high_precision", "w", "y dw", "input r, weight r",
     "x[bf16 as given], " + kWeightGiven + " unused, " + kWorkspace, "dw = nt grad_output, x"},
    {"high_precision", "b", "y db", "input r, weight r",
     kWeightGiven + " unused, " + kWorkspace, ""},
    {"high_precision", "", "y", "input r, weight r", "", ""},

    {"dequantized", "xwb", "y dx dw db", "input r, weight r", kXRowwise + ", " + kWeightRowwise,
     "dx = nn grad_output, weight dequantized; dw = nt grad_output, x dequantized"},
    {"dequantized", "xw", "y dx dw", "input r, weight r", kXRowwise + ", " + kWeightRowwise,
     "dx = nn grad_output, weight dequantized; dw = nt grad_output, x dequantized"},
    {"dequantized", "xb", "y dx db", "input r, weight r", kWeightRowwise,
     "dx = nn grad_output, weight dequantized"},
    {"dequantized", "x", "y dx", "input r, weight r", kWeightRowwise,
     "dx = nn grad_output, weight dequantized"},
    {"dequantized", "wb", "y dw db", "input r, weight r",
     kXRowwise + ", " + kWeightRowwise + " unused", "dw = nt grad_output, x dequantized"},
    {"dequantized", "w", "y dw", "input r, weight r",
     kXRowwise + ", " + kWeightRowwise + " unused", "dw = nt grad_output, x dequantized"},
    {"dequantized", "b", "y db", "input r, weight r", kWeightRowwise + " unused", ""},
    {"dequantized", "", "y", "input r, weight r", "", ""},
};
// clang-format on

TEST(LinearDataflow, FollowsTheTableForEveryOverrideAndGradient) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(absl::StrCat(row.override_mode, " [", row.gradients, "]"));
    LayerRequest request = SmallRequest();
    request.requires_grad = GradientsOf(row.gradients);
    const std::string recipe = absl::StrCat("fp8_current:backward_override=", row.override_mode);
    const LayerResult result = RunStep(request, recipe);
    EXPECT_EQ(OutputsText(result), row.outputs);
    EXPECT_EQ(QuantizationsText(result), row.quantizations);
    EXPECT_EQ(SavedText(result), row.saved);
    const std::string fprop = "y = tn x quantized rowwise, weight quantized rowwise";
    EXPECT_EQ(GemmsText(result),
              row.backward_gemms.empty() ? fprop : absl::StrCat(fprop, "; ", row.backward_gemms));
    EXPECT_EQ(OutputsText(result), absl::StrJoin(LayerOutputs(request), " "));
    for (const SavedOperand& saved : result.saved) EXPECT_EQ(saved.at_save, saved.at_use);
    EXPECT_TRUE(result.notes.empty());
  }
}

TEST(LinearDataflow, WithoutAGradOutputIsForwardOnly) {
  for (const char* mode : {"none", "high_precision", "dequantized"}) {
    LayerRequest request = SmallRequest();
    request.grad_output = Tensor();
    const LayerResult result =
        RunStep(request, absl::StrCat("fp8_current:backward_override=", mode));
    EXPECT_EQ(OutputsText(result), "y");
    EXPECT_EQ(QuantizationsText(result), "input r, weight r");
    EXPECT_TRUE(result.saved.empty());
  }
}

TEST(LinearDataflow, WithoutABiasThereIsNoBiasGradient) {
  LayerRequest request = SmallRequest();
  request.parameters["bias"] = Tensor();
  const LayerResult result = RunStep(request, "fp8_current");
  EXPECT_EQ(OutputsText(result), "y dx dw");
  request.requires_grad = GradientsOf("b");
  EXPECT_EQ(OutputsText(RunStep(request, "fp8_current")), "y");
}

TEST(LinearDataflow, WithoutAQuantizedRecipeTheOverrideHasNoEffectAndSaysSo) {
  const LayerRequest request = SmallRequest();
  const LayerResult plain = RunStep(request, "bf16");
  EXPECT_EQ(SavedText(plain), "x[bf16 as given], weight[bf16 as given]");
  EXPECT_EQ(GemmsText(plain),
            "y = tn x, weight; dx = nn grad_output, weight; dw = nt grad_output, x");
  EXPECT_TRUE(plain.quantizations.empty());
  EXPECT_TRUE(plain.notes.empty());
  for (const std::string mode : {"high_precision", "dequantized"}) {
    const LayerResult result = RunStep(request, "bf16:backward_override=" + mode);
    EXPECT_EQ(SavedText(result), SavedText(plain));
    EXPECT_EQ(GemmsText(result), GemmsText(plain));
    ASSERT_EQ(result.outputs.size(), plain.outputs.size());
    for (size_t i = 0; i < plain.outputs.size(); ++i) {
      EXPECT_TRUE(SameBits(result.outputs[i].tensor, plain.outputs[i].tensor));
    }
    EXPECT_EQ(result.notes, std::vector<std::string>{"backward_override=" + mode +
                                                     " has no effect without a quantized recipe"});
  }
}

TEST(LinearDataflow, CastsAreStagesAndSaidOfWhatIsSaved) {
  LayerRequest request = SmallRequest();
  for (Tensor* tensor : {&request.x, &request.parameters.at("weight"),
                         &request.parameters.at("bias"), &request.grad_output}) {
    *tensor = *CastTensor(*tensor, DType::kF32, ExecutionContext());
  }
  struct Case {
    const char* recipe;
    std::vector<std::string> stages;
    std::string saved;
  };
  const std::string save = "fingerprint saved operands";
  const std::string check = "check saved operands";
  const std::vector<Case> cases = {
      {"bf16:activation_dtype=bf16",
       {"cast x", "cast weight", save, "cast bias", "fprop", "cast grad_output", "bias gradient",
        check, "dgrad", "wgrad"},
       "x[bf16 cast from f32], weight[bf16 cast from f32]"},
      {"fp8_current:activation_dtype=bf16",
       {"cast x", "quantize x", "quantize weight", save, "cast bias", "fprop", "cast grad_output",
        "bias gradient", "quantize grad_output", check, "dgrad", "wgrad"},
       kXColumnwise + ", " + kWeightBoth},
      {"fp8_current:activation_dtype=bf16,backward_override=high_precision",
       {"cast x", "quantize x", "quantize weight", save, "cast bias", "fprop", "cast grad_output",
        "bias gradient", check, "cast saved weight", "dgrad", "cast saved x", "wgrad"},
       "x[f32 as given], weight[f32 as given], " + kWorkspace},
      {"fp8_current:activation_dtype=bf16,backward_override=dequantized",
       {"cast x", "quantize x", "quantize weight", save, "cast bias", "fprop", "cast grad_output",
        "bias gradient", check, "dequantize saved weight", "dgrad", "dequantize saved x", "wgrad"},
       kXRowwise + ", " + kWeightRowwise},
  };
  for (const Case& expected : cases) {
    SCOPED_TRACE(expected.recipe);
    const LayerResult result = RunStep(request, expected.recipe);
    EXPECT_EQ(StageNames(result), expected.stages);
    EXPECT_EQ(SavedText(result), expected.saved);
  }
}

TEST(LinearDataflow, SaysWhereF32RunsInTf32) {
  LayerRequest request = SmallRequest();
  request.x = *CastTensor(request.x, DType::kF32, ExecutionContext());
  const auto note_count = [&](const char* recipe) { return RunStep(request, recipe).notes.size(); };
  EXPECT_EQ(note_count("bf16"), 1u);
  EXPECT_EQ(note_count("fp8_current:backward_override=high_precision"), 1u);
  EXPECT_EQ(note_count("fp8_current"), 0u);
  EXPECT_EQ(note_count("bf16:activation_dtype=bf16"), 0u);
}

TEST(LinearDataflow, SaysWhereHopperMayAddInAnotherOrder) {
  struct Case {
    DType dtype;
    int64_t m, n, k;
    const char* recipe;
    size_t note_count;  // Of which f32 always has the one about tf32.
  };
  const char* const none = "fp8_current";
  const char* const original = "fp8_current:backward_override=high_precision";
  const std::vector<Case> cases = {
      {DType::kBF16, 16, 48, 32, "bf16", 0},   {DType::kBF16, 3, 48, 32, "bf16", 0},
      {DType::kBF16, 16, 44, 32, "bf16", 1},   {DType::kBF16, 16, 48, 36, "bf16", 1},
      {DType::kBF16, 16, 48, 32, original, 0}, {DType::kBF16, 16, 48, 32, none, 0},
      {DType::kF32, 16, 48, 32, "bf16", 1},    {DType::kF32, 3, 48, 32, "bf16", 2},
      {DType::kF32, 16, 44, 32, "bf16", 2},    {DType::kF32, 16, 48, 36, "bf16", 2},
  };
  for (const Case& one : cases) {
    LayerRequest request;
    request.x = Generated(Distribution::kNormal, 1, one.dtype, {one.m, one.k});
    request.parameters["weight"] = Generated(Distribution::kNormal, 2, one.dtype, {one.n, one.k});
    request.grad_output = Generated(Distribution::kNormal, 4, one.dtype, {one.m, one.n});
    EXPECT_EQ(RunStep(request, one.recipe).notes.size(), one.note_count)
        << one.m << " " << one.n << " " << one.k << " " << one.recipe;
    const auto engine = MakeCpuEngine({});
    EXPECT_TRUE(
        RunLayer(*engine, request, *Recipe::Parse(one.recipe), *Arithmetic::Parse("exact"), nullptr)
            ->notes.empty());
  }
}

// Writes to a tensor between forward and backward: when the bias gradient is taken.
class OverwritingEngine : public ForwardingEngine {
 public:
  OverwritingEngine(Engine& engine, Tensor target) : ForwardingEngine(engine), target_(target) {}

 protected:
  void OnOperation(const std::string& name) override {
    if (name == "ColumnSums") target_.data()[5] ^= std::byte{1};
  }

 private:
  Tensor target_;
};

TEST(LinearDataflow, AWriteBetweenSaveAndUseShowsInTheFingerprints) {
  const auto cpu = MakeCpuEngine({});
  for (const char* written : {"x", "weight"}) {
    const LayerRequest request = SmallRequest();
    OverwritingEngine engine(
        *cpu, std::string(written) == "x" ? request.x : request.parameters.at("weight"));
    const auto result =
        RunLayer(engine, request, *Recipe::Parse("fp8_current:backward_override=high_precision"),
                 Arithmetic{}, nullptr);
    ASSERT_TRUE(result.ok()) << result.status();
    for (const SavedOperand& saved : result->saved) {
      EXPECT_EQ(saved.at_save == saved.at_use, saved.name != written) << saved.name;
    }
  }
}

// Writes to the scale of the codes that backward reads of x, and to nothing else.
class RescalingEngine : public ForwardingEngine {
 public:
  using ForwardingEngine::ForwardingEngine;
  absl::StatusOr<QuantizedTensor> Quantize(const Tensor& source, const Quantizer& quantizer,
                                           Usages usages, const QuantizeArguments& arguments,
                                           const Cancellation* cancellation) override {
    auto quantized = ForwardingEngine::Quantize(source, quantizer, usages, arguments, cancellation);
    if (!scale_inv_.has_value()) {
      // Of its own memory, since both directions may share one scale.
      Tensor& scale_inv =
          usages.columnwise ? quantized->columnwise->scale_inv : quantized->rowwise->scale_inv;
      scale_inv_ = *Tensor::FromBytes(scale_inv.dtype(), scale_inv.shape(), scale_inv.bytes());
      scale_inv = scale_inv_;
    }
    return quantized;
  }

 protected:
  void OnOperation(const std::string& name) override {
    if (name == "ColumnSums") scale_inv_.data()[0] ^= std::byte{1};
  }

 private:
  Tensor scale_inv_;
};

TEST(LinearDataflow, AWriteToASavedScaleShowsToo) {
  const auto cpu = MakeCpuEngine({});
  for (const char* recipe : {"fp8_current", "fp8_current:backward_override=dequantized"}) {
    RescalingEngine engine(*cpu);
    const auto result =
        RunLayer(engine, SmallRequest(), *Recipe::Parse(recipe), Arithmetic{}, nullptr);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_NE(result->saved[0].at_save, result->saved[0].at_use);
    EXPECT_EQ(result->saved[1].at_save, result->saved[1].at_use);
  }
}

TEST(LinearDataflow, FingerprintsAreOfTheTensorsThemselves) {
  const LayerRequest request = SmallRequest();
  const LayerResult result = RunStep(request, "fp8_current:backward_override=high_precision");
  EXPECT_EQ(result.saved[0].at_save, FingerprintOf(request.x, ExecutionContext()));
  EXPECT_EQ(result.saved[1].at_save,
            FingerprintOf(request.parameters.at("weight"), ExecutionContext()));
}

TEST(LinearDataflow, StartsNothingWhenCancelledBefore) {
  Cancellation cancellation;
  cancellation.Cancel();
  const auto engine = MakeCpuEngine({});
  int begun = 0;
  const auto result = RunLayer(*engine, SmallRequest(), *Recipe::Parse("fp8_current"), Arithmetic{},
                               &cancellation, [&](const StageId&) { ++begun; });
  EXPECT_EQ(result.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(begun, 0);
}

TEST(LinearDataflow, StopsBetweenStages) {
  const LayerRequest request = SmallRequest();
  const Recipe recipe = *Recipe::Parse("fp8_current");
  const auto engine = MakeCpuEngine({});
  const std::vector<std::string> stages = StageNames(RunStep(request, "fp8_current"));
  for (size_t stop = 0; stop < stages.size(); ++stop) {
    Cancellation cancellation;
    std::vector<std::string> begun;
    const auto result =
        RunLayer(*engine, request, recipe, Arithmetic{}, &cancellation, [&](const StageId& stage) {
          begun.push_back(stage.stage);
          if (begun.size() == stop + 1) cancellation.Cancel();
        });
    EXPECT_EQ(result.status().code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(begun, std::vector<std::string>(stages.begin(), stages.begin() + stop + 1));
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

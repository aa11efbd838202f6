#include "server/wire/layer_run.h"

#include <gtest/gtest.h>

#include "server/errors.h"
#include "server/runs/reproduce_command.h"

namespace quantgate {
namespace {

TensorReference GeneratedReference(const std::string& field, uint64_t seed, Shape shape) {
  TensorReference reference;
  reference.kind = TensorReference::Kind::kGenerated;
  reference.field = field;
  reference.generator.seed = seed;
  reference.generator.shape = shape;
  reference.type = TensorType{DType::kBF16, std::move(shape)};
  return reference;
}

Variant MakeVariant(const char* recipe, BackwardOverride mode, const char* arithmetic) {
  return {Recipe::Parse(recipe).value().WithBackwardOverride(mode),
          Arithmetic::Parse(arithmetic).value()};
}

LayerRun MakeRun() {
  LayerRun run;
  run.x = GeneratedReference("spec.step.x", 1, {32, 64});
  run.parameters["weight"] = GeneratedReference("spec.step.parameters[\"weight\"]", 2, {16, 64});
  run.variants = {MakeVariant("bf16", BackwardOverride::kNone, "sm90")};
  return run;
}

constexpr char kTensors[] =
    " --layer linear --input gen:normal,seed=1,shape=32x64,dtype=bf16 --weight "
    "gen:normal,seed=2,shape=16x64,dtype=bf16";

TEST(ReproduceCommandTest, OneVariantIsARun) {
  EXPECT_EQ(ReproduceCommand(MakeRun()),
            std::string("quantgate run") + kTensors +
                " --recipe bf16 --backward-override none --arithmetic sm90");
}

TEST(ReproduceCommandTest, AProductIsACompare) {
  LayerRun run = MakeRun();
  run.variants.clear();
  for (const char* recipe : {"fp8_current", "fp8_current:fp8_format=e4m3,power_2_scales=true"}) {
    for (const auto mode : {BackwardOverride::kNone, BackwardOverride::kDequantized}) {
      for (const char* arithmetic : {"sm90:split,splitk=3", "exact"}) {
        run.variants.push_back(MakeVariant(recipe, mode, arithmetic));
      }
    }
  }
  run.reference = 1;
  run.requirement = Requirement::kBound;
  run.requires_grad = RequiresGrad{true, false, true, false};
  EXPECT_EQ(
      ReproduceCommand(run),
      std::string("quantgate compare") + kTensors +
          " --requires-grad x,b --recipe fp8_current --recipe "
          "fp8_current:fp8_format=e4m3,power_2_scales=true --backward-override none "
          "--backward-override dequantized --arithmetic sm90:split,splitk=3 --arithmetic exact "
          "--reference 1 --require bound");
}

TEST(ReproduceCommandTest, AnythingElseIsOneRunEach) {
  LayerRun run = MakeRun();
  run.variants.push_back(MakeVariant("fp8_current", BackwardOverride::kNone, "exact"));
  EXPECT_EQ(ReproduceCommand(run),
            std::string("quantgate run") + kTensors +
                " --recipe bf16 --backward-override none --arithmetic sm90 && "
                "quantgate run" +
                kTensors + " --recipe fp8_current --backward-override none --arithmetic exact");
}

TEST(ReproduceCommandTest, TwinsOnSeveralRanksAreOptionsOfTheSameCommand) {
  LayerRun run = MakeRun();
  run.layer.parallel_mode = ParallelMode::kRow;
  run.variants.push_back(run.variants[0]);
  run.variants[1].parallel =
      ParallelSpec{.tensor_parallel = 4,
                   .sequence_parallel = true,
                   .profile = {.kind = ReductionKind::kBf16Rotated, .rotation = 1}};
  run.reference = 0;
  run.requirement = Requirement::kBitwise;
  EXPECT_EQ(ReproduceCommand(run),
            "quantgate run --layer linear --parallel-mode row --input "
            "gen:normal,seed=1,shape=32x64,dtype=bf16 --weight "
            "gen:normal,seed=2,shape=16x64,dtype=bf16 --tp 4 --sequence-parallel "
            "--reduction-profile bf16_rotated:1 --recipe bf16 --backward-override none "
            "--arithmetic sm90 --require bitwise");
}

TEST(ReproduceCommandTest, AmaxGroupsAreOptions) {
  LayerRun run = MakeRun();
  run.variants[0].parallel = ParallelSpec{};
  run.variants[0].parallel->amax_groups = {{TensorRole::kInput, *ParseAmaxGroup("none")},
                                           {TensorRole::kGradOutput, *ParseAmaxGroup("1/0")}};
  EXPECT_EQ(ReproduceCommand(run),
            std::string("quantgate run") + kTensors +
                " --tp 2 --amax-group input=none --amax-group grad_output=1/0 --recipe bf16 "
                "--backward-override none --arithmetic sm90");
}

TEST(ReproduceCommandTest, StoredAndInlineTensorsAreDigests) {
  LayerRun run = MakeRun();
  run.x.kind = TensorReference::Kind::kStored;
  run.x.digest = {Sha256Of({}), 4096};
  run.parameters["weight"].kind = TensorReference::Kind::kInline;
  run.parameters["weight"].digest = {Sha256Of({}), 2048};
  TensorReference& main_grad = run.main_grads["weight"];
  main_grad = GeneratedReference("spec.step.main_grads[\"weight\"]", 3, {});
  main_grad.generator.scale = 0.1f;
  const std::string empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
  EXPECT_EQ(ReproduceCommand(run),
            "quantgate run --layer linear --input digest:" + empty +
                "/4096,dtype=bf16,shape=32x64 --weight digest:" + empty +
                "/2048,dtype=bf16,shape=16x64 --main-grad "
                "gen:normal,seed=3,shape=scalar,dtype=bf16,scale=0.100000001 --recipe bf16 "
                "--backward-override none --arithmetic sm90");
}

TEST(OutlineLayerRunTest, ChecksShapesWithoutMemory) {
  LayerRun run = MakeRun();
  // 2^46 bytes, which nobody has.
  run.x = GeneratedReference("spec.step.x", 1, {int64_t{1} << 39, 64});
  EXPECT_TRUE(OutlineLayerRun(run).ok());
  run.parameters["weight"] = GeneratedReference("spec.step.parameters[\"weight\"]", 2, {16, 32});
  const absl::Status status = OutlineLayerRun(run).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(error::DetailOf(status).field, "spec.step.x");
  run = MakeRun();
  run.reference = 4;
  EXPECT_EQ(error::DetailOf(OutlineLayerRun(run).status()).field, "spec.reference");
}

}  // namespace
}  // namespace quantgate

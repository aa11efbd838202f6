// What a layer divided over ranks refuses before anything is computed.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/layer/layer_sharding.h"
#include "tests/engine/tensor_values.h"
#include "tests/layer/layer_cases.h"

namespace quantgate {
namespace QG_TEST_FILE {

ParallelStep StepOf(int size, int rank, bool sequence_parallel, std::vector<int64_t> rows = {}) {
  ParallelStep step;
  step.sequence_parallel = sequence_parallel;
  step.rows = std::move(rows);
  step.size_without_group = size;
  step.rank_without_group = rank;
  return step;
}

std::string ShardError(const LayerRequest& whole, const ParallelStep& step) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const auto shard = ShardLayer(*engine, whole, step);
  if (!shard.ok()) {
    EXPECT_EQ(shard.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(shard.status().message());
  }
  return "";
}

std::string CheckError(const LayerRequest& request, const std::string& recipe = "bf16") {
  const absl::Status status = CheckLayer(request, *Recipe::Parse(recipe));
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

LayerRequest Column() {
  LayerRequest request = LinearCase();
  request.layer.parallel_mode = ParallelMode::kColumn;
  return request;
}

LayerRequest Row() {
  LayerRequest request = LinearCase();
  request.layer.parallel_mode = ParallelMode::kRow;
  return request;
}

TEST(ParallelMode, HasNames) {
  for (const char* name : {"none", "column", "row"}) {
    EXPECT_EQ(ParallelModeName(*ParseParallelMode(name)), name);
  }
  EXPECT_EQ(ParseParallelMode("columns").status().message(),
            "parallel_mode is \"columns\": unknown name; known: none, column, row");
}

TEST(ShardLayer, RefusesWhatTheRanksDoNotDivide) {
  EXPECT_EQ(ShardError(Column(), StepOf(2, 0, true)), "");
  EXPECT_EQ(ShardError(Column(), StepOf(5, 0, false)),
            "grad_output is bf16[2x32x96]: its dim 2 must be a multiple of 5 of the 5 ranks "
            "of the tensor-parallel group");
  EXPECT_EQ(ShardError(Row(), StepOf(6, 0, false)),
            "x is bf16[2x32x64]: its dim 2 must be a multiple of 6 of the 6 ranks of the "
            "tensor-parallel group");
  LayerRequest mlp = LayerNormMlpCase(ActivationKind::kSwiglu);
  mlp.layer.parallel_mode = ParallelMode::kColumn;
  EXPECT_EQ(ShardError(mlp, StepOf(5, 0, false)),
            "parameters[fc1.bias] is f32[192]: its dim 0 must be a multiple of 10, 2 parts "
            "for each of the 5 ranks of the tensor-parallel group");
  EXPECT_EQ(ShardError(Column(), StepOf(2, 0, true, {1, 2})),
            "x is bf16[2x32x64]: parallel.rows divide dim 0 of 2 dims or more into 2 parts, of 3 "
            "rows together");
}

TEST(CheckLayer, RefusesModesThatALayerDoesNotHave) {
  LayerRequest request = LayerNormLinearCase(NormKind::kRmsNorm);
  request.layer.parallel_mode = ParallelMode::kRow;
  EXPECT_EQ(CheckError(request),
            "layer.parallel_mode is row: a norm needs all columns of x, so a layernorm_linear is "
            "column-parallel or none");
  request = LayerNormMlpCase(ActivationKind::kGelu);
  request.layer.parallel_mode = ParallelMode::kRow;
  EXPECT_EQ(CheckError(request),
            "layer.parallel_mode is row: a layernorm_mlp is column-parallel, which makes fc2 "
            "row-parallel, or none");
  request = ResidualChainCase();
  request.layer.parallel_mode = ParallelMode::kColumn;
  EXPECT_EQ(CheckError(request),
            "layer.parallel_mode is column: of a chain, its basic_linear operations have one each");
  request = ResidualChainCase();
  request.layer.operations[0].parallel_mode = ParallelMode::kColumn;
  EXPECT_EQ(CheckError(request),
            "layer.operations[0].parallel_mode is column: it is a basic_linear's, not of a norm");
}

TEST(CheckLayer, RefusesABiasOfRowParallelExperts) {
  LayerRequest request = GroupedLinearCase();
  request.layer.parallel_mode = ParallelMode::kRow;
  EXPECT_EQ(CheckError(request),
            "parameters[bias.0] is f32[96]: a row-parallel grouped_linear has no bias: y is one "
            "rank's part of a sum");
}

TEST(CheckLayer, RefusesOperationsOnDividedColumns) {
  LayerRequest request = ResidualChainCase();
  std::vector<OperationSpec>& operations = request.layer.operations;
  operations[1].parallel_mode = ParallelMode::kColumn;
  EXPECT_EQ(CheckError(request),
            "layer.operations[4].parallel_mode is none: it reads columns that are divided over the "
            "ranks: only a row-parallel operation contracts over them");
  operations[4].parallel_mode = ParallelMode::kColumn;
  EXPECT_EQ(
      CheckError(request),
      "layer.operations[4].parallel_mode is column: it reads columns that are divided over the "
      "ranks: only a row-parallel operation contracts over them");
  operations[4].parallel_mode = ParallelMode::kRow;
  EXPECT_EQ(CheckError(request), "");
  operations[1].parallel_mode = ParallelMode::kRow;
  EXPECT_EQ(CheckError(request),
            "layer.operations[0] is ln: it reads columns that are divided over the ranks: only a "
            "row-parallel operation contracts over them");
  operations[1].parallel_mode = ParallelMode::kColumn;
  operations[5].addend = "up";
  EXPECT_EQ(
      CheckError(request),
      "layer.operations[5].addend is up.y: only one of the two addends is divided over the ranks");
}

TEST(CheckLayer, RefusesRowsThatAreNotTheRanks) {
  LayerRequest request = Column();
  request.grad_output = Tensor();
  const auto error_of = [&](ParallelStep step) {
    request.parallel = std::make_shared<const ParallelStep>(std::move(step));
    return CheckError(request);
  };
  EXPECT_EQ(error_of(StepOf(2, 1, true, {7, 2})), "");
  EXPECT_EQ(error_of(StepOf(2, 1, true, {2, 7})),
            "parallel.rows is [2, 7]: dim 0 of x bf16[2x32x64] must be this rank's entry, 7");
  EXPECT_EQ(error_of(StepOf(2, 1, true, {2})),
            "parallel.rows is [2]: it has one entry for each of the 2 ranks");
  EXPECT_EQ(error_of(StepOf(2, 1, true, {-2, 2})),
            "parallel.rows is [-2, 2]: it must be at least 0");
  request.layer.parallel_mode = ParallelMode::kRow;
  EXPECT_EQ(error_of(StepOf(2, 1, true, {2, 1})),
            "parallel.rows is [2, 1]: dim 0 of x bf16[2x32x64] must be their sum, 3");
  request.x = Generated(Distribution::kNormal, 1, DType::kBF16, {64});
  EXPECT_EQ(error_of(StepOf(2, 1, true)),
            "x is bf16[64]: under sequence parallelism its rank must be at least 2: dim 0 is "
            "divided");
}

// A rank's part off the dims that its GEMMs take, though the whole is on them.
TEST(CheckLayer, RefusesPartsThatTheRecipeDoesNotTake) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const LayerRequest shard = *ShardLayer(*engine, Column(), StepOf(8, 0, false));
  EXPECT_EQ(CheckError(shard), "");
  EXPECT_EQ(CheckError(shard, "mxfp8"),
            "parameters[weight] is f32[12x64]: N is 12 and must be a multiple of 32 under mxfp8: "
            "both dims of a quantized tensor are in whole blocks");
}

TEST(CheckLayer, RefusesCodesOfAQuantizeOperationWhereItGathers) {
  LayerRequest request = ResidualChainCase();
  std::vector<OperationSpec>& operations = request.layer.operations;
  operations[1].parallel_mode = ParallelMode::kColumn;
  operations[4].parallel_mode = ParallelMode::kRow;
  OperationSpec quantize;
  quantize.kind = OperationKind::kQuantize;
  quantize.name = "q";
  operations.insert(operations.begin() + 1, quantize);
  request.parallel = std::make_shared<const ParallelStep>(StepOf(2, 0, false));
  EXPECT_EQ(CheckError(request, "fp8_current"), "");
  request.parallel = std::make_shared<const ParallelStep>(StepOf(2, 0, true));
  EXPECT_EQ(
      CheckError(request, "fp8_current"),
      "layer.operations[2] is column: under sequence parallelism it takes no x that a quantize "
      "operation made");
  operations.erase(operations.begin() + 1);
  quantize.quantize_forward = false;
  quantize.quantize_backward = true;
  operations.insert(operations.begin() + 5, quantize);
  EXPECT_EQ(CheckError(request, "fp8_current"),
            "layer.operations[4] is row: under sequence parallelism it takes no grad_output that a "
            "quantize operation made");
}

TEST(ForwardLayer, NeedsTheGroup) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const LayerRequest shard = *ShardLayer(*engine, Column(), StepOf(2, 0, false));
  const absl::Status status =
      RunLayer(*engine, shard, *Recipe::Parse("bf16"), Arithmetic{}, nullptr).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().substr(0, 19), "parallel.tp is null") << status;
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

// A linear layer divided over ranks against the single-rank layer run on each rank's shard of the
// weight with all rows of x and grad_output, and sums of partial results written down by hand; and
// against the whole layer on one rank where docs/ranks.md section 5 says that they are equal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/engine/tensor_values.h"
#include "tests/layer/parallel_cases.h"

namespace quantgate {
namespace QG_TEST_FILE {

struct Shape2 {
  int ranks;
  int64_t columns;
};
// Whole blocks of fp8_block in every shard; off them where 3 divides.
constexpr Shape2 kShapes[] = {{2, 128}, {3, 192}, {4, 128}};

const std::string Text(const std::string& recipe, const ParallelSetup& setup) {
  return absl::StrCat(recipe, ", ", setup.size, " ranks", setup.sequence_parallel ? ", SP" : "");
}

LayerRequest CaseOf(ParallelMode mode, const Shape2& shape) {
  return WithScales(SquareLinear(mode, shape.ranks * 128, shape.columns));
}

std::vector<LayerResult> AloneResults(const LayerRequest& whole, const Recipe& recipe, int size) {
  std::vector<LayerResult> results;
  for (int rank = 0; rank < size; ++rank) {
    LayerRequest shard = AloneShard(whole, rank, size);
    if (whole.layer.parallel_mode == ParallelMode::kRow) shard.parameters.erase("bias");
    results.push_back(RunCase(shard, recipe));
  }
  return results;
}

std::vector<Tensor> OutputsOf(const std::vector<LayerResult>& results, const std::string& name) {
  std::vector<Tensor> outputs;
  for (const LayerResult& result : results) outputs.push_back(OutputOf(result, name));
  return outputs;
}

/// The bias gradient of some rows: no recipe changes it.
Tensor BiasGradientOf(const LayerRequest& whole, DType activation, int64_t begin, int64_t count) {
  LayerRequest part = whole;
  part.layer.parallel_mode = ParallelMode::kNone;
  part.delayed.clear();
  part.x = RowsOf(whole.x, begin, count);
  part.grad_output = RowsOf(whole.grad_output, begin, count);
  const bool is_f16 = activation == DType::kF16;
  return OutputOf(RunCase(part, is_f16 ? "bf16:activation_dtype=f16" : "bf16"), "db");
}

void ExpectRecords(const LayerRequest& whole, const Recipe& recipe, const ParallelSetup& setup,
                   const std::vector<LayerResult>& results) {
  const auto engine = MakeCpuEngine({.threads = 1});
  for (int rank = 0; rank < setup.size; ++rank) {
    const LayerResult& result = results[static_cast<size_t>(rank)];
    ParallelStep step;
    step.sequence_parallel = setup.sequence_parallel;
    step.size_without_group = setup.size;
    step.rank_without_group = rank;
    const LayerRequest request = *ShardLayer(*engine, whole, step);
    EXPECT_EQ(result.outputs.size(), LayerOutputs(request).size());
    for (const NamedTensor& output : result.outputs) {
      EXPECT_EQ(output.tensor.shape(), LayerOutputShape(request, output.name)) << output.name;
    }
    for (const SavedOperand& saved : result.saved) {
      EXPECT_EQ(saved.at_save, saved.at_use) << saved.name;
      EXPECT_NE(saved.at_save, Fingerprint()) << saved.name;
    }
  }
}

void ExpectColumnIsItsShards(const std::string& text, const Shape2& shape, bool sequence_parallel) {
  const Recipe recipe = *Recipe::Parse(text);
  const ParallelSetup setup{.size = shape.ranks, .sequence_parallel = sequence_parallel};
  SCOPED_TRACE(Text(text, setup));
  const LayerRequest whole = CaseOf(ParallelMode::kColumn, shape);
  const std::vector<LayerResult> results = RunRanks(whole, recipe, setup);
  const std::vector<LayerResult> alone = AloneResults(whole, recipe, shape.ranks);
  for (size_t rank = 0; rank < results.size(); ++rank) {
    for (const char* output : {"y", "dw", "db"}) {
      EXPECT_TRUE(SameBits(OutputOf(results[rank], output), OutputOf(alone[rank], output)))
          << output << " of rank " << rank;
    }
  }
  EXPECT_TRUE(SameBits(Joined(whole.layer, "dx", sequence_parallel, results),
                       SumByHand(OutputsOf(alone, "dx"))));
  ExpectRecords(whole, recipe, setup, results);
}

void ExpectRowIsItsShards(const std::string& text, const Shape2& shape, bool sequence_parallel) {
  const Recipe recipe = *Recipe::Parse(text);
  const ParallelSetup setup{.size = shape.ranks, .sequence_parallel = sequence_parallel};
  SCOPED_TRACE(Text(text, setup));
  const LayerRequest whole = CaseOf(ParallelMode::kRow, shape);
  const std::vector<LayerResult> results = RunRanks(whole, recipe, setup);
  const std::vector<LayerResult> alone = AloneResults(whole, recipe, shape.ranks);
  const Tensor y = Joined(whole.layer, "y", sequence_parallel, results);
  EXPECT_TRUE(
      SameBits(y, AddRowByHand(SumByHand(OutputsOf(alone, "y")), whole.parameters.at("bias"))));
  for (size_t rank = 0; rank < results.size(); ++rank) {
    for (const char* output : {"dx", "dw"}) {
      EXPECT_TRUE(SameBits(OutputOf(results[rank], output), OutputOf(alone[rank], output)))
          << output << " of rank " << rank;
    }
    // Of this rank's rows alone: who wants all of it adds them up.
    const int64_t rows = whole.x.shape()[0] / (sequence_parallel ? shape.ranks : 1);
    const int64_t begin = sequence_parallel ? static_cast<int64_t>(rank) * rows : 0;
    EXPECT_TRUE(
        SameBits(OutputOf(results[rank], "db"), BiasGradientOf(whole, y.dtype(), begin, rows)));
  }
  ExpectRecords(whole, recipe, setup, results);
}

TEST(ColumnParallelLinear, IsItsShardsAndTheSumOfTheirDx) {
  for (const char* recipe : kDividedRecipes) {
    for (const Shape2& shape : kShapes) {
      for (const bool sequence : {false, true}) ExpectColumnIsItsShards(recipe, shape, sequence);
    }
  }
}

TEST(RowParallelLinear, IsItsShardsAndTheSumOfTheirYWithOneBias) {
  for (const char* recipe : kDividedRecipes) {
    for (const Shape2& shape : kShapes) {
      for (const bool sequence : {false, true}) ExpectRowIsItsShards(recipe, shape, sequence);
    }
  }
  // Random numbers are the whole tensor's whoever quantizes a part of it.
  for (const bool sequence : {false, true}) ExpectRowIsItsShards("nvfp4", kShapes[0], sequence);
}

TEST(ParallelLinear, OfCurrentScalingIsNotTheWholeLayer) {
  const LayerRequest column = CaseOf(ParallelMode::kColumn, {2, 256});
  for (const char* text : {"fp8_current", "nvfp4"}) {
    const std::vector<LayerResult> ranks =
        RunRanks(column, *Recipe::Parse(text), {.size = 2, .sequence_parallel = true});
    EXPECT_FALSE(
        SameBits(Joined(column.layer, "y", true, ranks), OutputOf(RunCase(column, text), "y")))
        << text << ": a weight shard has an amax of its own";
  }
}

TEST(ParallelLinear, LeavesTheScalesOfTheWholeLayer) {
  for (const ParallelMode mode : {ParallelMode::kColumn, ParallelMode::kRow}) {
    for (const bool sequence : {false, true}) {
      const LayerRequest request = CaseOf(mode, {4, 128});
      const Recipe recipe = *Recipe::Parse("fp8_delayed:amax_history_len=4");
      const LayerResult whole = RunCase(request, recipe);
      for (const LayerResult& rank :
           RunRanks(request, recipe, {.size = 4, .sequence_parallel = sequence})) {
        ASSERT_EQ(rank.state.size(), whole.state.size());
        for (size_t i = 0; i < whole.state.size(); ++i) {
          EXPECT_EQ(rank.state[i].name, whole.state[i].name);
          EXPECT_TRUE(SameBits(rank.state[i].tensor, whole.state[i].tensor)) << rank.state[i].name;
        }
      }
      // Unreduced, each rank has its own.
      const std::vector<LayerResult> own =
          RunRanks(request, *Recipe::Parse("fp8_delayed:amax_history_len=4,reduce_amax=false"),
                   {.size = 4, .sequence_parallel = sequence});
      size_t differing = 0;
      for (size_t i = 0; i < whole.state.size(); ++i) {
        differing += SameBits(own[0].state[i].tensor, own[1].state[i].tensor) ? 0 : 1;
      }
      EXPECT_GT(differing, 0u);
    }
  }
}

TEST(ParallelLinear, KeepsWhatItsFormatGathersInBackward) {
  const auto saved_x = [](const char* recipe, int64_t rows) {
    const LayerRequest request = WithScales(SquareLinear(ParallelMode::kColumn, rows, 128));
    const LayerResult result =
        RunRanks(request, *Recipe::Parse(recipe), {.size = 2, .sequence_parallel = true})[1];
    for (const SavedOperand& saved : result.saved) {
      if (saved.name == "x") return saved.content;
    }
    return std::string("none");
  };
  EXPECT_EQ(saved_x("bf16", 256), "bf16 as given");
  EXPECT_EQ(saved_x("fp8_delayed", 256), "f8_e4m3 rowwise codes");
  EXPECT_EQ(saved_x("fp8_current", 256), "f8_e4m3 rowwise codes");
  EXPECT_EQ(saved_x("fp8_block", 256), "f8_e4m3 columnwise codes");
  EXPECT_EQ(saved_x("mxfp8", 256), "f8_e4m3 columnwise codes");
  EXPECT_EQ(saved_x("mxfp6_e2m3", 256), "f6_e2m3 columnwise codes");
  EXPECT_EQ(saved_x("mxfp6_e3m2", 256), "f6_e3m2 columnwise codes");
  EXPECT_EQ(saved_x("mxfp4", 256), "f4_e2m1x2 columnwise codes");
  EXPECT_EQ(saved_x("nvfp4", 256), "f4_e2m1x2 columnwise codes");
  EXPECT_EQ(saved_x("mxfp8:backward_override=dequantized", 256), "f8_e4m3 rowwise codes");
  EXPECT_EQ(saved_x("mxfp8:backward_override=high_precision", 256), "bf16 as given");
  // Where nothing but the source can be gathered.
  EXPECT_EQ(saved_x("fp8_rowwise", 256), "bf16 as given");
  EXPECT_EQ(saved_x("fp8_block", 128), "bf16 as given");
  EXPECT_EQ(saved_x("mxfp4", 32), "bf16 as given");
  EXPECT_EQ(saved_x("mxfp8", 32), "bf16 as given");
  EXPECT_EQ(saved_x("nvfp4", 16), "bf16 as given");
  EXPECT_EQ(saved_x("hybrid:fprop=mxfp8,dgrad=mxfp8,wgrad=mxfp8", 256), "f8_e4m3 columnwise codes");
  EXPECT_EQ(saved_x("hybrid:fprop=fp8_current,dgrad=fp8_current,wgrad=mxfp8", 256),
            "f8_e4m3 rowwise codes");
  EXPECT_EQ(saved_x("hybrid:fprop=mxfp8,dgrad=mxfp8,wgrad=nvfp4", 256), "f8_e4m3 rowwise codes");
}

// Shards off the blocks, uneven and empty: gathered in high precision and quantized once.
TEST(ParallelLinear, FallsBackToTheSource) {
  for (const char* text :
       {"fp8_rowwise", "fp8_block", "mxfp8", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4",
        "mxfp8:backward_override=dequantized", "nvfp4:disable_stochastic_rounding=true"}) {
    const Recipe recipe = *Recipe::Parse(text);
    for (const std::vector<int64_t>& rows :
         {std::vector<int64_t>{16, 48}, {24, 40}, {64, 0}, {63, 1}}) {
      const ParallelSetup setup{.size = 2, .sequence_parallel = true, .rows = rows};
      SCOPED_TRACE(absl::StrCat(text, " ", rows[0], " and ", rows[1]));
      const LayerRequest column = SquareLinear(ParallelMode::kColumn, 64, 128);
      std::vector<LayerResult> alone = AloneResults(column, recipe, 2);
      const std::vector<LayerResult> columns = RunRanks(column, recipe, setup);
      for (size_t rank = 0; rank < 2; ++rank) {
        EXPECT_TRUE(SameBits(OutputOf(columns[rank], "y"), OutputOf(alone[rank], "y")));
        EXPECT_TRUE(SameBits(OutputOf(columns[rank], "dw"), OutputOf(alone[rank], "dw")));
        EXPECT_EQ(OutputOf(columns[rank], "dx").shape()[0], rows[rank]);
      }
      EXPECT_TRUE(
          SameBits(Joined(column.layer, "dx", true, columns), SumByHand(OutputsOf(alone, "dx"))));
      const LayerRequest row = SquareLinear(ParallelMode::kRow, 64, 128);
      alone = AloneResults(row, recipe, 2);
      const std::vector<LayerResult> results = RunRanks(row, recipe, setup);
      for (size_t rank = 0; rank < 2; ++rank) {
        EXPECT_TRUE(SameBits(OutputOf(results[rank], "dx"), OutputOf(alone[rank], "dx")));
        EXPECT_TRUE(SameBits(OutputOf(results[rank], "dw"), OutputOf(alone[rank], "dw")));
        EXPECT_EQ(OutputOf(results[rank], "y").shape()[0], rows[rank]);
      }
    }
  }
}

TEST(ParallelLinear, OfNoRowsAtAllIsEmpty) {
  for (const ParallelMode mode : {ParallelMode::kColumn, ParallelMode::kRow}) {
    for (const char* text : {"bf16", "fp8_current", "fp8_rowwise", "mxfp8", "mxfp4", "nvfp4"}) {
      const LayerRequest request = SquareLinear(mode, 0, 128);
      const std::vector<LayerResult> results =
          RunRanks(request, *Recipe::Parse(text), {.size = 2, .sequence_parallel = true});
      for (const char* output : {"y", "dx", "dw"}) {
        EXPECT_TRUE(SameBits(Joined(request.layer, output, true, results),
                             OutputOf(RunCase(request, text), output)))
            << text << output;
      }
    }
  }
}

TEST(ParallelLinear, DividesTheFirstOfSeveralDims) {
  for (const ParallelMode mode : {ParallelMode::kColumn, ParallelMode::kRow}) {
    LayerRequest flat = SquareLinear(mode, 256, 128);
    LayerRequest deep = flat;
    deep.x = *flat.x.Reinterpret(DType::kBF16, {4, 64, 128});
    deep.grad_output = *flat.grad_output.Reinterpret(DType::kBF16, {4, 64, 128});
    const Recipe recipe = *Recipe::Parse("mxfp8");
    const ParallelSetup setup{.size = 2, .sequence_parallel = true};
    const std::vector<LayerResult> reference = RunRanks(flat, recipe, setup);
    const std::vector<LayerResult> results = RunRanks(deep, recipe, setup);
    ExpectRecords(deep, recipe, setup, results);
    for (size_t rank = 0; rank < 2; ++rank) {
      for (const char* output : {"y", "dx", "dw", "db"}) {
        const Tensor& expected = OutputOf(reference[rank], output);
        const Tensor& subject = OutputOf(results[rank], output);
        EXPECT_TRUE(SameBits(*subject.Reinterpret(subject.dtype(), expected.shape()), expected));
      }
    }
  }
}

TEST(ParallelLinear, SumsInTheOrderOfTheProfile) {
  const LayerRequest row = SquareLinear(ParallelMode::kRow, 128, 128);
  const Recipe recipe = *Recipe::Parse("bf16");
  std::vector<Tensor> partials = OutputsOf(AloneResults(row, recipe, 4), "y");
  const Tensor& bias = row.parameters.at("bias");
  std::vector<Tensor> blocks;
  for (size_t owner = 0; owner < 4; ++owner) {
    Tensor sum;
    for (size_t step = 1; step <= 4; ++step) {
      const Tensor next =
          RowsOf(partials[(owner + step) % 4], static_cast<int64_t>(owner) * 32, 32);
      sum = step == 1 ? next : SumByHand({sum, next});
    }
    blocks.push_back(AddRowByHand(sum, bias));
  }
  const Tensor expected = JoinRowsByHand(blocks);
  EXPECT_FALSE(SameBits(expected, AddRowByHand(SumByHand(partials), bias)));
  for (const bool sequence : {false, true}) {
    ParallelSetup setup{.size = 4, .sequence_parallel = sequence};
    setup.profile = *ParseReductionProfile("nccl_ring");
    const std::vector<LayerResult> results = RunRanks(row, recipe, setup);
    EXPECT_TRUE(SameBits(Joined(row.layer, "y", sequence, results), expected)) << sequence;
  }
}

// 1 + (2^-8 + 2^-17) lies above the middle of two bf16 numbers; the bias as a bf16, 2^-8, brings it
// into the middle, from where it rounds to 1.
TEST(RowParallelLinear, RoundsTheBiasToTheActivationDtypeFirst) {
  LayerRequest request = SquareLinear(ParallelMode::kRow, 32, 32);
  request.grad_output = Tensor();
  std::vector<float> one_in_each_row(32 * 32, 0.0f);
  for (size_t row = 0; row < 32; ++row) one_in_each_row[row * 32] = 1.0f;
  request.x = FromValues(DType::kBF16, {32, 32}, one_in_each_row);
  request.parameters["weight"] = FromValues(DType::kF32, {32, 32}, one_in_each_row);
  request.parameters["bias"] =
      FromValues(DType::kF32, {32}, std::vector<float>(32, 0x1p-8f + 0x1p-17f));
  const Tensor expected = FromValues(DType::kBF16, {32, 32}, std::vector<float>(32 * 32, 1.0f));
  for (const bool sequence : {false, true}) {
    const std::vector<LayerResult> results =
        RunRanks(request, *Recipe::Parse("bf16"), {.size = 2, .sequence_parallel = sequence});
    EXPECT_TRUE(SameBits(Joined(request.layer, "y", sequence, results), expected)) << sequence;
  }
}

/// OperandOrigin::quantized_before of the operands of each GEMM, by its output.
std::map<std::string, std::string> QuantizedBefore(const LayerResult& result) {
  std::map<std::string, std::string> before;
  for (const GemmRecord& gemm : result.gemms) {
    before[gemm.output] = absl::StrCat(gemm.a.quantized_before, "|", gemm.b.quantized_before);
  }
  return before;
}

// Some tensors of a custom recipe have delayed scaling: their codes are gathered as fp8_delayed's,
// the others as the recipe's.
TEST(NestedDelayedScaling, OfSomeTensorsIsItsShards) {
  const Recipe recipe =
      *Recipe::Parse(R"(custom:rules=[{"tensor_type":"grad_output","quantizer":"fp8_current"},)"
                     R"({"quantizer":"fp8_delayed"}])");
  for (const ParallelMode mode : {ParallelMode::kColumn, ParallelMode::kRow}) {
    const bool is_column = mode == ParallelMode::kColumn;
    LayerRequest whole = CaseOf(mode, kShapes[0]);
    whole.delayed.erase("grad_output");
    const ParallelSetup setup{.size = kShapes[0].ranks, .sequence_parallel = true};
    const std::vector<LayerResult> results = RunRanks(whole, recipe, setup);
    const std::vector<LayerResult> alone = AloneResults(whole, recipe, setup.size);
    for (size_t rank = 0; rank < results.size(); ++rank) {
      for (const char* output : {is_column ? "y" : "dx", "dw"}) {
        EXPECT_TRUE(SameBits(OutputOf(results[rank], output), OutputOf(alone[rank], output)))
            << output << " of rank " << rank;
      }
    }
  }
}

// Under the update between forward and backward, what is quantized when it is gathered would have
// two scales.
TEST(NestedDelayedScaling, OfOneDirectionIsNotGathered) {
  const std::string one = "hybrid:fprop=fp8_delayed,dgrad=mxfp8,wgrad=mxfp8";
  for (const auto& [mode, recipe] :
       {std::pair{ParallelMode::kColumn, one},
        {ParallelMode::kRow, std::string("hybrid:fprop=mxfp8,dgrad=fp8_delayed,wgrad=mxfp8")}}) {
    LayerRequest whole = SquareLinear(mode, 256, 128);
    const auto refused =
        TryRanks(whole, *Recipe::Parse(recipe), {.size = 2, .sequence_parallel = true});
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.status().message()),
                ::testing::HasSubstr(mode == ParallelMode::kColumn
                                         ? "input has delayed scaling in one direction"
                                         : "grad_output has delayed scaling in one direction"));
    EXPECT_TRUE(TryRanks(whole, *Recipe::Parse(recipe), {.size = 2}).ok());
  }
  // x is gathered of a column-parallel layer alone.
  EXPECT_TRUE(TryRanks(SquareLinear(ParallelMode::kRow, 256, 128), *Recipe::Parse(one),
                       {.size = 2, .sequence_parallel = true})
                  .ok());
}

// docs/ranks.md section 3, hybrid: what the shards' codes stand for is quantized again.
TEST(GemmRecords, SayWhichOperandsWereQuantizedTwice) {
  const ParallelSetup ranks = {.size = 2, .sequence_parallel = true};
  const std::string hybrid = "hybrid:fprop=mxfp8,dgrad=fp8_current,wgrad=fp8_block";
  using Expected = std::map<std::string, std::string>;
  const auto of = [&](ParallelMode mode, const std::string& recipe, const ParallelSetup& setup) {
    return QuantizedBefore(
        RunRanks(SquareLinear(mode, 256, 128), *Recipe::Parse(recipe), setup).front());
  };
  EXPECT_EQ(of(ParallelMode::kColumn, hybrid, ranks),
            (Expected{{"y", "mxfp8 (f8_e4m3 rowwise codes)|"},
                      {"dx", "|"},
                      {"dw", "|fp8_block (f8_e4m3 columnwise codes)"}}));
  const std::string gradient = "fp8_tensor (f8_e5m2 rowwise codes)|";
  EXPECT_EQ(of(ParallelMode::kRow, hybrid, ranks),
            (Expected{{"y", "|"}, {"dx", gradient}, {"dw", gradient}}));
  // wgrad begins from rowwise codes where these are per tensor.
  EXPECT_EQ(
      of(ParallelMode::kColumn, "hybrid:fprop=fp8_current,dgrad=mxfp8,wgrad=mxfp8", ranks).at("dw"),
      "|fp8_tensor (f8_e4m3 rowwise codes)");
  const Expected once = {{"y", "|"}, {"dx", "|"}, {"dw", "|"}};
  EXPECT_EQ(of(ParallelMode::kColumn, "mxfp8", ranks), once);
  // Without sequence parallelism nothing is gathered.
  EXPECT_EQ(of(ParallelMode::kColumn, hybrid, {.size = 2}), once);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

// Shards that are quantized under one amax and joined have the bytes of the whole quantized at
// once; what would make them differ is refused.
#include "kernels/comm/quantized_gather.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "tests/comm/ranks.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr int64_t kColumns = 256;

Tensor RowsOf(const Tensor& tensor, int64_t begin, int64_t count) {
  const size_t row = static_cast<size_t>(tensor.columns()) * DTypeBytes(tensor.dtype());
  return *Tensor::FromBytes(
      tensor.dtype(), {count, tensor.columns()},
      tensor.bytes().subspan(static_cast<size_t>(begin) * row, static_cast<size_t>(count) * row));
}

void ExpectSameCopy(const std::optional<QuantizedCopy>& subject,
                    const std::optional<QuantizedCopy>& reference) {
  ASSERT_EQ(subject.has_value(), reference.has_value());
  if (!subject.has_value()) return;
  EXPECT_TRUE(SameBits(subject->data, reference->data));
  EXPECT_TRUE(SameBits(subject->scale_inv, reference->scale_inv));
  EXPECT_EQ(subject->amax.has_value(), reference->amax.has_value());
  // Of delayed scaling the amax is a note of one rank's own cast.
  const bool is_note = reference->format == QuantizerFormat::kFp8Tensor;
  if (reference->amax.has_value() && !is_note) {
    EXPECT_TRUE(SameBits(subject->amax, reference->amax));
  }
  EXPECT_EQ(subject->hadamard, reference->hadamard);
}

struct Case {
  std::string recipe;
  TensorRole role;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* recipe :
       {"fp8_delayed", "fp8_current", "fp8_current:power_2_scales=true,amax_epsilon=0.25",
        "fp8_block", "mxfp8", "mxfp8:fp8_format=hybrid,enable_2d_quantization=true", "nvfp4",
        "nvfp4:disable_rht=true", "nvfp4:scale_rule=single_level"}) {
    for (const TensorRole role : {TensorRole::kInput, TensorRole::kGradOutput}) {
      cases.push_back({recipe, role});
    }
  }
  return cases;
}

QuantizeArguments ArgumentsOf(const Recipe& recipe) {
  QuantizeArguments arguments;
  arguments.seed = 5;
  if (recipe.is_delayed()) arguments.scale = *Tensor::FromScalar(4.0f);
  return arguments;
}

/// Every rank's whole, from shards of these rows.
std::vector<QuantizedTensor> Gathered(const Case& one, const Tensor& whole,
                                      const std::vector<int64_t>& rows, Usages usages) {
  Ranks ranks(static_cast<int>(rows.size()));
  const Recipe recipe = *Recipe::Parse(one.recipe);
  const Quantizer& quantizer = recipe.QuantizerFor(one.role);
  std::vector<QuantizedTensor> results(rows.size());
  const absl::Status status = ranks.world().Run(
      [&](Rank& rank) -> absl::Status {
        const size_t index = static_cast<size_t>(rank.index());
        int64_t begin = 0;
        for (size_t i = 0; i < index; ++i) begin += rows[i];
        const Tensor shard = RowsOf(whole, begin, rows[index]);
        const GatherContext context{rank.engine(), rank.group(kWorldGroup), rank.faults()};
        QuantizeArguments arguments = ArgumentsOf(recipe);
        if (quantizer.rowwise.format == QuantizerFormat::kNvfp4) arguments.row_offset = begin;
        const Usages made = ShardUsages(quantizer, usages);
        QG_RETURN_IF_ERROR(ReduceAmaxes(context, shard, quantizer, made, arguments));
        QG_ASSIGN_OR_RETURN(const QuantizedTensor codes,
                            rank.engine().Quantize(shard, quantizer, made, arguments, nullptr));
        QG_ASSIGN_OR_RETURN(results[index], GatherCodes(context, "x", codes, usages));
        return absl::OkStatus();
      },
      nullptr);
  EXPECT_TRUE(status.ok()) << status;
  return results;
}

void ExpectGatherIsWhole(const Case& one, const Tensor& whole, const std::vector<int64_t>& rows) {
  const Recipe recipe = *Recipe::Parse(one.recipe);
  const Quantizer& quantizer = recipe.QuantizerFor(one.role);
  ASSERT_EQ(GatherMethodOf(recipe, one.role, rows, kColumns), GatherMethod::kCodes);
  for (const Usages usages : {Usages{true, false}, Usages{false, true}, Usages{true, true}}) {
    SCOPED_TRACE(absl::StrCat(one.recipe, " ", std::string(TensorRoleName(one.role)), " ",
                              rows.size(), " ranks ", usages.rowwise, usages.columnwise));
    const QuantizedTensor reference =
        *QuantizeCpu(whole, quantizer, usages, ArgumentsOf(recipe), ExecutionContext());
    for (const QuantizedTensor& gathered : Gathered(one, whole, rows, usages)) {
      EXPECT_EQ(gathered.shape, reference.shape);
      EXPECT_EQ(gathered.source_dtype, reference.source_dtype);
      ExpectSameCopy(gathered.rowwise, reference.rowwise);
      ExpectSameCopy(gathered.columnwise, reference.columnwise);
    }
  }
}

/// A quarter of the magnitude on each rank before the next, so that every amax but the last rank's
/// is too small, and the largest element the last of all.
Tensor Rising(const std::vector<int64_t>& rows, bool is_negative) {
  int64_t sum = 0;
  for (const int64_t count : rows) sum += count;
  std::vector<float> values =
      ToValues(Generated(Distribution::kNormal, 11, DType::kBF16, {sum, kColumns}));
  int64_t begin = 0;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    for (int64_t at = begin * kColumns; at < (begin + rows[rank]) * kColumns; ++at) {
      values[static_cast<size_t>(at)] *= std::ldexp(1.0f, static_cast<int>(2 * rank));
    }
    begin += rows[rank];
  }
  values.back() = is_negative ? -3000.0f : 3000.0f;
  return FromValues(DType::kBF16, {sum, kColumns}, values);
}

TEST(QuantizedGather, IsTheWholeQuantizedAtOnce) {
  for (const Case& one : Cases()) {
    ExpectGatherIsWhole(one, Rising({128, 128}, false), {128, 128});
    ExpectGatherIsWhole(one, Rising({128, 128, 128, 128}, true), {128, 128, 128, 128});
  }
}

TEST(QuantizedGather, OfUnevenAndEmptyShardsToo) {
  for (const Case& one : Cases()) {
    ExpectGatherIsWhole(one, Rising({256, 0, 128}, true), {256, 0, 128});
  }
}

TEST(QuantizedGather, OfNothingIsNothing) {
  for (const Case& one : Cases()) {
    const Recipe recipe = *Recipe::Parse(one.recipe);
    const Tensor none = *Tensor::Allocate(DType::kBF16, {0, kColumns});
    for (const QuantizedTensor& gathered : Gathered(one, none, {0, 0}, {true, true})) {
      EXPECT_EQ(gathered.shape, (Shape{0, kColumns})) << one.recipe;
    }
  }
}

// Four tensors on three ranks, which have some of them each: of the first both have rows, of the
// second one has none, of the last nobody.
TEST(ReduceAmaxesOfAll, GivesEveryTensorItsOwnMaximumWhoeverHasIt) {
  struct Part {
    int64_t begin, rows;
  };
  const int64_t first[] = {0, 0, 2};
  const std::vector<std::vector<Part>> parts = {
      {{0, 32}, {32, 0}}, {{32, 16}, {48, 32}, {80, 16}}, {{96, 48}, {144, 0}}};
  const Part wholes[] = {{0, 48}, {48, 32}, {80, 64}, {144, 0}};
  const Tensor all = Rising({32, 16, 32, 16, 48}, true);
  for (const char* text : {"fp8_current", "nvfp4", "nvfp4:disable_rht=true"}) {
    SCOPED_TRACE(text);
    const Quantizer quantizer = Recipe::Parse(text)->QuantizerFor(TensorRole::kInput);
    const Usages both = {true, true};
    Ranks ranks(3);
    std::vector<std::vector<QuantizeArguments>> reduced(parts.size());
    const absl::Status status = ranks.world().Run(
        [&](Rank& rank) -> absl::Status {
          const auto index = static_cast<size_t>(rank.index());
          std::vector<Tensor> tensors;
          for (const Part& part : parts[index]) {
            tensors.push_back(RowsOf(all, part.begin, part.rows));
          }
          reduced[index].resize(tensors.size());
          const GatherContext context{rank.engine(), rank.group(kWorldGroup), rank.faults()};
          return ReduceAmaxesOfAll(context, tensors, {first[index], 4}, quantizer, both,
                                   reduced[index]);
        },
        nullptr);
    ASSERT_TRUE(status.ok()) << status;
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      for (size_t i = 0; i < parts[rank].size(); ++i) {
        const Part& whole = wholes[static_cast<size_t>(first[rank]) + i];
        const QuantizedTensor alone = *QuantizeCpu(RowsOf(all, whole.begin, whole.rows), quantizer,
                                                   both, {}, ExecutionContext());
        SCOPED_TRACE(absl::StrCat("rank ", rank, " tensor ", i));
        EXPECT_EQ(*reduced[rank][i].group_amax_rowwise.as<float>(),
                  *alone.rowwise->amax.as<float>());
        const Tensor& columnwise = reduced[rank][i].group_amax_columnwise;
        if (columnwise.has_value()) {
          EXPECT_EQ(*columnwise.as<float>(), *alone.columnwise->amax.as<float>());
        }
        EXPECT_EQ(columnwise.has_value(), std::string(text) != "fp8_current");
      }
    }
  }
}

TEST(GatherMethod, FollowsRecipeAndAlignment) {
  const auto method_of = [](const char* recipe, std::vector<int64_t> rows, int64_t columns) {
    return GatherMethodOf(*Recipe::Parse(recipe), TensorRole::kInput, rows, columns);
  };
  EXPECT_EQ(method_of("bf16", {128, 128}, 128), GatherMethod::kSource);
  EXPECT_EQ(method_of("fp8_current", {3, 5}, 17), GatherMethod::kCodes);
  EXPECT_EQ(method_of("fp8_delayed", {3, 5}, 17), GatherMethod::kCodes);
  const char* const custom_delayed = R"(custom:rules=[{"quantizer":"fp8_delayed"}])";
  EXPECT_EQ(method_of(custom_delayed, {3, 5}, 17), GatherMethod::kCodes);
  const char* const custom_current = R"(custom:rules=[{"quantizer":"fp8_current"}])";
  EXPECT_EQ(method_of(custom_current, {3, 5}, 17), GatherMethod::kSource);
  EXPECT_EQ(method_of("fp8_block", {128, 256}, 128), GatherMethod::kCodes);
  EXPECT_EQ(method_of("fp8_block", {128, 64}, 128), GatherMethod::kSource);
  EXPECT_EQ(method_of("fp8_block", {128, 128}, 192), GatherMethod::kSource);
  EXPECT_EQ(method_of("fp8_block:x_block_dim=2,w_block_dim=1", {128, 128}, 128),
            GatherMethod::kSource);
  EXPECT_EQ(method_of("mxfp8", {32, 64}, 32), GatherMethod::kCodes);
  EXPECT_EQ(method_of("mxfp8", {48, 16}, 32), GatherMethod::kSource);
  EXPECT_EQ(method_of("nvfp4", {16, 48}, 16), GatherMethod::kCodes);
  EXPECT_EQ(method_of("nvfp4", {24, 8}, 16), GatherMethod::kSource);
  EXPECT_EQ(method_of("nvfp4:disable_rht=true,row_scaled_activation=true,"
                      "backward_override=dequantized",
                      {16, 16}, 16),
            GatherMethod::kSource);
  EXPECT_EQ(method_of("hybrid:fprop=mxfp8", {32, 32}, 32), GatherMethod::kValues);
  EXPECT_EQ(method_of("hybrid:fprop=mxfp8", {16, 16}, 32), GatherMethod::kSource);
}

TEST(GatherCodes, RefusesScalesThatDiffer) {
  for (const char* text : {"fp8_current", "nvfp4"}) {
    const Quantizer quantizer = Recipe::Parse(text)->QuantizerFor(TensorRole::kInput);
    const Tensor whole = Rising({16, 16}, false);
    Ranks ranks(2);
    const absl::Status status = ranks.world().Run(
        [&](Rank& rank) -> absl::Status {
          const GatherContext context{rank.engine(), rank.group(kWorldGroup), rank.faults()};
          const Tensor shard = RowsOf(whole, 16 * rank.index(), 16);
          QG_ASSIGN_OR_RETURN(const QuantizedTensor codes,
                              rank.engine().Quantize(shard, quantizer, {true, false}, {}, nullptr));
          return GatherCodes(context, "fc1.x", codes, {true, false}).status();
        },
        nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    const std::string what =
        std::string(text) == "nvfp4" ? "fc1.x rowwise amax" : "fc1.x rowwise scale_inv";
    EXPECT_NE(status.message().find(what), std::string::npos) << status;
  }
}

TEST(GatherCodes, RefusesADirectionThatTheShardsLack) {
  const Quantizer quantizer = Recipe::Parse("mxfp8")->QuantizerFor(TensorRole::kInput);
  Ranks ranks(2);
  const absl::Status status = ranks.world().Run(
      [&](Rank& rank) -> absl::Status {
        const GatherContext context{rank.engine(), rank.group(kWorldGroup), rank.faults()};
        QG_ASSIGN_OR_RETURN(
            const QuantizedTensor codes,
            rank.engine().Quantize(Rising({32}, false), quantizer, {true, false}, {}, nullptr));
        return GatherCodes(context, "x", codes, {false, true}).status();
      },
      nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("x: the shard has no columnwise codes"), std::string::npos)
      << status;
}

TEST(GatherRows, RefusesAnotherNumberOfRows) {
  Ranks ranks(2);
  const absl::Status status = ranks.world().Run(
      [&](Rank& rank) -> absl::Status {
        const GatherContext context{rank.engine(), rank.group(kWorldGroup), rank.faults()};
        const Tensor shard = *Tensor::Allocate(DType::kBF16, {4, 8});
        return GatherRows(context, "all-gather x", shard, 9).status();
      },
      nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("all-gather x: the shards of the group have 8 rows together"),
            std::string::npos)
      << status;
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

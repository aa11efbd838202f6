// Codes of levels beside their rules: NaN, dequantized values, copies of both directions, counts,
// and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/quantize/recipe/recipe_json.h"
#include "kernels/tensor/convert.h"
#include "tests/quantize/hostile_levels.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Tensor Floats(Shape shape, const std::vector<float>& values) {
  return *Tensor::FromBytes(DType::kF32, std::move(shape), std::as_bytes(std::span(values)));
}

QuantizerSpec Spec(const char* json) {
  const auto rule = ParseQuantizerRuleText(json);
  EXPECT_TRUE(rule.ok()) << rule.status();
  return rule->spec;
}

std::vector<float> ValuesOf(const QuantizedTensor& quantized, Usage usage) {
  const auto values = DequantizeCpu(quantized, usage, DType::kF32, {});
  EXPECT_TRUE(values.ok()) << values.status();
  return {values->as<float>(), values->as<float>() + values->element_count()};
}

// By hand: a scale of 127 / 127 = 1.
TEST(QuantizeLevels, NanIsZeroAndLeftOutOfTheScale) {
  const Tensor source = Floats({1, 4}, {kNan, 127, -2.5f, 0.5f});
  const auto made =
      QuantizeCpu(source, Spec(R"({"format": "int8", "scale_rule": "modelopt"})"), {}, {}, {});
  ASSERT_TRUE(made.ok()) << made.status();
  const auto* codes = made->rowwise->data.as<int8_t>();
  EXPECT_EQ(*made->rowwise->scale_inv.as<float>(), 1.0f);
  EXPECT_EQ(std::vector<int>(codes, codes + 4), (std::vector<int>{0, 127, -2, 0}));
  EXPECT_EQ(ValuesOf(*made, Usage::kRowwise), (std::vector<float>{0, 127, -2, 0}));
  const QuantizationCounts wanted = {.normal = 2, .flushed_to_zero = 1, .nan = 1};
  EXPECT_EQ(made->counts, wanted);
}

// By hand: min -1, max 254: a scale of 1, a zero point of -128 + 1, to which NaN goes.
TEST(QuantizeLevels, NanIsTheZeroPoint) {
  const Tensor source = Floats({1, 4}, {-1, 254, kNan, 0});
  const auto made =
      QuantizeCpu(source, Spec(R"({"format": "int8", "zero_point": "integer"})"), {}, {}, {});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(*made->rowwise->zero_point.as<int8_t>(), -127);
  const auto* codes = made->rowwise->data.as<int8_t>();
  EXPECT_EQ(std::vector<int>(codes, codes + 4), (std::vector<int>{-128, 127, -127, -127}));
  EXPECT_EQ(ValuesOf(*made, Usage::kRowwise), (std::vector<float>{-1, 254, 0, 0}));
}

// A scale of infinity: finite values are 0, and infinities NaN on the way, which is 0, too.
TEST(QuantizeLevels, InfinityMakesAnInfiniteScale) {
  const Tensor source = Floats({1, 2}, {kInfinity, 3});
  const auto made =
      QuantizeCpu(source, Spec(R"({"format": "int8", "scale_rule": "modelopt"})"), {}, {}, {});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(*made->rowwise->scale_inv.as<float>(), kInfinity);
  EXPECT_EQ(made->rowwise->data.as<int8_t>()[0], 0);
  EXPECT_EQ(made->rowwise->data.as<int8_t>()[1], 0);
  EXPECT_TRUE(std::isnan(ValuesOf(*made, Usage::kRowwise)[0]));
  EXPECT_EQ(made->counts.infinite, 1);
}

// The columnwise copy is the rowwise one of the transpose; both at once are each alone.
TEST(QuantizeLevels, ColumnwiseIsRowwiseOfTheTranspose) {
  constexpr int64_t m = 6, k = 10;
  std::vector<float> values, turned(m * k);
  for (int i = 0; i < m * k; ++i) values.push_back(static_cast<float>(i * 37 % 101 - 50) / 7.0f);
  for (int64_t i = 0; i < m * k; ++i) {
    turned[static_cast<size_t>(i % k * m + i / k)] = values[static_cast<size_t>(i)];
  }
  for (const char* json :
       {R"({"format": "int8"})", R"({"format": "int8", "group": 4, "zero_point": "integer"})",
        R"({"format": "int4", "group": 4})",
        R"({"format": "int4", "scale_rule": "gguf", "element": "u4x2", "zero_point": "float",
            "group": 4})"}) {
    const QuantizerSpec spec = Spec(json);
    const auto both = QuantizeCpu(Floats({m, k}, values), spec, {true, true}, {}, {});
    const auto rows = QuantizeCpu(Floats({k, m}, turned), spec, {}, {}, {});
    ASSERT_TRUE(both.ok() && rows.ok()) << both.status() << rows.status();
    const auto same = [](const Tensor& a, const Tensor& b) {
      return a.has_value() == b.has_value() &&
             (!a.has_value() ||
              (a.shape() == b.shape() && std::ranges::equal(a.bytes(), b.bytes())));
    };
    EXPECT_TRUE(same(both->columnwise->data, rows->rowwise->data)) << json;
    EXPECT_TRUE(same(both->columnwise->scale_inv, rows->rowwise->scale_inv)) << json;
    EXPECT_TRUE(same(both->columnwise->zero_point, rows->rowwise->zero_point)) << json;
    const std::vector<float> by_column = ValuesOf(*both, Usage::kColumnwise);
    const std::vector<float> by_row = ValuesOf(*rows, Usage::kRowwise);
    for (int64_t i = 0; i < m * k; ++i) {
      EXPECT_EQ(by_column[static_cast<size_t>(i)], by_row[static_cast<size_t>(i % k * m + i / k)]);
    }
  }
}

/// The scalar loops are the definition. Groups that fill bytes and vectors, and that do not; NaN
/// and infinities in some groups, and alone in others.
TEST(QuantizeLevels, EveryInstructionSetGivesTheSameBytes) {
  constexpr int64_t kShapes[][2] = {{1, 2},   {16, 64},  {17, 130}, {24, 66},  {9, 1024},
                                    {32, 96}, {2, 4098}, {8, 250},  {3, 33280}};
  const char* const specs[] = {R"({"format": "int8"})",
                               R"({"format": "int8", "group": "tensor"})",
                               R"({"format": "int8", "group": 3})",
                               R"({"format": "int8", "group": 64})",
                               R"({"format": "int4"})",
                               R"({"format": "int4", "group": 32})",
                               R"({"format": "int4", "group": 3})",
                               R"({"format": "int4", "group": "row"})",
                               R"({"format": "int4", "group": "tensor"})",
                               R"({"format": "nf4"})",
                               R"({"format": "nf4", "group": 100})",
                               R"({"format": "bnb_fp4"})",
                               R"({"format": "bnb_fp4", "group": 2})"};
  int compared = 0;
  const auto compare = [&](const Tensor& source, const std::string& name) {
    for (const char* json : specs) {
      const QuantizerSpec spec = Spec(json);
      for (const bool columnwise : {false, true}) {
        const Usages usages = {!columnwise, columnwise};
        if (!CheckQuantization(source.dtype(), source.shape(), spec, usages).ok()) continue;
        const Usage usage = columnwise ? Usage::kColumnwise : Usage::kRowwise;
        ExecutionContext context;
        context.isa = Isa::kScalar;
        context.threads = 1;
        const auto wanted = QuantizeCpu(source, spec, usages, {}, context);
        ASSERT_TRUE(wanted.ok()) << wanted.status();
        for (const Isa isa : RunnableIsas()) {
          context.isa = isa;
          const auto made = QuantizeCpu(source, spec, usages, {}, context);
          ASSERT_TRUE(made.ok()) << made.status();
          const std::string which =
              absl::StrCat(name, " ", json, columnwise ? " columnwise " : " rowwise ",
                           std::string(IsaName(isa)));
          const QuantizedCopy& a = *made->copy(usage);
          const QuantizedCopy& b = *wanted->copy(usage);
          EXPECT_TRUE(std::ranges::equal(a.data.bytes(), b.data.bytes())) << which;
          EXPECT_TRUE(std::ranges::equal(a.scale_inv.bytes(), b.scale_inv.bytes())) << which;
          EXPECT_EQ(made->counts, wanted->counts) << which;
          ++compared;
        }
      }
    }
  };
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const auto& [m, k] : kShapes) {
      const std::string name = absl::StrCat(std::string(DTypeName(dtype)), " ", m, "x", k);
      const Tensor source = testing::HostileLevels(dtype, m, k);
      compare(source, name);
      // Without NaN and infinities, which would make every group of the tensor scalar.
      Tensor finite = *CastTensor(source, DType::kF32, {});
      for (int64_t i = 0; i < m * k; ++i) {
        float& value = finite.as<float>()[i];
        if (!std::isfinite(value)) value = 0.0f;
      }
      compare(*CastTensor(finite, dtype, {}), name + " finite");
    }
    compare(*Tensor::Allocate(dtype, {0, 64}), "no rows");
  }
  EXPECT_GT(compared, 1000);
}

TEST(QuantizeLevels, RefusesWithFieldValueAndRule) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"format": "int8", "scale_rule": "tinygemm"})",
       "quantizer.scale_rule is tinygemm: int8 has torchao, compressed_tensors, modelopt, quanto, "
       "bitsandbytes, bitnet, gguf, qwix"},
      {R"({"format": "int8", "element": "i4x2"})",
       "quantizer.element is i4x2: int8 has elements i8 or u8"},
      {R"({"format": "int8", "scale_rule": "modelopt", "zero_point": "integer"})",
       "quantizer.zero_point is integer: the element is i8, and int8 by the rule modelopt has i8 "
       "with zero_point none"},
      {R"({"format": "nf4", "group": "row"})",
       "quantizer.group is row: nf4 has a scale per 2 to 65536 elements"},
      {R"({"format": "int8", "scale_rule": "qwix", "operation_dtype": "source"})",
       "quantizer.operation_dtype is source: of int8, scale_rule torchao of integers alone leaves "
       "it "
       "open"},
      {R"({"format": "int4", "element_rounding": "nearest_away"})",
       "quantizer.element_rounding is nearest_away: not a field of int4"},
      {R"({"format": "fp8_tensor", "group": 32})",
       "quantizer.group is 32: not a field of fp8_tensor"},
      {R"({"format": "mxfp8", "zero_point": "float"})",
       "quantizer.zero_point is float: not a field of mxfp8"},
  };
  for (const auto& [json, message] : cases) {
    EXPECT_EQ(std::string(CheckQuantizer(Spec(json)).message()), message);
  }
  for (const char* json :
       {R"({"format": "int8", "group": 1})", R"({"format": "int8", "group": 0})",
        R"({"format": "int8", "group": "columns"})", R"({"format": "int8", "zero_point": "half"})",
        R"({"format": "identity", "group": 32})"}) {
    EXPECT_FALSE(ParseQuantizerRuleText(json).ok()) << json;
  }
  const auto of = [](const char* json, Shape shape, Usages usages) {
    return std::string(CheckQuantization(DType::kBF16, shape, Spec(json), usages).message());
  };
  EXPECT_EQ(of(R"({"format": "int4"})", {4, 5}, {true, false}),
            "source is 4x5: rowwise codes of int4 are two a byte: K must be even");
  EXPECT_EQ(of(R"({"format": "nf4"})", {4, 64}, {true, true}),
            "usages is columnwise: nf4 has scales of runs of the row-major tensor: rowwise alone");
}

TEST(QuantizeLevels, LayersRefuseTheRecipes) {
  EXPECT_TRUE(Recipe::Parse("fp8_current")->CheckForLayers().ok());
  EXPECT_EQ(
      std::string(Recipe::Parse("int4:group=32")->CheckForLayers().message()),
      "recipe is int4:group=32: int4 is for quantize, dequantize, explain and gemm; layers and "
      "sessions have no such codes");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

#include "kernels/gemm/bound/error_bound.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "kernels/gemm/exact/exact.h"
#include "kernels/gemm/exact/exact_operand.h"
#include "kernels/tensor/convert.h"
#include "tests/gemm/exact/exact_vectors.h"
#include "tests/gemm/operand_codes.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::HasSubstr;

constexpr CodePattern kPatterns[] = {
    CodePattern::kFinite,          CodePattern::kNear,   CodePattern::kWideRows,
    CodePattern::kSmall,           CodePattern::kSparse, CodePattern::kMaximal,
    CodePattern::kNegativeMaximal, CodePattern::kAll,    CodePattern::kLaced};

GemmDesc MakeDesc(DType a, DType b, int64_t m, int64_t n, int64_t k, CodePattern pattern,
                  const std::string& arithmetic) {
  GemmDesc desc;
  desc.a.data = MakeCodes(a, m, k, pattern, 41);
  desc.b.data = MakeCodes(b, n, k, pattern, 42);
  desc.arithmetic = Arithmetic::Parse(arithmetic).value();
  return desc;
}

/// The exact value before d_scale, in f32.
Tensor ExactOf(GemmDesc desc) {
  if (desc.c.has_value() && desc.out_dtype != DType::kF32) {
    std::vector<uint32_t> wide;
    for (int64_t i = 0; i < desc.c.element_count(); ++i) {
      wide.push_back(static_cast<uint32_t>(desc.c.as<uint16_t>()[i]) << 16);  // bf16 only.
    }
    desc.c = TensorOfCodes(DType::kF32, desc.c.shape(), wide);
  }
  desc.out_dtype = DType::kF32;
  desc.d_scale = Tensor();
  desc.in_place = false;
  return ExactGemm(desc, ExecutionContext()).value().d;
}

BoundCheck CheckModel(const GemmDesc& desc) {
  const GemmResult result = GemmCpu(desc, ExecutionContext()).value();
  return CheckBound(desc, result.d, ExactOf(desc), ExecutionContext()).value();
}

struct Operands {
  DType a, b;
  std::vector<std::string> arithmetics;
};

std::vector<Operands> EveryArithmetic() {
  const std::vector<std::string> fp8 = {"sm90:fast", "sm90:split", "sm90:fast,splitk=3",
                                        "sm90:split,splitk=2", "fp32"};
  return {{DType::kF8E4M3, DType::kF8E4M3, fp8},
          {DType::kF8E5M2, DType::kF8E4M3, fp8},
          {DType::kBF16, DType::kBF16, {"sm90", "sm90:splitk=3", "fp32"}},
          {DType::kF16, DType::kF16, {"sm90", "sm90:splitk=2", "fp32"}},
          {DType::kF32, DType::kF32, {"sm90", "fp32"}}};
}

TEST(CheckBoundTest, ModelsStayWithinTheirBounds) {
  for (const Operands& operands : EveryArithmetic()) {
    for (const std::string& arithmetic : operands.arithmetics) {
      for (const CodePattern pattern : kPatterns) {
        for (const DType out : {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3}) {
          GemmDesc desc = MakeDesc(operands.a, operands.b, 40, 48, 500, pattern, arithmetic);
          desc.out_dtype = out;
          if (IsFp8(out)) desc.d_scale = Tensor::FromScalar(0.013f).value();
          if (IsFp8(operands.a)) {
            desc.a.scaling = desc.b.scaling = ScaleMode::kTensor;
            desc.a.scale_inv = Tensor::FromScalar(0.37f).value();
            desc.b.scale_inv = Tensor::FromScalar(1.9e-3f).value();
          }
          const BoundCheck check = CheckModel(desc);
          EXPECT_TRUE(check.pass) << GemmText(desc) << " " << PatternName(pattern) << " "
                                  << check.violation_count << " " << check.worst_ratio;
          EXPECT_EQ(check.pass, check.worst_ratio <= 1);
        }
      }
    }
  }
}

TEST(CheckBoundTest, WideExponentsOfHighPrecisionStayWithinTheirBounds) {
  // As kFinite and kWideRows, with exponents that keep the sums inside fp32, subnormal operands
  // included.
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const int mantissa = dtype == DType::kBF16 ? 7 : 23;
    for (const int fields : {1, 2, 60, 150}) {
      std::mt19937 random(fields);
      GemmDesc desc = MakeDesc(dtype, dtype, 24, 24, 200, CodePattern::kNear, "sm90");
      for (Tensor* tensor : {&desc.a.data, &desc.b.data}) {
        std::vector<uint32_t> codes(tensor->element_count());
        for (uint32_t& code : codes) {
          const uint32_t field = tensor == &desc.a.data ? random() % fields : 100 + random() % 30;
          code = (random() & ((1u << mantissa) - 1)) | field << mantissa |
                 (random() & 1u) << (mantissa + 8);
        }
        *tensor = TensorOfCodes(dtype, tensor->shape(), codes);
      }
      for (const char* arithmetic : {"sm90", "fp32"}) {
        desc.arithmetic = Arithmetic::Parse(arithmetic).value();
        const BoundCheck check = CheckModel(desc);
        EXPECT_TRUE(check.pass) << GemmText(desc) << " fields " << fields << " "
                                << check.worst_ratio;
      }
    }
  }
}

TEST(CheckBoundTest, EpiloguesStayWithinTheirBounds) {
  constexpr int64_t kRows = 33, kColumns = 40;
  const auto vector = [](int64_t count, uint32_t seed) {
    return MakeCodes(DType::kF32, 1, count, CodePattern::kNear, seed)
        .Reinterpret(DType::kF32, {count})
        .value();
  };
  std::vector<GemmDesc> descs;
  const GemmDesc fp8 = MakeDesc(DType::kF8E4M3, DType::kF8E4M3, kRows, kColumns, 64,
                                CodePattern::kNear, "sm90:fast");
  GemmDesc desc = fp8;
  desc.a.scaling = desc.b.scaling = ScaleMode::kOuter;
  desc.a.scale_inv = vector(kRows, 1);
  desc.b.scale_inv = vector(kColumns, 2);
  descs.push_back(desc);
  desc.out_dtype = DType::kBF16;
  descs.push_back(desc);
  desc.alpha = 0.1f;
  descs.push_back(desc);
  desc = fp8;
  desc.bias = vector(kColumns, 3);
  descs.push_back(desc);
  desc.out_dtype = DType::kF8E5M2;
  desc.d_scale = Tensor::FromScalar(0.7f).value();
  desc.alpha = 1.3f;
  desc.beta = -0.9f;
  desc.c = MakeCodes(DType::kBF16, kRows, kColumns, CodePattern::kNear, 9);
  descs.push_back(desc);
  // Tiny scales: the coefficient is a subnormal number with few bits left.
  desc = fp8;
  desc.a.scaling = desc.b.scaling = ScaleMode::kTensor;
  desc.a.scale_inv = Tensor::FromScalar(0x1.3p-80f).value();
  desc.b.scale_inv = Tensor::FromScalar(0x1.7p-66f).value();
  descs.push_back(desc);
  for (const bool in_place : {false, true}) {
    for (const DType out : {DType::kF32, DType::kBF16}) {
      desc = MakeDesc(DType::kBF16, DType::kBF16, kRows, kColumns, 64, CodePattern::kNear, "sm90");
      desc.out_dtype = out;
      desc.c = MakeCodes(out, kRows, kColumns, CodePattern::kNear, 9);
      desc.beta = 1;
      desc.in_place = in_place;
      descs.push_back(desc);
      desc.bias = vector(kColumns, 5);
      descs.push_back(desc);
      desc.arithmetic.split_k = 2;
      descs.push_back(desc);
      desc.alpha = -0.3f;
      desc.beta = 1.7f;
      descs.push_back(desc);
    }
  }
  for (const GemmDesc& each : descs) {
    const BoundCheck check = CheckModel(each);
    EXPECT_TRUE(check.pass) << GemmText(each) << " " << check.worst_ratio;
    EXPECT_GT(check.worst_ratio, 0) << GemmText(each);
  }
}

TEST(CheckBoundTest, TruncationComesNearTheBound) {
  // One product of 2^8, then 511 of 1.875 * 2^-6, which all vanish below 2^(8-13).
  GemmDesc desc;
  desc.a.data = MakeCodes(DType::kF8E4M3, 1, 512, CodePattern::kMaximal, 1);
  desc.b.data = MakeCodes(DType::kF8E4M3, 1, 512, CodePattern::kMaximal, 1);
  std::fill_n(desc.a.data.as<uint8_t>(), 512, 0x27);                   // 1.875 * 2^-3
  std::fill_n(desc.b.data.as<uint8_t>(), 512, 0x20);                   // 2^-3
  desc.a.data.as<uint8_t>()[0] = desc.b.data.as<uint8_t>()[0] = 0x58;  // 2^4
  desc.arithmetic = Arithmetic::Parse("sm90:fast").value();
  const GemmResult result = GemmCpu(desc, ExecutionContext()).value();
  ASSERT_EQ(*result.d.as<float>(), 256);
  const BoundCheck check = CheckBound(desc, result.d, ExactOf(desc), ExecutionContext()).value();
  EXPECT_TRUE(check.pass);
  EXPECT_GT(check.worst_ratio, 0.75);
}

TEST(CheckBoundTest, EachElementHasItsOwnShare) {
  const GemmDesc desc = MakeDesc(DType::kBF16, DType::kBF16, 5, 7, 64, CodePattern::kNear, "fp32");
  const Tensor exact = ExactOf(desc);
  const Tensor absolute = AbsoluteGemm(desc, ExecutionContext()).value();
  Tensor subject = Tensor::FromBytes(DType::kF32, {5, 7}, exact.bytes()).value();
  // Of the first and the last element's bound of accumulation twice and 3 times as much.
  const double gamma = 64 * 0x1p-24 / (1 - 64 * 0x1p-24);
  for (const auto& [index, times] : {std::pair(0, 2.0), {34, 3.0}}) {
    subject.as<float>()[index] +=
        static_cast<float>(times * gamma * std::as_const(absolute).as<double>()[index]);
  }
  const BoundRatios found = RatiosToBound(desc, subject, exact, ExecutionContext()).value();
  ASSERT_EQ(found.ratios.shape(), Shape({5, 7}));
  const double* ratios = std::as_const(found.ratios).as<double>();
  for (int64_t i = 1; i < 34; ++i) EXPECT_LE(ratios[i], 1) << i;
  // The roundings of the epilogue add a little to the bound.
  EXPECT_GT(ratios[0], 1.5);
  EXPECT_LT(ratios[0], 2);
  EXPECT_GT(ratios[34], 2.25);
  EXPECT_LT(ratios[34], 3);
  const BoundCheck check = CheckBound(desc, subject, exact, ExecutionContext()).value();
  EXPECT_EQ(check.violation_count, 2);
  EXPECT_EQ(check.worst_ratio, std::max(ratios[0], ratios[34]));
  EXPECT_FALSE(check.pass);
  EXPECT_EQ(check.bound.derivation, found.bound.derivation);
}

// A kernel that forgets one chunk of k.
TEST(CheckBoundTest, ADroppedChunkLeavesTheBound) {
  for (const Operands& operands : EveryArithmetic()) {
    const GemmDesc desc = MakeDesc(operands.a, operands.b, 16, 16, 128, CodePattern::kNear,
                                   operands.arithmetics.front());
    GemmDesc broken = desc;
    std::vector<uint32_t> codes;
    for (int64_t i = 0; i < desc.a.data.element_count(); ++i) {
      const int64_t k = i % 128;
      codes.push_back(k >= 64 && k < 96 ? 0 : CodeAt(desc.a.data, i));
    }
    broken.a.data = TensorOfCodes(operands.a, desc.a.data.shape(), codes);
    const Tensor subject = GemmCpu(broken, ExecutionContext()).value().d;
    const BoundCheck check = CheckBound(desc, subject, ExactOf(desc), ExecutionContext()).value();
    EXPECT_FALSE(check.pass) << GemmText(desc);
    EXPECT_GT(check.violation_count, 10) << GemmText(desc);
    EXPECT_GT(check.worst_ratio, 1);
  }
}

TEST(CheckBoundTest, ExactResultsHaveNoSlackButTheOutputRounding) {
  GemmDesc desc = MakeDesc(DType::kBF16, DType::kBF16, 30, 30, 100, CodePattern::kNear, "exact");
  desc.out_dtype = DType::kBF16;
  const Tensor exact = ExactOf(desc);
  Tensor subject = ExactGemm(desc, ExecutionContext()).value().d;
  EXPECT_TRUE(CheckBound(desc, subject, exact, ExecutionContext())->pass);
  subject.as<uint16_t>()[7] ^= 2;  // Two units in the last place.
  const BoundCheck check = CheckBound(desc, subject, exact, ExecutionContext()).value();
  EXPECT_EQ(check.violation_count, 1);
}

TEST(CheckBoundTest, ClassesMustAgree) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const GemmDesc finite =
      MakeDesc(DType::kBF16, DType::kBF16, 1, 1, 16, CodePattern::kNear, "sm90");
  GemmDesc infinite = finite;
  infinite.a.data = MakeCodes(DType::kBF16, 1, 16, CodePattern::kNear, 1);
  infinite.a.data.as<uint16_t>()[3] = 0x7F80;
  struct Case {
    const GemmDesc* desc;
    float subject, exact;
    bool pass;
  };
  const Case cases[] = {
      {&finite, kNan, 1, false},          {&finite, 1, kNan, false},
      {&finite, kNan, kNan, true},        {&finite, kInf, 1, false},
      {&finite, kInf, 0x1.fp127f, false}, {&finite, kInf, kInf, true},
      {&finite, kInf, -kInf, false},      {&finite, 0x1.fffffep127f, kInf, true},
      {&finite, 0x1.8p127f, kInf, false}, {&infinite, kInf, kInf, true},
      {&infinite, 1, kInf, false},        {&infinite, 0x1.fffffep127f, kInf, false},
      {&infinite, -kInf, kInf, false}};
  for (const Case& each : cases) {
    const Tensor subject =
        TensorOfCodes(DType::kF32, {1, 1}, {std::bit_cast<uint32_t>(each.subject)});
    const Tensor exact = TensorOfCodes(DType::kF32, {1, 1}, {std::bit_cast<uint32_t>(each.exact)});
    const BoundCheck check = CheckBound(*each.desc, subject, exact, ExecutionContext()).value();
    EXPECT_EQ(check.pass, each.pass) << each.subject << " against " << each.exact;
  }
}

// One output of fp32 numbers, which the operands' format holds: a is [1][k], b all 1.
GemmDesc MakeDot(DType dtype, int64_t k, const std::vector<std::pair<int64_t, float>>& a,
                 const std::string& arithmetic) {
  GemmDesc desc;
  std::vector<float> values(k);
  for (const auto& [i, value] : a) values[i] = value;
  desc.a.data = CastTensor(TensorOfFloats({1, k}, values), dtype, ExecutionContext()).value();
  desc.b.data =
      CastTensor(TensorOfFloats({1, k}, std::vector<float>(k, 1)), dtype, ExecutionContext())
          .value();
  desc.arithmetic = Arithmetic::Parse(arithmetic).value();
  return desc;
}

// What the arithmetics make of these by hand (docs/tensor-cores.md sections 1 and 3): an infinity
// or a NaN, where the exact result is finite. Nothing finite may hide behind that.
TEST(CheckBoundTest, OverflowOnTheWayHasNoBound) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kHuge = 0x1p127f;
  struct Case {
    std::string name;
    GemmDesc desc;
    float model, exact;  ///< Of NaN any; `exact` before d_scale.
  };
  std::vector<Case> cases;
  const std::vector<std::pair<int64_t, float>> up_and_down = {
      {0, kHuge}, {1, kHuge}, {64, -kHuge}, {65, -0x1p126f}};
  cases.push_back({"the second step finds an infinity",
                   MakeDot(DType::kBF16, 80, up_and_down, "sm90"), kInf, 0x1p126f});
  cases.push_back({"so does the second addition", MakeDot(DType::kF32, 80, up_and_down, "fp32"),
                   kInf, 0x1p126f});
  cases.push_back({"both slices overflow",
                   MakeDot(DType::kBF16, 128, {{0, kHuge}, {1, kHuge}, {64, -kHuge}, {65, -kHuge}},
                           "sm90:splitk=2"),
                   std::nanf(""), 0});
  Case saturated = cases[0];
  saturated.name = "FP8 output saturates";
  saturated.desc.out_dtype = DType::kF8E4M3;
  saturated.desc.d_scale = Tensor::FromScalar(0x1p-120f).value();
  saturated.model = 448;
  cases.push_back(saturated);
  Case scaled = {"coefficient of a zero", MakeDot(DType::kF8E4M3, 32, {}, "sm90:fast"),
                 std::nanf(""), 0};
  scaled.desc.a.scaling = scaled.desc.b.scaling = ScaleMode::kTensor;
  scaled.desc.a.scale_inv = scaled.desc.b.scale_inv = Tensor::FromScalar(0x1p64f).value();
  cases.push_back(scaled);
  Case outer = {"the first of two scales", MakeDot(DType::kF8E4M3, 32, {{3, 256}}, "sm90:fast"),
                kInf, 0x1p28f};
  outer.desc.a.scaling = outer.desc.b.scaling = ScaleMode::kOuter;
  outer.desc.a.scale_inv = Tensor::FromScalar(0x1p-100f).value();
  outer.desc.b.scale_inv = Tensor::FromScalar(0x1p120f).value();
  cases.push_back(outer);
  Case in_place = {"rounded to fp16 before c is added",
                   MakeDot(DType::kF16, 16, {{0, 0x1p15f}, {1, 0x1p15f}}, "sm90"), kInf, 64512};
  in_place.desc.out_dtype = DType::kF16;
  in_place.desc.c = TensorOfCodes<uint64_t>(DType::kF16, {1, 1}, {0xE400});  // -1024
  in_place.desc.beta = 1;
  in_place.desc.in_place = true;
  cases.push_back(in_place);

  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    const Tensor exact = TensorOfFloats({1, 1}, {each.exact});
    const Tensor model = GemmCpu(each.desc, ExecutionContext()).value().d;
    const float found = DecodeToFloats(model)[0];
    EXPECT_TRUE(found == each.model || (std::isnan(found) && std::isnan(each.model))) << found;
    EXPECT_TRUE(CheckBound(each.desc, model, exact, ExecutionContext())->pass);
    // The exact result is within the bound too; twice and half of it, or 2^119 for 0, are not.
    const bool is_fp8 = each.desc.out_dtype == DType::kF8E4M3;
    for (const float factor : {1.0f, 2.0f, 0.5f}) {
      const float value = each.exact == 0 ? (factor - 1) * 0x1p120f : each.exact * factor;
      Tensor subject = TensorOfFloats({1, 1}, {is_fp8 ? value * 0x1p-120f : value});
      if (is_fp8) subject = CastTensor(subject, DType::kF8E4M3, ExecutionContext()).value();
      EXPECT_EQ(CheckBound(each.desc, subject, exact, ExecutionContext())->pass, factor == 1)
          << value;
    }
  }

  // As far below overflow as the bound is wide, an infinity has no excuse.
  const GemmDesc near = MakeDot(DType::kBF16, 80, {{0, 0x1p126f}, {64, 0x1.fp126f}}, "sm90");
  const Tensor infinity = TensorOfFloats({1, 1}, {kInf});
  EXPECT_FALSE(CheckBound(near, infinity, ExactOf(near), ExecutionContext())->pass);
}

/// Rounded up, by a little: at least `real` and at most 2^-39 of it more.
testing::Matcher<double> JustAbove(double real) {
  return testing::AllOf(testing::Ge(real), testing::Le(real * (1 + 0x1p-39)));
}

TEST(BoundForTest, DerivationNamesItsTerms) {
  GemmDesc desc = MakeDesc(DType::kF8E4M3, DType::kF8E4M3, 2, 2, 512, CodePattern::kNear, "sm90");
  ErrorBound bound = BoundFor(desc).value();
  EXPECT_EQ(bound.derivation, "16 steps x (32 x 2^-13 + 2^-13)");
  EXPECT_THAT(bound.factor, JustAbove(16 * 33 / 8192.0));
  EXPECT_EQ(bound.absolute, 0);
  desc.use_split_accumulator = true;
  bound = BoundFor(desc).value();
  EXPECT_EQ(bound.derivation, "4 steps x (32 x 2^-13 + 2^-13) + 3 x 2^-24");
  // gamma_3 = 3u / (1 - 3u), u = 2^-24.
  EXPECT_THAT(bound.factor, JustAbove(4 * 33 / 8192.0 + 3 * 0x1p-24 / (1 - 3 * 0x1p-24)));
  desc = MakeDesc(DType::kF32, DType::kF32, 2, 2, 100, CodePattern::kNear, "fp32");
  EXPECT_THAT(BoundFor(desc)->factor, JustAbove(100 * 0x1p-24 / (1 - 100 * 0x1p-24)));
  desc.arithmetic.family = ArithmeticFamily::kExact;
  EXPECT_EQ(BoundFor(desc)->factor, 0);
}

TEST(CheckBoundTest, RefusesTensorsOfOtherShapes) {
  const GemmDesc desc = MakeDesc(DType::kBF16, DType::kBF16, 2, 3, 16, CodePattern::kNear, "sm90");
  const Tensor right = TensorOfCodes(DType::kF32, {2, 3}, std::vector<uint32_t>(6));
  const Tensor wrong = TensorOfCodes(DType::kF32, {3, 2}, std::vector<uint32_t>(6));
  const absl::Status status = CheckBound(desc, wrong, right, ExecutionContext()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("subject is f32[3x2]"));
  EXPECT_FALSE(CheckBound(desc, right, Tensor(), ExecutionContext()).ok());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

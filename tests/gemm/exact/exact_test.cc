#include "kernels/gemm/exact/exact.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>

#include "kernels/tensor/convert.h"
#include "tests/gemm/exact/exact_expansion.h"
#include "tests/gemm/exact/exact_vectors.h"
#include "tests/gemm/operand_codes.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::HasSubstr;
using testing::StartsWith;

struct OperandPair {
  DType a, b;
};
constexpr OperandPair kPairs[] = {
    {DType::kF32, DType::kF32},       {DType::kBF16, DType::kBF16},
    {DType::kF16, DType::kF16},       {DType::kF8E4M3, DType::kF8E4M3},
    {DType::kF8E4M3, DType::kF8E5M2}, {DType::kF8E5M2, DType::kF8E4M3},
    {DType::kF8E5M2, DType::kF8E5M2}};
constexpr DType kOutputs[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3,
                              DType::kF8E5M2};
constexpr CodePattern kFinitePatterns[] = {CodePattern::kFinite,   CodePattern::kNear,
                                           CodePattern::kWideRows, CodePattern::kSmall,
                                           CodePattern::kSparse,   CodePattern::kMaximal};

GemmDesc MakeDesc(OperandPair pair, int64_t m, int64_t n, int64_t k, CodePattern pattern,
                  uint32_t seed) {
  GemmDesc desc;
  desc.a.data = MakeCodes(pair.a, m, k, pattern, seed);
  desc.b.data = MakeCodes(pair.b, n, k, pattern, seed + 1);
  desc.arithmetic.family = ArithmeticFamily::kExact;
  return desc;
}

std::string NameOf(const GemmDesc& desc, CodePattern pattern) {
  return GemmText(desc) + " " + PatternName(pattern);
}

GemmResult RunExact(const GemmDesc& desc, Isa isa = BestIsa(), int threads = 2) {
  ExecutionContext context;
  context.isa = isa;
  context.threads = threads;
  absl::StatusOr<GemmResult> result = ExactGemm(desc, context);
  EXPECT_TRUE(result.ok()) << result.status();
  return *std::move(result);
}

std::vector<uint32_t> CodesOf(const Tensor& tensor) {
  std::vector<uint32_t> codes(tensor.element_count());
  for (int64_t i = 0; i < tensor.element_count(); ++i) codes[i] = CodeAt(tensor, i);
  return codes;
}

double ValueAt(const Tensor& tensor, int64_t index) {
  const uint32_t code = CodeAt(tensor, index);
  switch (tensor.dtype()) {
    case DType::kBF16:
      return DecodeFloat<BFloat16>(static_cast<uint16_t>(code));
    case DType::kF16:
      return DecodeFloat<Float16>(static_cast<uint16_t>(code));
    case DType::kF8E4M3:
      return DecodeFloat<E4M3>(static_cast<uint8_t>(code));
    case DType::kF8E5M2:
      return DecodeFloat<E5M2>(static_cast<uint8_t>(code));
    default:
      return DecodeFloat<Float32>(code);
  }
}

bool IsRight(const Expansion& sum, DType dtype, uint32_t code) {
  switch (dtype) {
    case DType::kBF16:
      return IsCorrectlyRounded<BFloat16>(sum, static_cast<uint16_t>(code));
    case DType::kF16:
      return IsCorrectlyRounded<Float16>(sum, static_cast<uint16_t>(code));
    case DType::kF8E4M3:
      return IsCorrectlyRounded<E4M3>(sum, static_cast<uint8_t>(code));
    case DType::kF8E5M2:
      return IsCorrectlyRounded<E5M2>(sum, static_cast<uint8_t>(code));
    default:
      return IsCorrectlyRounded<Float32>(sum, code);
  }
}

class ExactIsaTest : public testing::TestWithParam<Isa> {};

INSTANTIATE_TEST_SUITE_P(Isas, ExactIsaTest, testing::ValuesIn(RunnableIsas()),
                         [](const auto& info) { return std::string(IsaName(info.param)); });

TEST_P(ExactIsaTest, EqualsRationalArithmetic) {
  const std::vector<ExactVector> vectors = ReadExactVectors();
  ASSERT_GT(vectors.size(), 2000u);
  for (const ExactVector& vector : vectors) {
    const GemmResult result = RunExact(vector.desc, GetParam());
    EXPECT_EQ(CodeAt(result.d, 0), vector.d) << vector.text << "\n" << result.note;
    ASSERT_EQ(result.amax.has_value(), IsFp8(vector.desc.out_dtype));
    if (result.amax.has_value()) {
      EXPECT_EQ(CodeAt(result.amax, 0), vector.amax) << vector.text;
    }
    if (HasFailure()) return;
  }
}

TEST(ExactTest, EveryDotIsCorrectlyRounded) {
  constexpr int64_t kRows = 137, kColumns = 125, kDepth = 33;
  for (const OperandPair pair : kPairs) {
    int64_t dots = 0;
    for (const CodePattern pattern : kFinitePatterns) {
      GemmDesc desc = MakeDesc(pair, kRows, kColumns, kDepth, pattern, 11 + dots);
      std::vector<GemmResult> results;
      for (const DType out : kOutputs) {
        desc.out_dtype = out;
        results.push_back(RunExact(desc));
      }
      for (int64_t i = 0; i < kRows * kColumns; ++i) {
        Expansion sum;
        for (int64_t k = 0; k < kDepth; ++k) {
          sum.Add(ValueAt(desc.a.data, i / kColumns * kDepth + k) *
                  ValueAt(desc.b.data, i % kColumns * kDepth + k));
        }
        for (const GemmResult& result : results) {
          const uint32_t code = CodeAt(result.d, i);
          const bool only_this =
              IsRight(sum, result.d.dtype(), code) && !IsRight(sum, result.d.dtype(), code ^ 1);
          ASSERT_TRUE(only_this) << NameOf(desc, pattern) << " output " << i << " as "
                                 << std::string(DTypeName(result.d.dtype())) << " code " << code;
        }
        ++dots;
      }
    }
    EXPECT_GT(dots, 100'000);
  }
}

// Every k is met again with the opposite sign and one more term is left: fp64 alone would often be
// wrong.
TEST(ExactTest, SurvivesCancellation) {
  constexpr int64_t kRows = 24, kHalf = 150;
  for (const OperandPair pair : kPairs) {
    GemmDesc desc = MakeDesc(pair, kRows, kRows, 2 * kHalf + 1, CodePattern::kFinite, 5);
    const int sign = 8 * DTypeBytes(pair.a) - 1;
    std::vector<uint32_t> a = CodesOf(desc.a.data), b = CodesOf(desc.b.data);
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t k = 0; k < kHalf; ++k) {
        const int64_t at = row * (2 * kHalf + 1) + k;
        a[at + kHalf] = a[at] ^ (1u << sign);
        b[at + kHalf] = b[at];
      }
    }
    desc.a.data = TensorOfCodes(pair.a, desc.a.data.shape(), a);
    desc.b.data = TensorOfCodes(pair.b, desc.b.data.shape(), b);
    const GemmResult result = RunExact(desc);
    for (int64_t i = 0; i < kRows * kRows; ++i) {
      Expansion rest;
      rest.Add(ValueAt(desc.a.data, (i / kRows + 1) * (2 * kHalf + 1) - 1) *
               ValueAt(desc.b.data, (i % kRows + 1) * (2 * kHalf + 1) - 1));
      ASSERT_TRUE(IsRight(rest, DType::kF32, CodeAt(result.d, i))) << GemmText(desc) << " " << i;
    }
  }
}

TEST(ExactTest, SameBitsForEveryIsaThreadCountAndLayout) {
  for (const OperandPair pair : kPairs) {
    for (const CodePattern pattern :
         {CodePattern::kNear, CodePattern::kFinite, CodePattern::kAll, CodePattern::kLaced}) {
      GemmDesc desc = MakeDesc(pair, 101, 131, 517, pattern, 3);
      desc.out_dtype = DType::kBF16;
      const std::vector<uint32_t> expected = CodesOf(RunExact(desc, Isa::kScalar, 1).d);
      for (const Isa isa : RunnableIsas()) {
        for (const int threads : {1, 3}) {
          EXPECT_EQ(CodesOf(RunExact(desc, isa, threads).d), expected) << NameOf(desc, pattern);
        }
      }
      const auto transpose = [](const Tensor& tensor) {
        const int64_t rows = tensor.rows(), columns = tensor.columns();
        std::vector<uint32_t> codes(tensor.element_count());
        for (int64_t i = 0; i < rows * columns; ++i) {
          codes[i % columns * rows + i / columns] = CodeAt(tensor, i);
        }
        return TensorOfCodes(tensor.dtype(), {columns, rows}, codes);
      };
      desc.b.data = transpose(desc.b.data);
      desc.layout = GemmLayout::kNN;
      EXPECT_EQ(CodesOf(RunExact(desc).d), expected) << NameOf(desc, pattern);
      desc.a.data = transpose(desc.a.data);
      desc.layout = GemmLayout::kNT;
      EXPECT_EQ(CodesOf(RunExact(desc).d), expected) << NameOf(desc, pattern);
    }
  }
}

TEST(ExactTest, OrderSplitsAndPaddingOfKChangeNothing) {
  constexpr int64_t kRows = 20, kDepth = 300, kPadded = 389;
  std::vector<int64_t> order(kPadded);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(9));
  for (const OperandPair pair : kPairs) {
    for (const CodePattern pattern : {CodePattern::kNear, CodePattern::kFinite}) {
      GemmDesc desc = MakeDesc(pair, kRows, kRows, kDepth, pattern, 17);
      const std::vector<uint32_t> expected = CodesOf(RunExact(desc).d);
      GemmDesc split = desc;
      split.arithmetic.split_k = 3;
      split.use_split_accumulator = true;
      EXPECT_EQ(CodesOf(RunExact(split).d), expected) << NameOf(desc, pattern);
      const auto shuffled = [&](const Tensor& tensor) {
        std::vector<uint32_t> codes(kRows * kPadded);
        for (int64_t i = 0; i < kRows * kPadded; ++i) {
          const int64_t k = order[i % kPadded];
          codes[i] = k < kDepth ? CodeAt(tensor, i / kPadded * kDepth + k) : 0;
        }
        return TensorOfCodes(tensor.dtype(), {kRows, kPadded}, codes);
      };
      desc.a.data = shuffled(desc.a.data);
      desc.b.data = shuffled(desc.b.data);
      EXPECT_EQ(CodesOf(RunExact(desc).d), expected) << NameOf(desc, pattern);
    }
  }
}

// The vectors are 1 x 1; larger outputs with everything in the epilogue must agree with such pieces
// of themselves.
TEST(ExactTest, EpilogueOfAMatrixEqualsThatOfItsElements) {
  constexpr int64_t kRows = 13, kColumns = 29, kDepth = 40;
  const auto row_of = [](const Tensor& tensor, int64_t row, int64_t columns) {
    std::vector<uint32_t> codes(columns);
    for (int64_t i = 0; i < columns; ++i) codes[i] = CodeAt(tensor, row * columns + i);
    return TensorOfCodes(tensor.dtype(), {1, columns}, codes);
  };
  const auto element_of = [](const Tensor& tensor, int64_t index, Shape shape) {
    return TensorOfCodes(tensor.dtype(), std::move(shape), {CodeAt(tensor, index)});
  };
  for (const DType out : kOutputs) {
    GemmDesc desc =
        MakeDesc({DType::kF8E4M3, DType::kF8E5M2}, kRows, kColumns, kDepth, CodePattern::kNear, 23);
    desc.a.scaling = desc.b.scaling = ScaleMode::kOuter;
    desc.a.scale_inv = MakeCodes(DType::kF32, 1, kRows, CodePattern::kNear, 1)
                           .Reinterpret(DType::kF32, {kRows})
                           .value();
    desc.b.scale_inv = MakeCodes(DType::kF32, 1, kColumns, CodePattern::kNear, 2)
                           .Reinterpret(DType::kF32, {kColumns})
                           .value();
    desc.alpha = -1.7f;
    desc.beta = 0.3f;
    desc.out_dtype = out;
    desc.c = MakeCodes(IsFp8(out) ? DType::kBF16 : out, kRows, kColumns, CodePattern::kNear, 3);
    desc.bias = MakeCodes(DType::kF32, 1, kColumns, CodePattern::kNear, 4)
                    .Reinterpret(DType::kF32, {kColumns})
                    .value();
    if (IsFp8(out)) desc.d_scale = Tensor::FromScalar(0.37f).value();
    const GemmResult whole = RunExact(desc);
    uint32_t amax = 0;
    for (int64_t i = 0; i < kRows * kColumns; ++i) {
      GemmDesc piece = desc;
      piece.a.data = row_of(desc.a.data, i / kColumns, kDepth);
      piece.b.data = row_of(desc.b.data, i % kColumns, kDepth);
      piece.a.scale_inv = element_of(desc.a.scale_inv, i / kColumns, {1});
      piece.b.scale_inv = element_of(desc.b.scale_inv, i % kColumns, {1});
      piece.c = element_of(desc.c, i, {1, 1});
      piece.bias = element_of(desc.bias, i % kColumns, {1});
      const GemmResult expected = RunExact(piece);
      ASSERT_EQ(CodeAt(whole.d, i), CodeAt(expected.d, 0)) << GemmText(desc) << " output " << i;
      if (IsFp8(out)) amax = std::max(amax, CodeAt(expected.amax, 0));
    }
    if (IsFp8(out)) {
      EXPECT_EQ(CodeAt(whole.amax, 0), amax);
    }
  }
}

// Rounded twice from the same sums, each is what a GEMM of that dtype alone gives.
TEST(ExactTest, RoundsToF32AsWell) {
  constexpr int64_t kRows = 101, kColumns = 131;
  for (const OperandPair pair : kPairs) {
    for (const CodePattern pattern :
         {CodePattern::kNear, CodePattern::kFinite, CodePattern::kWideRows, CodePattern::kLaced}) {
      for (const DType out : {DType::kBF16, DType::kF16}) {
        GemmDesc desc = MakeDesc(pair, kRows, kColumns, 517, pattern, 5);
        desc.out_dtype = out;
        desc.beta = 0.3f;
        desc.c = MakeCodes(out, kRows, kColumns, CodePattern::kNear, 3);
        const GemmResult own = RunExact(desc);
        GemmDesc wide = desc;
        wide.out_dtype = DType::kF32;
        wide.c = CastTensor(desc.c, DType::kF32, {}).value();  // Widening is exact.
        const GemmResult f32 = RunExact(wide);
        desc.also_f32 = true;
        for (const Isa isa : RunnableIsas()) {
          const GemmResult both = RunExact(desc, isa);
          EXPECT_EQ(CodesOf(both.d), CodesOf(own.d)) << NameOf(desc, pattern);
          EXPECT_EQ(CodesOf(both.f32), CodesOf(f32.d)) << NameOf(desc, pattern);
          EXPECT_EQ(both.note, f32.note) << NameOf(desc, pattern);
        }
      }
    }
  }
}

TEST(ExactTest, NoteSaysWhatWasNeeded) {
  // docs/tensor-cores.md section 5: e4m3 x e4m3 is exact in fp64 up to K = 171196, maximal operands
  // included.
  GemmDesc desc =
      MakeDesc({DType::kF8E4M3, DType::kF8E4M3}, 1, 1, 171196, CodePattern::kMaximal, 1);
  desc.b.data.as<uint8_t>()[0] = 0x01;  // 2^-9, so that the lowest bit is the format's.
  desc.a.data.as<uint8_t>()[0] = 0x01;
  GemmResult result = RunExact(desc);
  EXPECT_EQ(result.note, "fp64 exact: needs 53 of 53 bits");
  EXPECT_EQ(result.arithmetic.ToString(), "exact");
  // 171195 * 448^2 + 2^-18, rounded to f32: the 25-bit integer 171195 * 49 is odd, so the 2^-18
  // decides.
  EXPECT_EQ(*result.d.as<float>(), 171195.0f * 448 * 448);

  result = RunExact(MakeDesc({DType::kBF16, DType::kBF16}, 8, 8, 64, CodePattern::kFinite, 2));
  EXPECT_THAT(result.note, StartsWith("certified fp64: needs up to "));

  // x - x + 2^-40 with x far above: only wide integers see the rest.
  desc = GemmDesc();
  desc.arithmetic.family = ArithmeticFamily::kExact;
  desc.a.data = TensorOfCodes(DType::kF32, {1, 3}, {0x60000001, 0xE0000001, 0x2B800000});
  desc.b.data = TensorOfCodes(DType::kF32, {1, 3}, {0x60000001, 0x60000001, 0x3F800000});
  result = RunExact(desc);
  EXPECT_EQ(*result.d.as<float>(), 0x1p-40f);
  EXPECT_THAT(result.note, HasSubstr("1 of 1 outputs by 704-bit integers"));
}

TEST(ExactTest, EmptyOutputIsValid) {
  GemmDesc desc = MakeDesc({DType::kBF16, DType::kBF16}, 0, 5, 7, CodePattern::kNear, 2);
  const GemmResult result = RunExact(desc);
  EXPECT_EQ(result.d.shape(), (Shape{0, 5}));
}

TEST(ExactTest, StopsWhenCancelled) {
  Cancellation cancellation;
  cancellation.Cancel();
  ExecutionContext context;
  context.cancellation = &cancellation;
  const GemmDesc desc = MakeDesc({DType::kBF16, DType::kBF16}, 4, 5, 7, CodePattern::kNear, 2);
  EXPECT_EQ(ExactGemm(desc, context).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(AbsoluteGemm(desc, context).status().code(), absl::StatusCode::kCancelled);
}

TEST(AbsoluteGemmTest, SumsMagnitudesWithFloorsRoundedUp) {
  constexpr int64_t kRows = 7, kColumns = 9, kDepth = 300;
  for (const Isa isa : RunnableIsas()) {
    GemmDesc desc = MakeDesc({DType::kF8E4M3, DType::kF8E4M3}, kRows, kColumns, kDepth,
                             CodePattern::kSparse, 31);
    desc.a.scaling = ScaleMode::kTensor;
    desc.a.scale_inv = Tensor::FromScalar(-0.75f).value();
    desc.alpha = -2;
    ExecutionContext context;
    context.isa = isa;
    const Tensor result = AbsoluteGemm(desc, context).value();
    ASSERT_EQ(result.dtype(), DType::kF64);
    for (int64_t i = 0; i < kRows * kColumns; ++i) {
      double expected = 0;  // Multiples of 2^-18 below 2^28: exact here.
      for (int64_t k = 0; k < kDepth; ++k) {
        const double a = std::fabs(ValueAt(desc.a.data, i / kColumns * kDepth + k));
        const double b = std::fabs(ValueAt(desc.b.data, i % kColumns * kDepth + k));
        if (a != 0 && b != 0) expected += (a + 0x1p-6) * (b + 0x1p-6);
      }
      expected *= 1.5;
      EXPECT_GE(result.as<double>()[i], expected);
      EXPECT_LE(result.as<double>()[i], expected * (1 + 1e-12));
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

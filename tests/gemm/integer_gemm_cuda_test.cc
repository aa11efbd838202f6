// Sums of integers on a GPU against the CPU engine, byte for byte: layouts, signedness, zero
// points, scales, outputs, ragged shapes, and sums beyond 32 bits.
#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/gemm/gemm_on_device.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// Codes of every value, the extremes more often.
Tensor Codes(DType dtype, Shape shape, uint32_t seed) {
  Tensor codes = ValueOrAbort(Tensor::Allocate(dtype, std::move(shape)));
  for (int64_t i = 0; i < codes.element_count(); ++i) {
    seed = seed * 1664525u + 1013904223u;
    const uint32_t random = seed >> 8;
    const auto byte = static_cast<uint8_t>(random % 5 == 0 ? (random & 64 ? 0x80 : 0x7F) : random);
    codes.as<uint8_t>()[i] = byte;
  }
  return codes;
}

/// Scales of several sizes, of both signs, among them 0, infinity, NaN and a subnormal.
Tensor Scales(int64_t count, uint32_t seed, bool hostile) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values.push_back(static_cast<float>(seed >> 8) * 0x1p-30f + 1e-4f);
    if (hostile && i % 5 == 0) {
      constexpr float kHostile[] = {0.0f,   -0.0f, __builtin_inff(), __builtin_nanf(""),
                                    1e-41f, 3e38f};
      values.back() = kHostile[i / 5 % 6];
    }
    if (hostile && i % 7 == 1) values.back() = -values.back();
  }
  return ValueOrAbort(Tensor::FromBytes(DType::kF32, {count}, std::as_bytes(std::span(values))));
}

struct Side {
  DType dtype;
  ScaleMode scaling;
  bool has_zero;
};

GemmOperand Operand(const Side& side, int64_t rows, int64_t k, bool is_turned, uint32_t seed,
                    bool hostile) {
  GemmOperand operand;
  operand.data = Codes(side.dtype, is_turned ? Shape{k, rows} : Shape{rows, k}, seed);
  operand.scaling = side.scaling;
  const int64_t scales = side.scaling == ScaleMode::kOuter ? rows : 1;
  if (side.scaling != ScaleMode::kNone) operand.scale_inv = Scales(scales, seed + 1, hostile);
  if (side.has_zero) operand.zero_point = Codes(side.dtype, {scales}, seed + 2);
  return operand;
}

std::string TextOf(const Side& side) {
  return absl::StrCat(std::string(DTypeName(side.dtype)), " ",
                      std::string(ScaleModeName(side.scaling)), side.has_zero ? " from zero" : "");
}

std::vector<Side> EverySide() {
  std::vector<Side> sides;
  for (const DType dtype : {DType::kI8, DType::kU8}) {
    for (const ScaleMode scaling : {ScaleMode::kNone, ScaleMode::kTensor, ScaleMode::kOuter}) {
      sides.push_back({dtype, scaling, false});
      if (scaling != ScaleMode::kNone) sides.push_back({dtype, scaling, true});
    }
  }
  return sides;
}

TEST(IntegerGemmCuda, EveryLayoutScaleAndZeroPoint) {
  int compared = 0;
  for (const GemmShape& shape :
       {GemmShape{1, 1, 1}, GemmShape{3, 5, 17}, GemmShape{65, 130, 100}, GemmShape{64, 64, 96}}) {
    for (const GemmLayout layout : {GemmLayout::kTN, GemmLayout::kNN, GemmLayout::kNT}) {
      for (const Side& a : EverySide()) {
        for (const Side& b : EverySide()) {
          for (const bool hostile : {false, true}) {
            GemmDesc desc;
            desc.layout = layout;
            desc.a = Operand(a, shape.m, shape.k, layout == GemmLayout::kNT, 1, hostile);
            desc.b = Operand(b, shape.n, shape.k, layout != GemmLayout::kTN, 2, hostile);
            ExpectTheCpusBytes(
                desc, absl::StrCat(TextOf(a), ", ", TextOf(b), hostile ? ", hostile scales" : ""));
            ASSERT_FALSE(HasFailure());
            ++compared;
          }
        }
      }
    }
  }
  EXPECT_EQ(compared, 4 * 3 * 10 * 10 * 2);
}

TEST(IntegerGemmCuda, EveryEpilogue) {
  constexpr GemmShape kShape{21, 70, 256};
  const Side side = {DType::kI8, ScaleMode::kOuter, true};
  for (const DType out : {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2}) {
    for (const bool has_bias : {false, true}) {
      for (const auto& [alpha, beta] :
           {std::pair(1.0f, 0.0f), std::pair(-0.7f, 1.0f), std::pair(1.0f, 0.3f)}) {
        GemmDesc desc;
        desc.a = Operand(side, kShape.m, kShape.k, false, 3, false);
        desc.b = Operand(side, kShape.n, kShape.k, false, 4, false);
        desc.out_dtype = out;
        desc.alpha = alpha;
        if (has_bias) desc.bias = Scales(kShape.n, 5, true);
        if (beta != 0 && !IsFp8(out)) {
          desc.beta = beta;
          desc.c = ValueOrAbort(Tensor::Allocate(out, {kShape.m, kShape.n}));
          for (size_t i = 0; i < desc.c.byte_size(); ++i) {
            desc.c.data()[i] = static_cast<std::byte>(i % 2 == 1 ? 0x3C + i % 3 : i * 37);
          }
        }
        if (IsFp8(out)) desc.d_scale = ValueOrAbort(Tensor::FromScalar(0.0371f));
        ExpectTheCpusBytes(desc, absl::StrCat(alpha, " ", beta, has_bias ? " bias" : ""));
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

/// Sums beyond 2^31, also of the part of k that is added in 32 bits: 16384 products of 255 * 255.
TEST(IntegerGemmCuda, LongSumsDoNotWrap) {
  for (const int64_t k : {16383, 16384, 16385, 140000, 300001}) {
    for (const auto& [dtype, code, zero] :
         {std::tuple(DType::kI8, 0x80, 0x7F), std::tuple(DType::kI8, 0x7F, 0x80),
          std::tuple(DType::kU8, 0xFF, 0x00), std::tuple(DType::kU8, 0x00, 0xFF)}) {
      GemmDesc desc;
      Tensor codes = ValueOrAbort(Tensor::Allocate(dtype, {2, k}));
      for (int64_t i = 0; i < 2 * k; ++i) codes.as<uint8_t>()[i] = static_cast<uint8_t>(code);
      codes.as<uint8_t>()[k] ^= 1;  // The second row is another.
      desc.a.data = desc.b.data = codes;
      desc.a.scaling = desc.b.scaling = ScaleMode::kTensor;
      desc.a.scale_inv = desc.b.scale_inv = ValueOrAbort(Tensor::FromScalar(1.0f));
      Tensor zeros = ValueOrAbort(Tensor::Allocate(dtype, {1}));
      zeros.as<uint8_t>()[0] = static_cast<uint8_t>(zero);
      desc.a.zero_point = desc.b.zero_point = zeros;
      ExpectTheCpusBytes(desc, absl::StrCat(k, " of ", code, " less ", zero));
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

// GEMMs of integers: torchao's linear bit for bit, sums without rounding however long, zero points,
// and what is refused.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/gemm/gemm.h"
#include "kernels/tensor/files/tensor_file.h"

namespace quantgate {
namespace QG_TEST_FILE {

template <class Value>
Tensor Of(DType dtype, Shape shape, const std::vector<Value>& values) {
  return *Tensor::FromBytes(dtype, std::move(shape), std::as_bytes(std::span(values)));
}

bool SameBytes(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.byte_size() == b.byte_size() &&
         std::memcmp(a.data(), b.data(), a.byte_size()) == 0;
}

// tests/vectors/libraries/make_int8_linear.py: operands and results of torchao on a CPU, whose sums
// it compares with Python's integers.
TEST(IntegerGemm, GivesTorchaosLinear) {
  const TensorFile file =
      *ReadSafetensors(std::string(QUANTGATE_SOURCE_DIR) + "/tests/data/int8_linear.safetensors");
  int cases = 0;
  for (size_t i = 0; i < nlohmann::json::parse(file.metadata.at("cases")).size(); ++i) {
    const auto tensor = [&](const char* name) { return *file.Find(absl::StrCat(i, ".", name)); };
    GemmDesc desc;
    desc.a.data = tensor("a");
    desc.b.data = tensor("b");
    desc.a.scaling = desc.b.scaling = ScaleMode::kOuter;
    desc.a.scale_inv = tensor("a_scale");
    desc.b.scale_inv = tensor("b_scale");
    const auto plain = GemmCpu(desc, {});
    ASSERT_TRUE(plain.ok()) << plain.status();
    EXPECT_EQ(plain->arithmetic.ToString(), "int32");
    EXPECT_TRUE(SameBytes(plain->d, tensor("d"))) << i;
    desc.bias = tensor("bias");
    EXPECT_TRUE(SameBytes(GemmCpu(desc, {})->d, tensor("d_bias"))) << i;
    ++cases;
  }
  EXPECT_EQ(cases, 3);
}

// 140 000 products of 127 * 127 are 2 258 060 000, beyond 2^31, and 300 001 of 128 * 128 are
// 4 915 216 384: an int32 accumulator would wrap. Both as fp32, to nearest even.
TEST(IntegerGemm, LongSumsDoNotWrap) {
  for (const auto& [k, value, wanted] :
       {std::tuple<int64_t, int, float>(140000, 127, 2258060032.0f),
        std::tuple<int64_t, int, float>(300001, -128, 4915216384.0f)}) {
    GemmDesc desc;
    const std::vector<int8_t> values(static_cast<size_t>(k), static_cast<int8_t>(value));
    desc.a.data = desc.b.data = Of(DType::kI8, {1, k}, values);
    const auto result = GemmCpu(desc, {});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(*result->d.as<float>(), wanted) << k;
  }
}

// Every layout and both signednesses, against sums of integers by their definition; scales of
// powers of two, so that nothing rounds.
TEST(IntegerGemm, CountsFromZeroPoints) {
  constexpr int64_t m = 3, n = 5, k = 17;
  std::vector<int8_t> a(m * k), zero_a = {-128, 5, 127};
  std::vector<uint8_t> b(n * k), zero_b = {200};
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<int8_t>(i * 37 + 11);
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<uint8_t>(i * 91 + 3);
  for (const GemmLayout layout : {GemmLayout::kTN, GemmLayout::kNN, GemmLayout::kNT}) {
    const bool a_turned = layout == GemmLayout::kNT, b_turned = layout != GemmLayout::kTN;
    GemmDesc desc;
    desc.layout = layout;
    desc.a.data = Of(DType::kI8, a_turned ? Shape{k, m} : Shape{m, k}, a);
    desc.a.scaling = ScaleMode::kOuter;
    desc.a.scale_inv = Of(DType::kF32, {m}, std::vector<float>{0.5f, 1.0f, 4.0f});
    desc.a.zero_point = Of(DType::kI8, {m}, zero_a);
    desc.b.data = Of(DType::kU8, b_turned ? Shape{k, n} : Shape{n, k}, b);
    desc.b.scaling = ScaleMode::kTensor;
    desc.b.scale_inv = Of(DType::kF32, {1}, std::vector<float>{0.25f});
    desc.b.zero_point = Of(DType::kU8, {1}, zero_b);
    const auto result = GemmCpu(desc, {});
    ASSERT_TRUE(result.ok()) << result.status();
    const float scales[] = {0.5f, 1.0f, 4.0f};
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        int64_t sum = 0;
        for (int64_t c = 0; c < k; ++c) {
          const int left = a[static_cast<size_t>(a_turned ? c * m + i : i * k + c)];
          const int right = b[static_cast<size_t>(b_turned ? c * n + j : j * k + c)];
          sum += (left - zero_a[static_cast<size_t>(i)]) * (right - 200);
        }
        EXPECT_EQ(result->d.as<float>()[i * n + j], static_cast<float>(sum) * scales[i] * 0.25f);
      }
    }
  }
}

TEST(IntegerGemm, RefusesWithFieldValueAndRule) {
  const auto valid = [] {
    GemmDesc desc;
    desc.a.data = Of(DType::kI8, {2, 4}, std::vector<int8_t>(8));
    desc.b.data = Of(DType::kI8, {2, 4}, std::vector<int8_t>(8));
    return desc;
  };
  const auto message = [](const GemmDesc& desc) {
    return std::string(CheckGemm(desc).status().message());
  };
  EXPECT_EQ(message(valid()), "");
  GemmDesc desc = valid();
  desc.arithmetic = *Arithmetic::Parse("sm90");
  EXPECT_EQ(message(desc), "arithmetic is sm90: operands of integers are added as integers: int32");
  desc = valid();
  desc.b.data = Of(DType::kF32, {2, 4}, std::vector<float>(8));
  EXPECT_EQ(message(desc),
            "b is f32: the other operand is of integers of 8 bits: both are, or none");
  desc.a.data = desc.b.data;
  desc.arithmetic = *Arithmetic::Parse("int32");
  EXPECT_EQ(message(desc),
            "arithmetic is int32: it adds integers of 8 bits (i8, u8), and a is f32");
  desc = valid();
  desc.a.scaling = ScaleMode::kOuter;
  desc.a.scale_inv = Of(DType::kF32, {1}, std::vector<float>{1});
  EXPECT_EQ(message(desc), "a.scale_inv is f32[1]: must be f32[2]");
  desc.a.scaling = ScaleMode::kTensor;
  desc.a.zero_point = Of(DType::kU8, {1}, std::vector<uint8_t>{1});
  EXPECT_EQ(message(desc),
            "a.zero_point is u8[1]: must be of the codes' dtype, i8, in the shape of scale_inv");
  desc = valid();
  desc.b.scaling = ScaleMode::kGroup;
  EXPECT_EQ(
      message(desc),
      "b.scaling is group: sums of integers have scales of a whole operand (tensor) or of its "
      "rows (outer)");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

// Tensors, buffers and dtypes: shapes and counts, and what is refused.
#include "kernels/tensor/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(DTypes, NamesRoundTrip) {
  for (const DTypeTraits& traits : AllDTypes()) {
    EXPECT_EQ(&TraitsOf(traits.dtype), &traits);
    EXPECT_EQ(*ParseDType(traits.name), traits.dtype);
    // Files have no type for single FP6 codes, nor for integers and places in tables of four bits;
    // their bytes are read as what they say, U8.
    const bool is_fp6 = traits.dtype == DType::kF6E2M3 || traits.dtype == DType::kF6E3M2;
    const bool is_nibbles = CodesPerElement(traits.dtype) == 2 && traits.dtype != DType::kF4E2M1x2;
    EXPECT_EQ(*ParseSafetensorsDType(traits.safetensors),
              is_fp6 || is_nibbles ? DType::kU8 : traits.dtype);
  }
  EXPECT_EQ(DTypeBytes(DType::kBF16), 2);
  const auto unknown = ParseDType("fp8");
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.status().message()), HasSubstr("\"fp8\""));
  EXPECT_THAT(std::string(unknown.status().message()),
              HasSubstr("did you mean f8_e4m3 or f8_e5m2 or f8_e4m3fnuz or f8_e5m2fnuz?"));
  EXPECT_THAT(std::string(ParseDType("float6").status().message()),
              HasSubstr("did you mean f6_e2m3 or f6_e3m2?"));
}

// The names of torch.dtype, ml_dtypes, the OCP specifications and safetensors, as those write them.
TEST(DTypes, OtherLibrariesNamesOfTheSameTypes) {
  const std::vector<std::pair<const char*, DType>> names = {{"float64", DType::kF64},
                                                            {"double", DType::kF64},
                                                            {"float32", DType::kF32},
                                                            {"float", DType::kF32},
                                                            {"bfloat16", DType::kBF16},
                                                            {"float16", DType::kF16},
                                                            {"half", DType::kF16},
                                                            {"float8_e4m3fn", DType::kF8E4M3},
                                                            {"float8_e5m2", DType::kF8E5M2},
                                                            {"float8_e8m0fnu", DType::kF8E8M0},
                                                            {"e4m3", DType::kF8E4M3},
                                                            {"e5m2", DType::kF8E5M2},
                                                            {"float4_e2m1fn_x2", DType::kF4E2M1x2},
                                                            {"f4_e2m1", DType::kF4E2M1x2},
                                                            {"float6_e2m3fn", DType::kF6E2M3},
                                                            {"float6_e3m2fn", DType::kF6E3M2},
                                                            {"uint8", DType::kU8},
                                                            {"int8", DType::kI8},
                                                            {"torch.int8", DType::kI8},
                                                            {"int32", DType::kI32},
                                                            {"BF16", DType::kBF16},
                                                            {"F8_E4M3", DType::kF8E4M3},
                                                            {"torch.bfloat16", DType::kBF16},
                                                            {"torch.float8_e4m3fn", DType::kF8E4M3},
                                                            {"torch.half", DType::kF16},
                                                            {"torch.uint8", DType::kU8}};
  for (const auto& [name, dtype] : names) {
    const auto parsed = ParseDType(name);
    ASSERT_TRUE(parsed.ok()) << name;
    EXPECT_EQ(*parsed, dtype) << name;
  }
}

// Each is another format, another layout, or several: an alias would read other values.
TEST(DTypes, NamesOfOtherTypesAreRefused) {
  for (const char* name : {"float8_e4m3", "float8_e4m3b11fnuz", "float8_e3m4", "float4_e2m1fn",
                           "F6_E2M3", "F6_E3M2", "F4", "f4", "f8", "f2", "fp8", "fp4", "int4",
                           "bool", "complex64", "Float32", "torch.", "torch.f8_e4m3", ""}) {
    EXPECT_FALSE(ParseDType(name).ok()) << name;
  }
}

TEST(ElementCount, RefusesWhatDoesNotFit) {
  struct Case {
    Shape shape;
    std::string message;
  };
  const std::vector<Case> cases = {
      {{-1, 4}, "x[0] is -1: dims must not be negative"},
      {{4, std::numeric_limits<int64_t>::min()}, "dims must not be negative"},
      {{int64_t{1} << 32, int64_t{1} << 31}, "overflows at dim 1"},
      {{0, int64_t{1} << 62, 4}, "overflows at dim 2"},
      {{kMax}, "size in bytes must fit int64"},
      {{1, 1, 1, 1, 1, 1, 1, 1, 1}, "x is of rank 9: its rank must be at most 8"},
  };
  for (const Case& c : cases) {
    const auto count = CheckedElementCount(c.shape, DType::kF32, "x");
    EXPECT_EQ(count.status().code(), absl::StatusCode::kInvalidArgument) << ShapeText(c.shape);
    EXPECT_THAT(std::string(count.status().message()), HasSubstr(c.message));
  }
}

TEST(ElementCount, ZeroDimsAndScalarsAreValid) {
  EXPECT_EQ(*CheckedElementCount({}, DType::kF32, "x"), 1);
  EXPECT_EQ(*CheckedElementCount({0, 7}, DType::kF32, "x"), 0);
  EXPECT_EQ(*CheckedElementCount({3, 5, 7}, DType::kF32, "x"), 105);
}

TEST(TensorShape, RowsAndColumns) {
  const Tensor tensor = *Tensor::Allocate(DType::kBF16, {2, 3, 5});
  EXPECT_EQ(tensor.rows(), 6);
  EXPECT_EQ(tensor.columns(), 5);
  EXPECT_EQ(tensor.byte_size(), 60u);
  EXPECT_EQ(TensorText(tensor), "bf16[2x3x5]");
  const Tensor scalar = *Tensor::Allocate(DType::kF32, {});
  EXPECT_EQ(scalar.rows(), 1);
  EXPECT_EQ(scalar.columns(), 1);
  const Tensor vector = *Tensor::Allocate(DType::kF32, {9});
  EXPECT_EQ(vector.rows(), 1);
  EXPECT_EQ(vector.columns(), 9);
  const Tensor empty = *Tensor::Allocate(DType::kF32, {0, 9});
  EXPECT_TRUE(empty.has_value());
  EXPECT_EQ(empty.rows(), 0);
  EXPECT_EQ(empty.byte_size(), 0u);
}

TEST(TensorMemory, IsAlignedAndShared) {
  Tensor tensor = *Tensor::Allocate(DType::kF32, {3});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data()) % 64, 0u);
  Tensor copy = tensor;
  tensor.as<float>()[2] = 5.0f;
  EXPECT_EQ(copy.as<float>()[2], 5.0f);
  const Tensor words = *tensor.Reinterpret(DType::kU8, {12});
  EXPECT_EQ(words.data(), tensor.data());
  EXPECT_FALSE(tensor.Reinterpret(DType::kU8, {13}).ok());
}

TEST(TensorMemory, AnAbsurdSizeIsRefusedNotAttempted) {
  const auto tensor = Tensor::Allocate(DType::kU8, {kMax});
  EXPECT_EQ(tensor.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(TensorMemory, ViewsStayInsideTheirBuffer) {
  const auto buffer = *Buffer::Allocate(16);
  EXPECT_TRUE(Tensor::View(DType::kF32, {3}, buffer, 4).ok());
  EXPECT_FALSE(Tensor::View(DType::kF32, {4}, buffer, 4).ok());
  EXPECT_FALSE(Tensor::View(DType::kF32, {0}, buffer, 17).ok());
  EXPECT_FALSE(Tensor::View(DType::kF32, {1}, buffer, std::numeric_limits<size_t>::max()).ok());
}

TEST(TensorMemory, RowRangesAreViewsOfTheFirstDim) {
  const Tensor tensor = *Tensor::Allocate(DType::kI16, {4, 3, 2});
  const Tensor rows = *tensor.RowRange(1, 2);
  EXPECT_EQ(rows.shape(), (Shape{2, 3, 2}));
  EXPECT_EQ(rows.data(), tensor.data() + 12);
  EXPECT_EQ(rows.RowRange(1, 1)->data(), tensor.data() + 24);
  EXPECT_EQ(tensor.RowRange(4, 0)->shape(), (Shape{0, 3, 2}));
  EXPECT_EQ(Tensor::Allocate(DType::kI16, {0, 3})->RowRange(0, 0)->shape(), (Shape{0, 3}));
  for (const auto& [begin, count] :
       {std::pair{-1, 1}, std::pair{0, -1}, std::pair{3, 2}, std::pair{5, 0}}) {
    EXPECT_EQ(tensor.RowRange(begin, count).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(Tensor::Allocate(DType::kI16, {})->RowRange(0, 1).ok());
}

TEST(FormatOf, GivesTheFormatOfADtypesCodes) {
  EXPECT_EQ(FormatOf(DType::kF32), kFormatId<Float32>);
  EXPECT_EQ(FormatOf(DType::kBF16), kFormatId<BFloat16>);
  EXPECT_EQ(FormatOf(DType::kF16), kFormatId<Float16>);
  EXPECT_EQ(FormatOf(DType::kF8E4M3), kFormatId<E4M3>);
  EXPECT_EQ(FormatOf(DType::kF8E5M2), kFormatId<E5M2>);
  EXPECT_EQ(FormatOf(DType::kF6E2M3), kFormatId<E2M3>);
  EXPECT_EQ(FormatOf(DType::kF6E3M2), kFormatId<E3M2>);
  EXPECT_EQ(FormatOf(DType::kF4E2M1x2), kFormatId<E2M1>);
  for (const DType dtype : {DType::kF64, DType::kF8E8M0, DType::kU8, DType::kI8, DType::kI16,
                            DType::kI32, DType::kI64}) {
    EXPECT_EQ(FormatOf(dtype), kNoFormat) << DTypeName(dtype);
  }
}

TEST(VisitFormat, VisitsTheFormatsOfTheListAlone) {
  using Listed = FormatTypes<BFloat16, E2M1>;
  for (const DTypeTraits& traits : AllDTypes()) {
    int mantissa_bits = -1;
    const bool visited =
        VisitFormat<Listed>(traits.dtype, [&]<class F>() { mantissa_bits = F::kMantissaBits; });
    const bool is_listed = traits.dtype == DType::kBF16 || traits.dtype == DType::kF4E2M1x2;
    EXPECT_EQ(visited, is_listed) << traits.name;
    EXPECT_EQ(mantissa_bits, traits.dtype == DType::kBF16 ? 7 : is_listed ? 1 : -1) << traits.name;
  }
}

// Two codes a byte are no element that a cast could write.
TEST(VisitFormat, ElementFormatsAreThoseOfOneCodeAnElement) {
  EXPECT_EQ(ElementFormatNames(),
            "f32, bf16, f16, f8_e4m3, f8_e5m2, f6_e2m3, f6_e3m2, f8_e4m3fnuz, f8_e5m2fnuz");
  for (const DTypeTraits& traits : AllDTypes()) {
    if (!IsElementFormat(traits.dtype)) continue;
    VisitFormat<ElementFormats>(traits.dtype, [&]<class F>() {
      EXPECT_EQ(sizeof(typename F::Storage), static_cast<size_t>(traits.bytes)) << traits.name;
    });
  }
}

TEST(TensorMemory, WrappedMemoryKeepsItsOwner) {
  auto owner = std::make_shared<std::vector<float>>(4, 1.5f);
  std::weak_ptr<std::vector<float>> watch = owner;
  auto buffer = Buffer::Wrap(reinterpret_cast<std::byte*>(owner->data()), 16, owner);
  owner.reset();
  EXPECT_FALSE(watch.expired());
  buffer.reset();
  EXPECT_TRUE(watch.expired());
}

TEST(TensorBytes, CountMustMatch) {
  const std::vector<std::byte> bytes(6);
  EXPECT_TRUE(Tensor::FromBytes(DType::kBF16, {3}, bytes).ok());
  const auto wrong = Tensor::FromBytes(DType::kF32, {2}, bytes);
  EXPECT_THAT(std::string(wrong.status().message()), HasSubstr("bytes is 6: f32[2] takes 8"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

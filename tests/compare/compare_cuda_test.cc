// GPU against CPU: every field of every report, doubles by their bits.
#include "kernels/compare/compare_cuda.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/compare/compare_kernels_cuda.h"
#include "kernels/tensor/convert.h"
#include "kernels/tensor/generate/generate.h"
#include "tests/tensor/cuda_test_device.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr ComparePath kPaths[] = {ComparePath::kTuned, ComparePath::kPlain};

uint64_t Bits(double x) { return std::bit_cast<uint64_t>(x); }

void ExpectSamePair(const ElementPair& expected, const ElementPair& actual) {
  EXPECT_EQ(actual.coordinate, expected.coordinate);
  EXPECT_EQ(actual.subject_bits, expected.subject_bits);
  EXPECT_EQ(actual.reference_bits, expected.reference_bits);
  EXPECT_EQ(Bits(actual.subject), Bits(expected.subject));
  EXPECT_EQ(Bits(actual.reference), Bits(expected.reference));
}

void ExpectSameParity(const Tensor& subject, const Tensor& reference, int64_t shift = 0) {
  SCOPED_TRACE(TensorText(subject) + " shifted by " + std::to_string(shift));
  const ParityReport expected = ValueOrAbort(CompareBits(subject, reference, {}));
  const Tensor s = OnDeviceShifted(subject, shift), r = OnDeviceShifted(reference, shift);
  for (const ComparePath path : kPaths) {
    const ParityReport actual = ValueOrAbort(CompareBitsOnPath(TestDevice(), s, r, path));
    EXPECT_EQ(actual.equal, expected.equal);
    EXPECT_EQ(actual.element_count, expected.element_count);
    EXPECT_EQ(actual.mismatch_count, expected.mismatch_count);
    ExpectSamePair(expected.first, actual.first);
    ExpectSamePair(expected.worst, actual.worst);
    EXPECT_EQ(actual.worst_ulp, expected.worst_ulp);
    EXPECT_EQ(actual.class_confusion, expected.class_confusion);
    ASSERT_EQ(actual.ulp_histogram.size(), expected.ulp_histogram.size());
    for (size_t i = 0; i < expected.ulp_histogram.size(); ++i) {
      EXPECT_EQ(actual.ulp_histogram[i].lower, expected.ulp_histogram[i].lower);
      EXPECT_EQ(actual.ulp_histogram[i].upper, expected.ulp_histogram[i].upper);
      EXPECT_EQ(actual.ulp_histogram[i].count, expected.ulp_histogram[i].count);
    }
  }
}

void ExpectSameCells(const std::vector<HeatMapCell>& expected,
                     const std::vector<HeatMapCell>& actual) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(actual[i].row_begin, expected[i].row_begin);
    EXPECT_EQ(actual[i].row_end, expected[i].row_end);
    EXPECT_EQ(actual[i].column_begin, expected[i].column_begin);
    EXPECT_EQ(actual[i].column_end, expected[i].column_end);
    EXPECT_EQ(Bits(actual[i].rms_error), Bits(expected[i].rms_error)) << "cell " << i;
    EXPECT_EQ(Bits(actual[i].max_abs_error), Bits(expected[i].max_abs_error)) << "cell " << i;
  }
}

void ExpectSameReport(const ErrorReport& expected, const ErrorReport& actual) {
  EXPECT_EQ(actual.element_count, expected.element_count);
  EXPECT_EQ(actual.non_finite_count, expected.non_finite_count);
  EXPECT_EQ(Bits(actual.max_abs), Bits(expected.max_abs));
  ExpectSamePair(expected.max_abs_at, actual.max_abs_at);
  EXPECT_EQ(Bits(actual.mean_abs), Bits(expected.mean_abs));
  EXPECT_EQ(Bits(actual.rms), Bits(expected.rms));
  EXPECT_EQ(Bits(actual.max_rel), Bits(expected.max_rel));
  ExpectSamePair(expected.max_rel_at, actual.max_rel_at);
  EXPECT_EQ(Bits(actual.mean_rel), Bits(expected.mean_rel));
  EXPECT_EQ(Bits(actual.bias), Bits(expected.bias));
  EXPECT_EQ(Bits(actual.sum_reference_squared), Bits(expected.sum_reference_squared));
  EXPECT_EQ(Bits(actual.sum_error_squared), Bits(expected.sum_error_squared));
  EXPECT_EQ(Bits(actual.cosine), Bits(expected.cosine));
  EXPECT_EQ(Bits(actual.relative_frobenius), Bits(expected.relative_frobenius));
  EXPECT_EQ(actual.saturated_count, expected.saturated_count);
  EXPECT_EQ(actual.flushed_to_zero_count, expected.flushed_to_zero_count);
  EXPECT_EQ(actual.subnormal_count, expected.subnormal_count);
  EXPECT_EQ(actual.heat_map.rows, expected.heat_map.rows);
  EXPECT_EQ(actual.heat_map.columns, expected.heat_map.columns);
  ExpectSameCells(expected.heat_map.cells, actual.heat_map.cells);
  ExpectSameCells(expected.worst_blocks, actual.worst_blocks);
}

void ExpectSameErrors(const Tensor& subject, const Tensor& reference, int64_t shift = 0) {
  SCOPED_TRACE(TensorText(subject) + " against " + TensorText(reference) + " shifted by " +
               std::to_string(shift));
  const ErrorReport expected = ValueOrAbort(MeasureError(subject, reference, {}));
  const Tensor s = OnDeviceShifted(subject, shift), r = OnDeviceShifted(reference, shift);
  for (const ComparePath path : kPaths) {
    SCOPED_TRACE(path == ComparePath::kTuned ? "tuned" : "plain");
    ExpectSameReport(expected, ValueOrAbort(MeasureErrorOnPath(TestDevice(), s, r, path)));
  }
}

Tensor Generated(Distribution distribution, uint64_t seed, DType dtype, Shape shape,
                 float scale = 1.0f) {
  return ValueOrAbort(Generate({.distribution = distribution,
                                .seed = seed,
                                .dtype = dtype,
                                .shape = std::move(shape),
                                .scale = scale},
                               {}));
}

/// Bytes of no meaning, as a tensor of any type; `mask` clears bits of each byte.
Tensor RandomBytes(uint64_t seed, DType dtype, Shape shape, uint8_t mask = 0xFF) {
  Tensor tensor = ValueOrAbort(Tensor::Allocate(dtype, std::move(shape)));
  uint64_t state = seed;
  for (size_t i = 0; i < tensor.byte_size(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    tensor.as<uint8_t>()[i] = static_cast<uint8_t>(state >> 56) & mask;
  }
  return tensor;
}

Tensor FloatTensor(Shape shape, const std::vector<float>& values) {
  return ValueOrAbort(
      Tensor::FromBytes(DType::kF32, std::move(shape), std::as_bytes(std::span(values))));
}

/// The tensor with one in `every` bytes changed by `flip`.
Tensor Flipped(const Tensor& tensor, size_t every, uint8_t flip) {
  Tensor copy = ValueOrAbort(Tensor::FromBytes(tensor.dtype(), tensor.shape(), tensor.bytes()));
  for (size_t i = every / 2; i < copy.byte_size(); i += every) copy.as<uint8_t>()[i] ^= flip;
  return copy;
}

TEST(CompareBitsCuda, EveryTypeEqualAndDiffering) {
  for (const DTypeTraits& traits : AllDTypes()) {
    for (const int64_t count : {0, 1, 5, 4097, 70001}) {
      const Tensor noise = RandomBytes(3, traits.dtype, {count});
      ExpectSameParity(noise, noise);
      ExpectSameParity(noise, RandomBytes(4, traits.dtype, {count}));
      ExpectSameParity(Flipped(noise, 7, 1), noise);
      ExpectSameParity(Flipped(noise, 4099, 0x81), noise, 1);
    }
  }
}

TEST(CompareBitsCuda, GeneratedTensorsOfEveryDistribution) {
  for (const DType dtype :
       {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2, DType::kF6E3M2}) {
    for (const Distribution distribution : AllDistributions()) {
      const Tensor x = Generated(distribution, 1, dtype, {37, 5003});
      ExpectSameParity(x, x);
      ExpectSameParity(Flipped(x, 5 * 4096, 0x01), x);
      ExpectSameParity(Flipped(x, 3, 0x01), x);
      ExpectSameParity(Flipped(x, 64, 0x80), x);
      ExpectSameParity(Generated(distribution, 2, dtype, {37, 5003}), x);
    }
  }
}

// Every pair of codes of an 8-bit type, so that classes, sides and buckets are all met.
TEST(CompareBitsCuda, EveryPairOfBytes) {
  for (const DTypeTraits& traits : AllDTypes()) {
    if (traits.bytes != 1) continue;
    Tensor subject = ValueOrAbort(Tensor::Allocate(traits.dtype, {256, 256}));
    Tensor reference = ValueOrAbort(Tensor::Allocate(traits.dtype, {256, 256}));
    for (int i = 0; i < 65536; ++i) {
      subject.as<uint8_t>()[i] = static_cast<uint8_t>(i >> 8);
      reference.as<uint8_t>()[i] = static_cast<uint8_t>(i);
    }
    ExpectSameParity(subject, reference);
  }
}

TEST(CompareBitsCuda, OneDifferenceAtEitherEnd) {
  const Tensor x = Generated(Distribution::kNormal, 8, DType::kBF16, {3, 100000});
  for (const size_t at : {size_t{0}, x.byte_size() - 2, size_t{123456}}) {
    Tensor y = ValueOrAbort(Tensor::FromBytes(x.dtype(), x.shape(), x.bytes()));
    y.as<uint8_t>()[at] ^= 3;
    ExpectSameParity(y, x);
  }
}

TEST(CompareBitsCuda, RefusesWhatCompareBitsRefuses) {
  const Tensor a = Generated(Distribution::kNormal, 1, DType::kBF16, {4, 4});
  const Tensor b = Generated(Distribution::kNormal, 1, DType::kF16, {4, 4});
  const Tensor c = Generated(Distribution::kNormal, 1, DType::kBF16, {2, 8});
  for (const Tensor& other : {b, c}) {
    EXPECT_EQ(
        CompareBitsOnPath(TestDevice(), OnDevice(a), OnDevice(other), ComparePath::kTuned).status(),
        CompareBits(a, other, {}).status());
  }
  EXPECT_EQ(CompareBitsOnPath(TestDevice(), a, Tensor(), ComparePath::kTuned).status(),
            CompareBits(a, Tensor(), {}).status());
}

const std::vector<Shape> kShapes = {{},         {0, 4},     {1},         {1, 31},    {31, 1},
                                    {70, 5},    {45, 4100}, {256, 256},  {40, 512},  {3, 7, 8},
                                    {512, 768}, {1, 9000},  {1, 524288}, {9000, 32}, {33, 2304}};

TEST(MeasureErrorCuda, ShapesAndShifts) {
  for (const Shape& shape : kShapes) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Tensor s = Generated(Distribution::kNormal, 1, dtype, shape);
      const Tensor r = Generated(Distribution::kNormal, 2, dtype, shape);
      ExpectSameErrors(s, r);
      ExpectSameErrors(s, r, 3);
      ExpectSameErrors(s, s);
    }
  }
}

TEST(MeasureErrorCuda, EveryDistributionAgainstItsCast) {
  const std::vector<DType> types = {DType::kF32,    DType::kBF16,   DType::kF16,   DType::kF8E4M3,
                                    DType::kF8E5M2, DType::kF6E2M3, DType::kF6E3M2};
  for (const Distribution distribution : AllDistributions()) {
    for (const float scale : {1.0f, 0x1p-130f, 0x1p125f}) {
      const Tensor x = Generated(distribution, 5, DType::kF32, {96, 1280}, scale);
      const Tensor y = Generated(distribution, 6, DType::kF32, {96, 1280}, scale);
      for (const DType dtype : types) {
        const Tensor cast = ValueOrAbort(CastTensor(x, dtype, {}));
        ExpectSameErrors(cast, x);
        ExpectSameErrors(cast, ValueOrAbort(CastTensor(y, dtype, {})));
        ExpectSameErrors(x, cast);
      }
    }
  }
}

// Any bits at all: NaN, infinities and subnormals on both sides, quotients of every exponent.
TEST(MeasureErrorCuda, RandomCodesOfEveryFloatingType) {
  for (const DTypeTraits& subject : AllDTypes()) {
    if (!subject.is_floating) continue;
    for (const DType reference : {subject.dtype, DType::kF32, DType::kF64, DType::kF8E8M0}) {
      ExpectSameErrors(RandomBytes(11, subject.dtype, {64, 1024}),
                       RandomBytes(12, reference, {64, 1024}));
    }
  }
}

TEST(MeasureErrorCuda, QuotientsOfFloats) {
  // Subject and reference of neighbouring exponents and all mantissas: 4 M quotients whose sums
  // and largest are exact in every bit only if each quotient is.
  for (const uint64_t seed : {21, 22, 23, 24}) {
    const Tensor s = Generated(Distribution::kNormal, seed, DType::kF32, {2048, 512});
    const Tensor r =
        Generated(Distribution::kLogNormalOutliers, seed + 4, DType::kF32, {2048, 512});
    ExpectSameErrors(s, r);
  }
}

/// An s for which |s - b| / b = (m +- 1 / b) / 2^54, for an odd b of 24 bits and an odd m of 54: as
/// near to the middle between two doubles as a quotient of such numbers comes. m is 2^54 - n, n is
/// the inverse of b modulo 2^54 or its negative, whichever is below 2^53; s = (n b +- 1) / 2^54.
uint32_t NearestToTheMiddle(uint32_t b) {
  constexpr uint64_t kMask = (uint64_t{1} << 54) - 1;
  uint64_t inverse = b;  // Of 3 bits; each step doubles them.
  for (int bits = 3; bits < 54; bits *= 2) inverse *= 2 - b * inverse;
  inverse &= kMask;
  const bool negative = inverse >> 53 != 0;
  const uint64_t n = negative ? kMask + 1 - inverse : inverse;
  using Wide = unsigned __int128;
  return static_cast<uint32_t>((Wide{n} * b + (negative ? 1 : 0)) >> 54);
}

TEST(MeasureErrorCuda, QuotientsNearestToTheMiddle) {
  std::vector<float> subject, reference;
  for (uint32_t b = (1 << 23) + 1; b < 1 << 24; b += 2) {
    subject.push_back(static_cast<float>(NearestToTheMiddle(b)));
    reference.push_back(static_cast<float>(b) * (b % 4 == 1 ? 0x1p-9f : -0x1p30f));
    subject.back() *= reference.back() / static_cast<float>(b);
  }
  ExpectSameErrors(FloatTensor({2048, 2048}, subject), FloatTensor({2048, 2048}, reference));
}

// The same errors in every segment, so that all of them ask for the lowest position.
TEST(MeasureErrorCuda, LargestErrorsInEverySegment) {
  constexpr int64_t kRows = 4096, kColumns = 2048;
  std::vector<float> subject(size_t{kRows} * kColumns), reference(subject.size());
  for (size_t i = 0; i < subject.size(); ++i) {
    reference[i] = i * 5 % 7 < 3 ? -1.0f : 1.0f;
    subject[i] = reference[i] + (i * 3 % 11 < 5 ? -0.5f : 0.5f);
  }
  const Shape shape = {kRows, kColumns};
  ExpectSameErrors(FloatTensor(shape, subject), FloatTensor(shape, reference));
  // In a later row of every block an error that is larger by the least step.
  for (size_t row = 100; row < kRows; row += 128) {
    for (size_t column = 17; column < kColumns; column += 64) {
      subject[row * kColumns + column] = 1.5f;
      reference[row * kColumns + column] = 0x1.fffffep-1f;
    }
  }
  ExpectSameErrors(FloatTensor(shape, subject), FloatTensor(shape, reference));
}

TEST(MeasureErrorCuda, TiesGoToTheLowestIndex) {
  std::vector<float> ones(size_t{64} * 512, 1.0f), twos(ones.size(), 2.0f);
  const auto tensor = [](const std::vector<float>& values) {
    return FloatTensor({64, 512}, values);
  };
  ExpectSameErrors(tensor(ones), tensor(twos));
  twos[3] = 1.0f;
  ones[0] = std::numeric_limits<float>::infinity();
  ExpectSameErrors(tensor(ones), tensor(twos));
  ExpectSameErrors(tensor(twos), tensor(twos));
  const std::vector<float> nans(ones.size(), std::numeric_limits<float>::quiet_NaN());
  ExpectSameErrors(tensor(nans), tensor(twos));
  std::vector<float> late = nans;
  late[20000] = 2.0f;
  ExpectSameErrors(tensor(late), tensor(twos));
  const std::vector<float> zeros(ones.size(), 0.0f);
  ExpectSameErrors(tensor(twos), tensor(zeros));
  ExpectSameErrors(tensor(zeros), tensor(twos));
}

// A warp that has found the largest error must not keep another one, whose equal error lies lower,
// from looking: here all warps but the lowest have it in what they search first. Which of them is
// there first differs from time to time.
TEST(MeasureErrorCuda, AnEqualErrorBelowThatIsFoundLater) {
  constexpr size_t kSegment = 1024, kSegments = 32 * 64;
  std::vector<float> subject(kSegments * kSegment, 1.0f), reference(subject.size(), 1.0f);
  for (size_t segment = 0; segment < kSegments; ++segment) {
    subject[segment * kSegment + (segment == 0 ? kSegment - 1 : 0)] = 3.0f;
  }
  const Shape shape = {1, static_cast<int64_t>(subject.size())};
  const Tensor s = FloatTensor(shape, subject), r = FloatTensor(shape, reference);
  const ErrorReport expected = ValueOrAbort(MeasureError(s, r, {}));
  ASSERT_EQ(expected.max_abs_at.coordinate, (std::vector<int64_t>{0, int64_t{kSegment} - 1}));
  const Tensor device_s = OnDeviceShifted(s, 0), device_r = OnDeviceShifted(r, 0);
  for (int i = 0; i < 200; ++i) {
    ExpectSameReport(expected, ValueOrAbort(MeasureErrorOnPath(TestDevice(), device_s, device_r,
                                                               ComparePath::kTuned)));
  }
}

TEST(MeasureErrorCuda, SeveralLevelsOfSegments) {
  // One row of 32 blocks of so many segments each: of two and three groups, which the last kernel
  // adds, and of five, of which a kernel before it makes sums.
  for (const int64_t segments : {300, 600, 1100}) {
    const Shape shape = {1, 32 * segments * 1024};
    ExpectSameErrors(Generated(Distribution::kNormal, 1, DType::kBF16, shape),
                     Generated(Distribution::kNormal, 2, DType::kBF16, shape));
  }
}

/// More blocks of the heat map than blocks of threads run at a time, and segments enough in each
/// for several of those. Largest errors, which are small numbers' whole values, are met again and
/// again.
TEST(MeasureErrorCuda, ManyLargeBlocks) {
  const Shape shape = {8192, 4096};
  const Tensor f32 = Generated(Distribution::kNormal, 1, DType::kF32, shape);
  const Tensor coarse = ValueOrAbort(CastTensor(f32, DType::kF8E4M3, {}));
  ExpectSameErrors(ValueOrAbort(CastTensor(coarse, DType::kF32, {})), f32);
  const Tensor bf16 = ValueOrAbort(CastTensor(f32, DType::kBF16, {}));
  ExpectSameErrors(ValueOrAbort(CastTensor(coarse, DType::kBF16, {})), bf16);
  ExpectSameErrors(ValueOrAbort(CastTensor(bf16, DType::kF32, {})), f32);
}

TEST(MeasureErrorCuda, RealTensors) {
  for (const char* name : {"fc1.x", "fc1.weight", "fc1.dy"}) {
    const Tensor x = RealTensor(name);
    for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2, DType::kF16}) {
      ExpectSameErrors(ValueOrAbort(CastTensor(x, dtype, {})), x);
    }
    ExpectSameParity(x, x);
  }
}

TEST(MeasureErrorCuda, RefusesWhatMeasureErrorRefuses) {
  const Tensor a = Generated(Distribution::kNormal, 1, DType::kBF16, {4, 4});
  for (const Tensor& other : {Generated(Distribution::kNormal, 1, DType::kBF16, {2, 8}),
                              RandomBytes(1, DType::kI32, {4, 4}), Tensor()}) {
    EXPECT_EQ(MeasureErrorOnPath(TestDevice(), OnDevice(a), OnDevice(other), ComparePath::kTuned)
                  .status(),
              MeasureError(a, other, {}).status());
  }
}

void ExpectSameNearer(const Tensor& subject, const Tensor& reference, const Tensor& truth) {
  SCOPED_TRACE(TensorText(subject) + " and " + TensorText(reference));
  const NearerReport expected = ValueOrAbort(MeasureNearer(subject, reference, truth, {}));
  const NearerReport actual = ValueOrAbort(MeasureNearerCuda(
      TestDevice(), OnDevice(subject), OnDeviceShifted(reference, 1), OnDevice(truth)));
  EXPECT_EQ(actual.subject_nearer, expected.subject_nearer);
  EXPECT_EQ(actual.reference_nearer, expected.reference_nearer);
  EXPECT_EQ(actual.tied, expected.tied);
  EXPECT_EQ(Bits(actual.subject_rms), Bits(expected.subject_rms));
  EXPECT_EQ(Bits(actual.reference_rms), Bits(expected.reference_rms));
}

TEST(MeasureNearerCuda, FieldsOfMeasureNearer) {
  for (const Shape& shape : kShapes) {
    const Tensor truth = Generated(Distribution::kSpecialsLaced, 1, DType::kF32, shape);
    const Tensor subject = ValueOrAbort(CastTensor(truth, DType::kBF16, {}));
    ExpectSameNearer(subject, ValueOrAbort(CastTensor(truth, DType::kF16, {})), truth);
    ExpectSameNearer(subject, Generated(Distribution::kSpecialsLaced, 2, DType::kF8E4M3, shape),
                     truth);
  }
  for (const DTypeTraits& traits : AllDTypes()) {
    if (!traits.is_floating) continue;
    ExpectSameNearer(RandomBytes(1, traits.dtype, {50, 400}),
                     RandomBytes(2, traits.dtype, {50, 400}),
                     RandomBytes(3, DType::kF32, {50, 400}));
  }
  const Tensor x = Generated(Distribution::kNormal, 1, DType::kF32, {4, 4});
  EXPECT_EQ(MeasureNearerCuda(TestDevice(), OnDevice(x), OnDevice(x), Tensor()).status(),
            MeasureNearer(x, x, Tensor(), {}).status());
}

// Element counts beyond 32 bits, through the fields that count.
TEST(CompareCuda, TensorsOfMoreThanFourGigabytes) {
  const Tensor x = Generated(Distribution::kUniform, 5, DType::kF8E4M3, {65537, 65792});
  const Tensor y = Flipped(x, 1000003, 0x05);
  ExpectSameParity(y, x);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

// Every cast over all 2^32 binary32 inputs, in every instruction set, against ml_dtypes
// (cast_boundaries.h) and, where the CUDA headers are, against CUDA's host conversions.
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>

#include "kernels/numerics/branch_free_cast.h"
#include "kernels/numerics/e8m0.h"
#include "kernels/quantize/cpu/quantize_kernels.h"
#include "kernels/tensor/fingerprint.h"
#include "tests/quantize/cast_boundaries.h"

#ifdef QUANTGATE_CUDA_FP8
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>
#endif

namespace quantgate {
namespace QG_TEST_FILE {

constexpr int64_t kChunk = 1 << 20;
constexpr int64_t kChunks = (int64_t{1} << 32) / kChunk;

const std::vector<Boundary>& BoundariesOf(const std::string& name) {
  static const CastBoundaries all = LoadCastBoundaries();
  return all.formats.at(name);
}

/// First mismatches of a whole walk; thousands of equal failures say no more.
class Mismatches {
 public:
  void Compare(const std::string& path, uint32_t begin, const std::vector<uint8_t>& expected,
               const std::vector<uint8_t>& codes) {
    if (codes == expected) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < codes.size(); ++i) {
      if (codes[i] == expected[i] || ++count_ > 10) continue;
      ADD_FAILURE() << path << ": input 0x" << std::hex << begin + i << " gives 0x" << int{codes[i]}
                    << ", expected 0x" << int{expected[i]};
    }
  }

 private:
  std::mutex mutex_;
  int64_t count_ = 0;
};

/// body(first pattern, all the patterns as floats) over every chunk.
template <class Body>
void ForEveryInput(const Body& body) {
  const ExecutionContext context;
  ParallelFor(context, kChunks, 1, [&](int64_t chunk_begin, int64_t chunk_end) {
    std::vector<uint32_t> bits(kChunk);
    for (int64_t chunk = chunk_begin; chunk < chunk_end; ++chunk) {
      const uint32_t begin = static_cast<uint32_t>(chunk * kChunk);
      for (int64_t i = 0; i < kChunk; ++i) bits[i] = begin + static_cast<uint32_t>(i);
      body(begin, bits);
    }
  });
}

struct Element {
  DType dtype;
  const char* name;
};

class CastExhaustive : public ::testing::TestWithParam<Element> {};

TEST_P(CastExhaustive, EveryInstructionSetGivesTheCodesOfMlDtypes) {
  const auto& boundaries = BoundariesOf(GetParam().name);
  const CastAnyFunction scalar = ScalarCast(DType::kF32, GetParam().dtype);
  const CastFunction avx2 =
      BestIsa() >= Isa::kAvx2 ? Avx2Cast(DType::kF32, GetParam().dtype) : nullptr;
  const CastFunction avx512 =
      BestIsa() >= Isa::kAvx512 ? Avx512Cast(DType::kF32, GetParam().dtype) : nullptr;
  Mismatches mismatches;
  ForEveryInput([&](uint32_t begin, const std::vector<uint32_t>& bits) {
    std::vector<uint8_t> expected, codes(kChunk);
    ExpectedCodes(boundaries, begin, kChunk, expected);
    const CastPiece piece = {bits.data(), kChunk, 1.0f, codes.data()};
    QuantizationCounts counts;
    scalar(piece, ElementRounding::kNearestEven, Overflow::kSaturate, counts);
    mismatches.Compare("scalar", begin, expected, codes);
    for (const CastFunction cast : {avx2, avx512}) {
      if (cast == nullptr) continue;
      std::fill(codes.begin(), codes.end(), 0xAA);
      cast(piece, counts);
      mismatches.Compare(cast == avx2 ? "avx2" : "avx512", begin, expected, codes);
    }
  });
}

TEST_P(CastExhaustive, OverflowToNan) {
  const auto& boundaries = BoundariesOf(std::string(GetParam().name) + "_overflow_nan");
  const CastAnyFunction scalar = ScalarCast(DType::kF32, GetParam().dtype);
  Mismatches mismatches;
  ForEveryInput([&](uint32_t begin, const std::vector<uint32_t>& bits) {
    std::vector<uint8_t> expected, codes(kChunk);
    ExpectedCodes(boundaries, begin, kChunk, expected);
    QuantizationCounts counts;
    scalar({bits.data(), kChunk, 1.0f, codes.data()}, ElementRounding::kNearestEven, Overflow::kNan,
           counts);
    mismatches.Compare("scalar", begin, expected, codes);
  });
}

#ifdef QUANTGATE_CUDA_FP8
TEST_P(CastExhaustive, CudaHostConversions) {
  const auto interpretation = GetParam().dtype == DType::kF8E4M3 ? __NV_E4M3 : __NV_E5M2;
  const auto& boundaries = BoundariesOf(GetParam().name);
  Mismatches mismatches;
  ForEveryInput([&](uint32_t begin, const std::vector<uint32_t>& bits) {
    std::vector<uint8_t> expected(kChunk), codes;
    for (int64_t i = 0; i < kChunk; ++i) {
      expected[i] =
          __nv_cvt_float_to_fp8(std::bit_cast<float>(bits[i]), __NV_SATFINITE, interpretation);
    }
    ExpectedCodes(boundaries, begin, kChunk, codes);
    mismatches.Compare("ml_dtypes against CUDA", begin, expected, codes);
  });
}
#endif

INSTANTIATE_TEST_SUITE_P(Fp8, CastExhaustive,
                         ::testing::Values(Element{DType::kF8E4M3, "f8_e4m3"},
                                           Element{DType::kF8E5M2, "f8_e5m2"}),
                         [](const auto& element) { return std::string(element.param.name); });

// ---- FP6, FP4 and E8M0

/// First magnitudes of the codes of a format without NaN: the midpoint below each value, which goes
/// to the even code. `values` are those of codes 0, 1, ...
std::vector<Boundary> BoundariesBetween(const std::vector<float>& values) {
  std::vector<Boundary> boundaries = {{0, 0}};
  for (uint32_t code = 1; code < values.size(); ++code) {
    const float midpoint = (values[code - 1] + values[code]) / 2;  // Exact: few bits.
    boundaries.push_back({std::bit_cast<uint32_t>(midpoint) + code % 2, code});
  }
  return boundaries;
}

/// Codes 0, 1, ... up to the largest: sub * quantum below 2^mantissa_bits, then binades.
std::vector<float> ValuesOf(int mantissa_bits, int codes, float smallest) {
  std::vector<float> values;
  float quantum = smallest;
  const int per_binade = 1 << mantissa_bits;
  for (int code = 0; code < codes; ++code) {
    if (code >= 2 * per_binade && code % per_binade == 0) quantum *= 2;
    const int significand = code < per_binade ? code : per_binade + code % per_binade;
    values.push_back(static_cast<float>(significand) * quantum);
  }
  return values;
}

struct NarrowElement {
  const char* name;
  std::vector<float> values;
  uint8_t sign;
  uint8_t (*encode)(float);
#ifdef QUANTGATE_CUDA_FP8
  uint8_t (*cuda)(float);
#endif
};

template <class F>
uint8_t Encode(float value) {
  return EncodeFloat<F>(value);
}

#ifdef QUANTGATE_CUDA_FP8
#define QUANTGATE_WITH_CUDA(conversion) , [](float value) -> uint8_t { return conversion; }
#else
#define QUANTGATE_WITH_CUDA(conversion)
#endif

std::vector<NarrowElement> NarrowElements() {
  return {
      {"f4_e2m1",
       {0, 0.5f, 1, 1.5f, 2, 3, 4, 6},
       0x08,
       &Encode<E2M1> QUANTGATE_WITH_CUDA(
           __nv_cvt_float_to_fp4(value, __NV_E2M1, cudaRoundNearest))},
      {"f6_e2m3", ValuesOf(3, 32, 0.125f), 0x20,
       &Encode<E2M3> QUANTGATE_WITH_CUDA(
           __nv_cvt_float_to_fp6(value, __NV_E2M3, cudaRoundNearest))},
      {"f6_e3m2", ValuesOf(2, 32, 0.0625f), 0x20,
       &Encode<E3M2> QUANTGATE_WITH_CUDA(
           __nv_cvt_float_to_fp6(value, __NV_E3M2, cudaRoundNearest))},
  };
}

TEST(CastExhaustive, NarrowElements) {
  for (const NarrowElement& element : NarrowElements()) {
    const std::vector<Boundary> boundaries = BoundariesBetween(element.values);
    const auto largest = static_cast<uint8_t>(element.values.size() - 1);
    Mismatches mismatches;
    ForEveryInput([&](uint32_t begin, const std::vector<uint32_t>& bits) {
      std::vector<uint8_t> expected, codes(kChunk);
      ExpectedCodes(boundaries, begin, kChunk, expected);  // Its sign is bit 7, its NaN 0x7F.
      for (int64_t i = 0; i < kChunk; ++i) {
        const bool is_nan = (bits[i] & 0x7FFFFFFF) > 0x7F800000;
        expected[i] =
            is_nan
                ? largest
                : static_cast<uint8_t>((expected[i] & 0x7F) | (bits[i] >> 31 ? element.sign : 0));
        codes[i] = element.encode(std::bit_cast<float>(bits[i]));
      }
      mismatches.Compare(element.name, begin, expected, codes);
#ifdef QUANTGATE_CUDA_FP8
      for (int64_t i = 0; i < kChunk; ++i) codes[i] = element.cuda(std::bit_cast<float>(bits[i]));
      mismatches.Compare(std::string(element.name) + " CUDA", begin, expected, codes);
#endif
    });
  }
}

/// The smallest code whose value is not below the input: a search among the 255 values.
TEST(CastExhaustive, E8m0RoundsUp) {
  std::vector<uint32_t> values = {0x00400000};  // 2^-127, 2^-126, ... 2^127.
  for (uint32_t code = 1; code < 255; ++code) values.push_back(code << 23);
  Mismatches mismatches;
  ForEveryInput([&](uint32_t begin, const std::vector<uint32_t>& bits) {
    if (begin >> 31) return;  // Scales are made of magnitudes.
    std::vector<uint8_t> expected(kChunk), codes(kChunk);
    size_t code = 0;
    for (int64_t i = 0; i < kChunk; ++i) {
      while (code < 254 && values[code] < bits[i]) ++code;
      expected[i] = bits[i] > 0x7F800000 ? 0xFF : static_cast<uint8_t>(code);
      codes[i] = EncodeE8m0Up(std::bit_cast<float>(bits[i]));
    }
    mismatches.Compare("e8m0", begin, expected, codes);
#ifdef QUANTGATE_CUDA_FP8
    for (int64_t i = 0; i < kChunk; ++i) {
      codes[i] =
          __nv_cvt_float_to_e8m0(std::bit_cast<float>(bits[i]), __NV_SATFINITE, cudaRoundPosInf);
    }
    mismatches.Compare("e8m0 CUDA", begin, expected, codes);
#endif
  });
}

/// The list of first magnitudes per code, as text, hashed: how the 16-bit formats are kept in the
/// file.
template <class F>
std::string BoundariesDigest() {
  std::string lines;
  uint32_t last = UINT32_MAX;
  for (uint32_t bits = 0; bits <= 0x7F800000; ++bits) {
    const uint32_t code = EncodeFloat<F>(std::bit_cast<float>(bits));
    if (code == last) continue;
    EXPECT_TRUE(last == UINT32_MAX || code > last) << "not monotone at " << bits;
    // Signs only mirror: checked where the code changes and everywhere for FP8 above.
    EXPECT_EQ(EncodeFloat<F>(std::bit_cast<float>(bits | 0x80000000u)),
              code | FormatConstants<F>::kSignMask);
    char line[32];
    std::snprintf(line, sizeof(line), "%08x %x\n", bits, code);
    lines += line;
    last = code;
  }
  return Sha256Of(std::as_bytes(std::span(lines))).Hex();
}

/// Where the bits differ from EncodeFloat's, which BoundariesDigest holds against ml_dtypes.
template <class F>
int64_t BranchFreeDifferences() {
  std::atomic<int64_t> differences = 0;
  ForEveryInput([&](uint32_t, const std::vector<uint32_t>& bits) {
    int64_t here = 0;
    for (const uint32_t input : bits) {
      const auto value = std::bit_cast<float>(input);
      here += EncodeBranchFree<F>(value) != EncodeFloat<F>(value);
    }
    differences += here;
  });
  return differences;
}

TEST(CastExhaustive, BranchFreeGivesTheSameCodes) {
  EXPECT_EQ(BranchFreeDifferences<BFloat16>(), 0);
  EXPECT_EQ(BranchFreeDifferences<Float16>(), 0);
}

TEST(CastExhaustive, SixteenBitFormats) {
  const CastBoundaries all = LoadCastBoundaries();
  EXPECT_EQ(BoundariesDigest<BFloat16>(), all.digests.at("bf16"));
  EXPECT_EQ(BoundariesDigest<Float16>(), all.digests.at("f16"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

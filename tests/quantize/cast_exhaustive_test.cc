// Every cast over all 2^32 binary32 inputs, in every instruction set, against ml_dtypes
// (cast_boundaries.h) and, where the CUDA headers are, against CUDA's host conversions.
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>

#include "kernels/quantize/quantize_kernels.h"
#include "kernels/tensor/fingerprint.h"
#include "tests/quantize/cast_boundaries.h"

#ifdef QUANTGATE_CUDA_FP8
#include <cuda_fp8.h>
#endif

namespace quantgate {
namespace {

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

TEST(CastExhaustive, SixteenBitFormats) {
  const CastBoundaries all = LoadCastBoundaries();
  EXPECT_EQ(BoundariesDigest<BFloat16>(), all.digests.at("bf16"));
  EXPECT_EQ(BoundariesDigest<Float16>(), all.digests.at("f16"));
}

}  // namespace
}  // namespace quantgate

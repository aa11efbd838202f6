// FP8 GEMMs under fp32 scales of 32, 64 and 256 elements: the bits of the same GEMM under scales
// that are written out for shorter blocks, which other tests hold to hardware and to a reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "kernels/numerics/e8m0.h"
#include "tests/gemm/scaled_operand.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;
using enum DType;
using enum ScaleMode;

constexpr int64_t kRows = 40, kColumns = 24, kK = 800;

GemmDesc Desc(ScaleMode a, ScaleMode b, ScalePattern scales, const std::string& arithmetic) {
  GemmDesc desc;
  desc.a = MakeOperand(kF8E4M3, a, kRows, kK, false, CodePattern::kNear, scales, 1);
  desc.b = MakeOperand(kF8E5M2, b, kColumns, kK, false, CodePattern::kNear, scales, 2);
  desc.out_dtype = kF32;
  desc.arithmetic = Arithmetic::Parse(arithmetic).value();
  return desc;
}

/// The operand under scales of `mode`, whose blocks divide its own, as f32 or E8M0.
GemmOperand WrittenOut(const GemmOperand& operand, ScaleMode mode, int64_t rows) {
  const ScaleBlock from = ScaleBlockOf(operand.scaling), to = ScaleBlockOf(mode);
  const int64_t from_blocks = (kK + from.k - 1) / from.k, blocks = (kK + to.k - 1) / to.k;
  GemmOperand written = operand;
  written.scaling = mode;
  written.scale_inv = *Tensor::Allocate(to.dtype, {rows, blocks});
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t block = 0; block < blocks; ++block) {
      const float scale =
          operand.scale_inv.as<float>()[row / from.rows * from_blocks + block * to.k / from.k];
      const int64_t at = row * blocks + block;
      if (to.dtype == kF32) {
        written.scale_inv.as<float>()[at] = scale;
      } else {
        uint8_t code = 0;
        EXPECT_TRUE(ExactE8m0(std::bit_cast<uint32_t>(scale), code));
        written.scale_inv.as<uint8_t>()[at] = code;
      }
    }
  }
  return written;
}

GemmDesc WrittenOut(GemmDesc desc, ScaleMode mode) {
  desc.a = WrittenOut(desc.a, mode, kRows);
  desc.b = WrittenOut(desc.b, mode, kColumns);
  return desc;
}

void ExpectSameBits(const GemmDesc& one, const GemmDesc& other) {
  const auto a = GemmCpu(one, {}), b = GemmCpu(other, {});
  ASSERT_TRUE(a.ok()) << a.status();
  ASSERT_TRUE(b.ok()) << b.status();
  EXPECT_EQ(std::memcmp(a->d.data(), b->d.data(), a->d.byte_size()), 0);
}

const std::pair<ScaleMode, ScaleMode> kPairs[] = {{k1x32, k1x32},   {k1x64, k64x64},
                                                  {k1x256, k1x256}, {k256x256, k1x256},
                                                  {k1x32, k32x32},  {k1x64, k1x64}};

TEST(GroupScales, BlackwellTakesThemAsMxScalesOf32) {
  for (const auto& [a, b] : kPairs) {
    SCOPED_TRACE(std::string(ScaleModeName(a)));
    const GemmDesc desc = Desc(a, b, ScalePattern::kPowers, "sm100");
    ExpectSameBits(desc, WrittenOut(desc, kMx32));
    GemmDesc chosen = desc;
    chosen.arithmetic = {};
    EXPECT_EQ(GemmCpu(chosen, {})->arithmetic.ToString(), "sm100");
  }
}

TEST(GroupScales, ExactAndFp32TakeAnyScale) {
  for (const char* arithmetic : {"exact", "fp32"}) {
    for (const auto& [a, b] : kPairs) {
      SCOPED_TRACE(std::string(ScaleModeName(a)) + " " + arithmetic);
      const GemmDesc desc = Desc(a, b, ScalePattern::kUsual, arithmetic);
      if (ScaleBlockOf(a).k == 256) ExpectSameBits(desc, WrittenOut(desc, k1x128));
      ExpectSameBits(desc, WrittenOut(desc, k1x32));
    }
    // Of 128 too, which other tests hold.
    const GemmDesc known = Desc(k1x128, k128x128, ScalePattern::kUsual, arithmetic);
    ExpectSameBits(known, WrittenOut(known, k1x64));
  }
}

TEST(GroupScales, RefusalsNameWhatIsMissing) {
  const auto refusal = [](const GemmDesc& desc) {
    const absl::Status status = CheckGemm(desc).status();
    EXPECT_EQ(GemmCpu(desc, {}).status(), status);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal(Desc(k1x64, k1x64, ScalePattern::kPowers, "sm90")),
              HasSubstr("it has no instruction for fp8 group-scaled operands; "));
  EXPECT_THAT(refusal(Desc(k1x64, k1x64, ScalePattern::kUsual, "sm100")),
              HasSubstr("Blackwell takes fp32 scales of blocks that are powers of two"));
  EXPECT_THAT(refusal(Desc(k1x64, k1x32, ScalePattern::kPowers, "exact")),
              HasSubstr("b.scaling is 1x32: both operands must have block scales of one kind, and "
                        "a.scaling is 1x64"));
  EXPECT_THAT(refusal(Desc(k64x64, k64x64, ScalePattern::kPowers, "exact")),
              HasSubstr("at most one operand may have 64x64 scales, the other 1x64"));
  GemmDesc short_scales = Desc(k1x64, k1x64, ScalePattern::kPowers, "exact");
  short_scales.a.scale_inv = Desc(k1x128, k1x128, ScalePattern::kPowers, "exact").a.scale_inv;
  EXPECT_THAT(refusal(short_scales), HasSubstr("a.scale_inv is f32[40x7]: must be f32[40x13]"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

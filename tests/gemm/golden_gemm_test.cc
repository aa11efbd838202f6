// GemmCpu's sm90 arithmetic against what cuBLASLt computed on an H200: every output of every case
// of the golden files (tests/data/golden_gemm_*.safetensors, written by
// tests/hardware/cublaslt_record.cc), bit for bit, on every instruction set. A case's metadata says
// how it was made; the file's "origin" on which device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/compare/parity_report.h"
#include "kernels/gemm/gemm.h"
#include "kernels/tensor/files/tensor_file.h"
#include "kernels/tensor/fingerprint.h"
#include "tests/gemm/golden_cases.h"

namespace quantgate {
namespace QG_TEST_FILE {

using Json = nlohmann::json;

const char* const kGoldenFiles[] = {"bf16",
                                    "f16",
                                    "tf32",
                                    "fp8_e4m3",
                                    "fp8_e5m2_e4m3",
                                    "fp8_e4m3_e5m2",
                                    "epilogue_high_precision",
                                    "fp8_block",
                                    "block_splitk",
                                    "epilogue_fp8",
                                    "splitk",
                                    "large"};

std::string Difference(const ParityReport& report) {
  std::string text = std::to_string(report.mismatch_count) + " of " +
                     std::to_string(report.element_count) + " outputs differ, first at (";
  for (int64_t index : report.first.coordinate) text += std::to_string(index) + ",";
  char values[80];
  std::snprintf(values, sizeof(values), "): engine 0x%lx (%g), H200 0x%lx (%g)",
                static_cast<unsigned long>(report.first.subject_bits), report.first.subject,
                static_cast<unsigned long>(report.first.reference_bits), report.first.reference);
  return text + values;
}

struct Param {
  std::string file;
  Isa isa;
};

void PrintTo(const Param& param, std::ostream* out) {
  *out << param.file << " on " << IsaName(param.isa);
}

class GoldenGemmTest : public ::testing::TestWithParam<Param> {};

TEST_P(GoldenGemmTest, EveryOutputEqualsTheHardware) {
  const GoldenFile golden = ReadGolden(GetParam().file);
  ASSERT_GT(golden.cases.size(), 0u);
  ExecutionContext context;
  context.isa = GetParam().isa;
  for (const Json& one : golden.cases) {
    SCOPED_TRACE(one["name"].get<std::string>());
    absl::StatusOr<GemmResult> result = GemmCpu(DescOf(golden, one), context);
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) continue;
    if (one.contains("d_sha256")) {
      EXPECT_EQ(Sha256Of(result->d.bytes()).Hex(), one["d_sha256"].get<std::string>());
      continue;
    }
    const Tensor expected = *golden.tensors.Find(one["d"].get<std::string>());
    absl::StatusOr<ParityReport> report = CompareBits(result->d, expected, context);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->equal) << Difference(*report);
    if (one.contains("amax_bits")) {
      EXPECT_EQ(std::bit_cast<uint32_t>(*result->amax.as<float>()),
                one["amax_bits"].get<uint32_t>());
    }
  }
}

/// The files state where their outputs come from, and cover what they are for.
TEST(GoldenFilesTest, NameTheirOriginAndCoverTheSpecifiedCorners) {
  int fast = 0, split = 0, in_place = 0, bias = 0, split_k = 0, outer = 0, ragged = 0, cases = 0;
  for (const char* name : kGoldenFiles) {
    const GoldenFile golden = ReadGolden(name);
    ASSERT_TRUE(golden.tensors.metadata.contains("origin"));
    EXPECT_THAT(golden.tensors.metadata.at("origin"), ::testing::HasSubstr("NVIDIA H200"));
    for (const Json& one : golden.cases) {
      const GemmDesc desc = DescOf(golden, one);
      const int64_t k = desc.a.data.shape()[desc.layout == GemmLayout::kNT ? 0 : 1];
      const bool fp8 = IsFp8(desc.a.data.dtype());
      const int chunk = fp8 ? 32 : desc.a.data.dtype() == DType::kF32 ? 8 : 16;
      ++cases;
      fast += fp8 && !desc.use_split_accumulator;
      split += fp8 && desc.use_split_accumulator;
      in_place += desc.in_place;
      bias += desc.bias.has_value();
      split_k += desc.arithmetic.split_k > 1;
      outer += desc.a.scaling == ScaleMode::kOuter;
      ragged += k % chunk != 0;
    }
  }
  EXPECT_GT(cases, 500);
  for (int covered : {fast, split, in_place, bias, split_k, outer, ragged}) EXPECT_GT(covered, 20);
}

std::vector<Param> AllParams() {
  std::vector<Param> params;
  for (const char* file : kGoldenFiles) {
    for (Isa isa : RunnableIsas()) params.push_back({file, isa});
  }
  return params;
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenGemmTest, ::testing::ValuesIn(AllParams()),
                         [](const ::testing::TestParamInfo<Param>& info) {
                           return info.param.file + "_" + std::string(IsaName(info.param.isa));
                         });

}  // namespace QG_TEST_FILE
}  // namespace quantgate

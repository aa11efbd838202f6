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
#include "kernels/tensor/fingerprint.h"
#include "kernels/tensor/tensor_file.h"
#include "tests/gemm/operand_pattern.h"

namespace quantgate {
namespace {

using Json = nlohmann::json;

const char* const kGoldenFiles[] = {"bf16",
                                    "f16",
                                    "tf32",
                                    "fp8_e4m3",
                                    "fp8_e5m2_e4m3",
                                    "fp8_e4m3_e5m2",
                                    "epilogue_high_precision",
                                    "epilogue_fp8",
                                    "splitk",
                                    "large"};

struct GoldenFile {
  TensorFile tensors;
  Json cases;
};

GoldenFile ReadGolden(const std::string& name) {
  absl::StatusOr<TensorFile> file =
      ReadSafetensors(QUANTGATE_SOURCE_DIR "/tests/data/golden_gemm_" + name + ".safetensors");
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return {};
  Json cases = Json::parse(file->metadata.at("cases"));
  return {*std::move(file), std::move(cases)};
}

/// An operand of a digest case, drawn again as the recorder drew it.
Tensor RegeneratedOperand(const Json& operand) {
  const std::string type = operand["type"];
  testing::Pattern pattern{};
  for (const auto& entry : testing::kPatterns) {
    if (entry.name == operand["pattern"]) pattern = entry.pattern;
  }
  const int64_t rows = operand["rows"], columns = operand["columns"];
  const std::vector<uint8_t> bytes = testing::PatternMatrix(
      pattern, testing::CodeFormatOf(type), operand["chunk"], operand["seed"], rows, columns);
  const DType dtype = *ParseDType(type);
  Tensor drawn = *Tensor::FromBytes(dtype, {rows, columns}, std::as_bytes(std::span(bytes)));
  if (!operand["transposed"]) return drawn;
  Tensor transposed = *Tensor::Allocate(dtype, {columns, rows});
  const size_t width = DTypeBytes(dtype);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      std::memcpy(transposed.data() + (c * rows + r) * width,
                  drawn.data() + (r * columns + c) * width, width);
    }
  }
  return transposed;
}

Tensor OperandOf(const GoldenFile& golden, const Json& one, const char* key) {
  if (!one.contains(key)) return Tensor();
  if (one[key].is_object()) return RegeneratedOperand(one[key]);
  return *golden.tensors.Find(one[key].get<std::string>());
}

void SetScale(const GoldenFile& golden, const Json& one, const char* key, GemmOperand& operand) {
  if (!one.contains(key)) return;
  const std::string mode = one.value(std::string(key) + "_mode", "");
  if (!mode.empty()) {  // Block scales, as a tensor.
    operand.scaling = *ParseScaleMode(mode);
    operand.scale_inv = OperandOf(golden, one, key);
    return;
  }
  const auto values = one[key].get<std::vector<float>>();
  operand.scaling = values.size() == 1 ? ScaleMode::kTensor : ScaleMode::kOuter;
  operand.scale_inv = *Tensor::FromBytes(DType::kF32, {static_cast<int64_t>(values.size())},
                                         std::as_bytes(std::span(values)));
}

GemmDesc DescOf(const GoldenFile& golden, const Json& one) {
  GemmDesc desc;
  desc.a.data = OperandOf(golden, one, "a");
  desc.b.data = OperandOf(golden, one, "b");
  SetScale(golden, one, "a_scale", desc.a);
  SetScale(golden, one, "b_scale", desc.b);
  const std::string layout = one.value("layout", "tn");
  desc.layout = layout == "tn"   ? GemmLayout::kTN
                : layout == "nn" ? GemmLayout::kNN
                                 : GemmLayout::kNT;
  desc.arithmetic.family = ArithmeticFamily::kSm90;
  desc.arithmetic.split_k = one.value("split_k", 1);
  desc.use_split_accumulator = one.value("split_accumulator", false);
  desc.alpha = one.value("alpha", 1.0f);
  desc.beta = one.value("beta", 0.0f);
  desc.in_place = one.value("in_place", false);
  desc.c = OperandOf(golden, one, "c");
  desc.bias = OperandOf(golden, one, "bias");
  if (one.contains("d_scale")) desc.d_scale = *Tensor::FromScalar(one["d_scale"]);
  desc.out_dtype = *ParseDType(one["d_type"].get<std::string>());
  return desc;
}

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

}  // namespace
}  // namespace quantgate

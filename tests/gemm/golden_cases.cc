#include "tests/gemm/golden_cases.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/base/repository_file.h"
#include "tests/gemm/operand_pattern.h"

namespace quantgate {
namespace {

using Json = nlohmann::json;

/// An operand of a digest case, drawn again as the recorder drew it.
Tensor RegeneratedOperand(const Json& operand) {
  const std::string type = operand["type"];
  testing::Pattern pattern{};
  for (const auto& entry : testing::kPatterns) {
    if (entry.name == operand["pattern"].get<std::string>()) pattern = entry.pattern;
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

}  // namespace

GoldenFile ReadGolden(const std::string& name) {
  absl::StatusOr<TensorFile> file =
      ReadSafetensors(RepositoryFile("tests/data/golden_gemm_" + name + ".safetensors"));
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return {};
  Json cases = Json::parse(file->metadata.at("cases"));
  return {*std::move(file), std::move(cases)};
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

}  // namespace quantgate

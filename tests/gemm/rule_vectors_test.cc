// Every tensor-core arithmetic against rational arithmetic (tests/vectors/rule_reference.py), on
// every instruction set, and the scalar rule alone.
#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/rule_outputs.h"
#include "kernels/gemm/rules.h"
#include "tests/gemm/exact_vectors.h"

namespace quantgate {
namespace {

std::vector<std::string> Words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::vector<uint32_t> Codes(const std::string& text) {
  std::vector<uint32_t> codes;
  for (const std::string& word : Words(text)) {
    codes.push_back(static_cast<uint32_t>(std::stoul(word, nullptr, 16)));
  }
  return codes;
}

Tensor Amax(const std::string& word) {
  if (word == "-") return {};
  return Tensor::FromScalar(std::bit_cast<float>(Codes(word)[0])).value();
}

/// One row of codes; FP4 packed.
Tensor RowOf(DType dtype, std::vector<uint32_t> codes) {
  if (dtype == DType::kF4E2M1x2) {
    std::vector<uint32_t> bytes(codes.size() / 2);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = codes[2 * i] | codes[2 * i + 1] << 4;
    codes = bytes;
  }
  return TensorOfCodes(dtype, {1, static_cast<int64_t>(codes.size())}, codes);
}

GemmOperand OperandOf(const std::string& type, const std::string& scaling,
                      std::vector<uint32_t> codes, const std::vector<uint32_t>& scales) {
  GemmOperand operand;
  operand.data = RowOf(ParseDType(type).value(), std::move(codes));
  operand.scaling = ParseScaleMode(scaling).value();
  if (operand.scaling == ScaleMode::kNone) return operand;
  const DType dtype = operand.scaling == ScaleMode::kMx32   ? DType::kF8E8M0
                      : operand.scaling == ScaleMode::kNv16 ? DType::kF8E4M3
                                                            : DType::kF32;
  operand.scale_inv = TensorOfCodes(dtype, {1, static_cast<int64_t>(scales.size())}, scales);
  return operand;
}

struct Vector {
  std::string text;
  GemmDesc desc;
  uint32_t d;
};

Vector Parse(const std::string& line) {
  std::vector<std::string> parts;
  std::istringstream stream(line);
  for (std::string part; std::getline(stream, part, '|');) parts.push_back(part);
  const std::vector<std::string> head = Words(parts[0]);
  const std::vector<std::string> scalars = Words(parts[1]);
  std::vector<uint32_t> a = Codes(parts[2]), b = Codes(parts[3]);
  if (a.size() % 2 == 1) {
    // FP4 codes come in pairs; a product of zeros changes nothing.
    a.push_back(0);
    b.push_back(0);
  }
  Vector vector{line, {}, Codes(parts[6])[0]};
  GemmDesc& desc = vector.desc;
  desc.arithmetic = Arithmetic::Parse(head[0]).value();
  desc.a = OperandOf(head[1], head[3], a, Codes(parts[4]));
  desc.b = OperandOf(head[2], head[4], b, Codes(parts[5]));
  desc.out_dtype = ParseDType(head[5]).value();
  desc.alpha = std::bit_cast<float>(Codes(scalars[0])[0]);
  desc.a.amax = Amax(scalars[1]);
  desc.b.amax = Amax(scalars[2]);
  desc.a.e4m3_max = std::stoi(scalars[3]);
  desc.b.e4m3_max = std::stoi(scalars[4]);
  return vector;
}

const std::vector<Vector>& Vectors() {
  static const auto& vectors = *[] {
    auto* read = new std::vector<Vector>;
    std::ifstream file(std::string(QUANTGATE_SOURCE_DIR) + "/tests/data/rule_dots.txt");
    EXPECT_TRUE(file.is_open());
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with('#')) read->push_back(Parse(line));
    }
    return read;
  }();
  return vectors;
}

TEST(RuleVectorsTest, CoverEveryRowOfTheRegistry) {
  std::set<std::pair<ArithmeticFamily, OperandClass>> seen;
  for (const Vector& vector : Vectors()) {
    seen.emplace(vector.desc.arithmetic.family, OperandClassOf(vector.desc.a, vector.desc.b));
  }
  EXPECT_GT(Vectors().size(), 1000u);
  for (const ArchitectureRule& row : AllArchitectureRules()) {
    // sm86 and sm120 share rules with their older siblings; some of theirs suffice.
    if (row.family == ArithmeticFamily::kSm86 || row.family == ArithmeticFamily::kSm120) continue;
    EXPECT_TRUE(seen.contains({row.family, row.operands}))
        << ArithmeticFamilyName(row.family) << " " << OperandClassName(row.operands);
  }
}

TEST(RuleVectorsTest, EveryPathEqualsRationalArithmetic) {
  for (const Vector& vector : Vectors()) {
    for (const Isa isa : RunnableIsas()) {
      ExecutionContext context;
      context.isa = isa;
      const auto result = GemmCpu(vector.desc, context);
      ASSERT_TRUE(result.ok()) << result.status() << "\n" << vector.text;
      ASSERT_EQ(CodeAt(result->d, 0), vector.d) << IsaName(isa) << "\n" << vector.text;
    }
  }
}

TEST(RuleVectorsTest, TheScalarRuleEqualsRationalArithmetic) {
  for (const Vector& vector : Vectors()) {
    const auto outputs = RuleOutputs::Make(vector.desc, {{0, 0}, {0, 0}});
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    const auto codes = outputs->Codes(RuleFor(vector.desc).value(), {});
    ASSERT_TRUE(codes.ok()) << codes.status();
    ASSERT_EQ((*codes)[0], vector.d) << vector.text;
    ASSERT_EQ((*codes)[1], vector.d) << vector.text;
  }
}

}  // namespace
}  // namespace quantgate

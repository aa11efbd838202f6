// Every tensor-core arithmetic against rational arithmetic (tests/vectors/rule_reference.py), on
// every instruction set, and the scalar rule alone.
#include <gtest/gtest.h>

#include <bit>
#include <set>
#include <string>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/models/rules.h"
#include "tests/gemm/exact/exact_vectors.h"
#include "tests/gemm/models/scalar_outputs.h"
#include "tests/gemm/scaled_vectors.h"

namespace quantgate {
namespace QG_TEST_FILE {

struct Vector {
  std::string text;
  GemmDesc desc;
  uint32_t d;
};

Vector Parse(const std::string& line) {
  const std::vector<std::string> parts = PartsOf(line);
  const std::vector<std::string> head = WordsOf(parts[0]);
  const std::vector<std::string> scalars = WordsOf(parts[1]);
  std::vector<uint32_t> a = CodesOf(parts[2]), b = CodesOf(parts[3]);
  if (a.size() % 2 == 1) {
    // FP4 codes come in pairs; a product of zeros changes nothing.
    a.push_back(0);
    b.push_back(0);
  }
  Vector vector{line, {}, CodesOf(parts[6])[0]};
  GemmDesc& desc = vector.desc;
  desc.arithmetic = Arithmetic::Parse(head[0]).value();
  desc.a = RowOperand(head[1], head[3], a, CodesOf(parts[4]));
  desc.b = RowOperand(head[2], head[4], b, CodesOf(parts[5]));
  desc.out_dtype = ParseDType(head[5]).value();
  desc.alpha = std::bit_cast<float>(CodesOf(scalars[0])[0]);
  desc.a.amax = OptionalF32(scalars[1]);
  desc.b.amax = OptionalF32(scalars[2]);
  desc.a.e4m3_max = std::stoi(scalars[3]);
  desc.b.e4m3_max = std::stoi(scalars[4]);
  return vector;
}

const std::vector<Vector>& Vectors() {
  static const auto& vectors = *[] {
    auto* read = new std::vector<Vector>;
    for (const std::string& line : LinesOf("rule_dots.txt")) read->push_back(Parse(line));
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
    const auto codes = ScalarOutputs(vector.desc, {{0, 0}});
    ASSERT_TRUE(codes.ok()) << codes.status();
    ASSERT_EQ((*codes)[0], vector.d) << vector.text;
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

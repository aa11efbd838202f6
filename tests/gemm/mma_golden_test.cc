// Single mma.sync instructions, and sparse mma.sp and wgmma.sp ones, as an H200 computed them
// (tests/data/golden_mma_sync.txt, golden_mma_sparse.txt) against the scalar steps of the
// registry's rules. Of a sparse instruction the lines have the elements that it multiplies.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gemm/models/rules.h"
#include "kernels/numerics/fused_rule.h"
#include "tests/gemm/scaled_vectors.h"

namespace quantgate {
namespace QG_TEST_FILE {

namespace steps = fused_rule_steps;

FusedRule RuleOf(ArithmeticFamily family, OperandClass operands, bool f16) {
  for (const ArchitectureRule& row : AllArchitectureRules()) {
    if (row.family != family || row.operands != operands) continue;
    FusedRule rule = row.rule;
    rule.f16_accumulator = f16;
    return rule;
  }
  ADD_FAILURE() << "no such row";
  return {};
}

/// The row's elements from its 32 bytes in hexadecimal.
template <class F>
std::vector<FusedElement> Elements(const std::string& hex) {
  constexpr size_t kBytes = sizeof(typename F::Storage);
  std::vector<FusedElement> elements;
  for (size_t i = 0; i < 32; i += kBytes) {
    uint32_t code = 0;
    for (size_t byte = 0; byte < kBytes; ++byte) {
      code |= static_cast<uint32_t>(std::stoul(hex.substr(2 * (i + byte), 2), nullptr, 16))
              << (8 * byte);
    }
    if (kBytes == 4) code &= ~0x1FFFu;  // The instruction truncates to tf32.
    elements.push_back(UnpackElement<F>(static_cast<typename F::Storage>(code)));
  }
  return elements;
}

/// One instruction with accumulator bits c.
template <class FA, class FB>
uint32_t Instruction(const FusedRule& rule, const std::string& a_hex, const std::string& b_hex,
                     uint32_t c) {
  const std::vector<FusedElement> a = Elements<FA>(a_hex), b = Elements<FB>(b_hex);
  if (rule.promotion == Promotion::kAdd) {
    FusedRow row_a, row_b;
    row_a.elements = a.data();
    row_a.fraction_bits = FA::kMantissaBits;
    row_b.elements = b.data();
    row_b.fraction_bits = FB::kMantissaBits;
    const float sum = DotUnder(rule, row_a, row_b, static_cast<int64_t>(a.size()));
    const float result = steps::Promote(rule, steps::AccumulatorValue(rule, c), sum, 1.0f, 1.0f);
    return rule.f16_accumulator ? uint32_t(EncodeFloat<Float16>(result))
                                : std::bit_cast<uint32_t>(CanonicalFloat(result));
  }
  const auto term = [&](int i) { return steps::Product(a[i], b[i]); };
  return steps::Step(rule, rule.step, FA::kMantissaBits + FB::kMantissaBits, term, c);
}

/// `operands`: "f16", "bf16", "tf32", "e4m3", "e5m2", "e4m3e5m2".
uint32_t Expected(const FusedRule& rule, const std::string& operands, const std::string& a,
                  const std::string& b, uint32_t c) {
  if (operands == "f16") return Instruction<Float16, Float16>(rule, a, b, c);
  if (operands == "bf16") return Instruction<BFloat16, BFloat16>(rule, a, b, c);
  if (operands == "tf32") return Instruction<Float32, Float32>(rule, a, b, c);
  if (operands == "e4m3") return Instruction<E4M3, E4M3>(rule, a, b, c);
  if (operands == "e5m2") return Instruction<E5M2, E5M2>(rule, a, b, c);
  EXPECT_EQ(operands, "e4m3e5m2");
  return Instruction<E4M3, E5M2>(rule, a, b, c);
}

/// The rule of "f16->f32", "e4m3->f16", "sp.bf16->f32", "wgmma.sp.e4m3", and its operands.
std::pair<FusedRule, std::string> InstructionOf(std::string name) {
  using enum ArithmeticFamily;
  using enum OperandClass;
  const bool f16 = name.ends_with("->f16"), is_wgmma = name.starts_with("wgmma.");
  if (is_wgmma) name = name.substr(6);
  if (name.starts_with("sp.")) name = name.substr(3);
  name = name.substr(0, name.find("->"));
  if (name == "f16") return {RuleOf(kSm90, kF16, f16), name};
  if (name == "bf16") return {RuleOf(kSm90, kBF16, f16), name};
  if (name == "tf32") return {RuleOf(kSm90, kTf32, f16), name};
  return {RuleOf(is_wgmma ? kSm90 : kSm90MmaFp8, kFp8, f16), name};
}

struct GoldenInstructions {
  const char* file;
  size_t instructions;
};

class MmaGoldenTest : public ::testing::TestWithParam<GoldenInstructions> {};

TEST_P(MmaGoldenTest, ScalarStepsGiveTheBitsOfTheDevice) {
  std::map<std::string, int> count;
  for (const std::string& line : LinesOf(GetParam().file)) {
    const std::vector<std::string> words = WordsOf(line);
    ASSERT_EQ(words.size(), 6u);
    const uint32_t c = CodesOf(words[4])[0], d = CodesOf(words[5])[0];
    const auto [rule, operands] = InstructionOf(words[0]);
    ASSERT_EQ(Expected(rule, operands, words[2], words[3], c), d) << line;
    ++count[words[0]];
  }
  EXPECT_EQ(count.size(), GetParam().instructions);
  for (const auto& [name, lines] : count) EXPECT_GE(lines, 30) << name;
}

INSTANTIATE_TEST_SUITE_P(Files, MmaGoldenTest,
                         ::testing::Values(GoldenInstructions{"golden_mma_sync.txt", 9},
                                           GoldenInstructions{"golden_mma_sparse.txt", 10}));

}  // namespace QG_TEST_FILE
}  // namespace quantgate

// Single mma.sync instructions as an H200 computed them (tests/data/golden_mma_sync.txt) against
// the scalar steps of the registry's rules.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "kernels/gemm/rules.h"
#include "kernels/numerics/fused_rule.h"
#include "tests/gemm/scaled_vectors.h"

namespace quantgate {
namespace {

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

uint32_t Expected(const std::string& name, const std::string& a, const std::string& b, uint32_t c) {
  using enum ArithmeticFamily;
  using enum OperandClass;
  if (name == "f16->f32") return Instruction<Float16, Float16>(RuleOf(kSm90, kF16, false), a, b, c);
  if (name == "f16->f16") return Instruction<Float16, Float16>(RuleOf(kSm90, kF16, true), a, b, c);
  if (name == "bf16->f32") {
    return Instruction<BFloat16, BFloat16>(RuleOf(kSm90, kBF16, false), a, b, c);
  }
  if (name == "tf32->f32") {
    return Instruction<Float32, Float32>(RuleOf(kSm90, kTf32, false), a, b, c);
  }
  const FusedRule rule = RuleOf(kSm90MmaFp8, kFp8, name.ends_with("f16"));
  if (name.starts_with("e4m3e5m2")) return Instruction<E4M3, E5M2>(rule, a, b, c);
  if (name.starts_with("e4m3")) return Instruction<E4M3, E4M3>(rule, a, b, c);
  return Instruction<E5M2, E5M2>(rule, a, b, c);
}

TEST(MmaGoldenTest, ScalarStepsGiveTheBitsOfTheDevice) {
  std::map<std::string, int> count;
  for (const std::string& line : LinesOf("golden_mma_sync.txt")) {
    const std::vector<std::string> words = WordsOf(line);
    ASSERT_EQ(words.size(), 6u);
    const uint32_t c = CodesOf(words[4])[0], d = CodesOf(words[5])[0];
    ASSERT_EQ(Expected(words[0], words[2], words[3], c), d) << line;
    ++count[words[0]];
  }
  EXPECT_EQ(count.size(), 9u);
  for (const auto& [name, lines] : count) EXPECT_GE(lines, 30) << name;
}

}  // namespace
}  // namespace quantgate

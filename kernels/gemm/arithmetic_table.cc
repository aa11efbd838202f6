#include <string>
#include <vector>

#include "kernels/gemm/models/rules.h"

namespace quantgate {
namespace {

using enum ArithmeticFamily;
using enum OperandClass;
using enum RuleEvidence;

/// A rule of steps of L products with F and outman, chained over k. An instruction of two chained
/// halves is two steps.
constexpr FusedRule Chained(int step, int align_bits, int out_mantissa = 23) {
  FusedRule rule;
  rule.step = step;
  rule.align_bits = align_bits;
  rule.out_mantissa = out_mantissa;
  return rule;
}

/// The rule of mma.sync m16n8k32 FP8: two chained fp16 instructions, whose sum is added to C at the
/// end.
constexpr FusedRule EmulatedFp8() {
  FusedRule rule = Chained(16, 25);
  rule.order = ProductOrder::kPairsOfFour;
  rule.promotion = Promotion::kAdd;
  rule.promote_k = 32;
  return rule;
}

/// The rule of mxf4nvf4 k64: steps of 4 groups of 16.
constexpr FusedRule Nvfp4() {
  FusedRule rule = Chained(64, 35);
  rule.group = 16;
  return rule;
}

std::vector<OperandRule> AmpereRules() {
  return {{kF16, Chained(8, 24), true, kRecorded},
          {kBF16, Chained(8, 24), false, kRecorded},
          {kTf32, Chained(4, 24), false, kRead}};
}

std::vector<OperandRule> AdaRules() {
  std::vector<OperandRule> rules = AmpereRules();
  rules.push_back({kFp8, Chained(16, 13, 13), true, kRecorded});
  return rules;
}

/// `plain` is the evidence for the rules of bf16 and fp16.
std::vector<OperandRule> BlackwellRules(RuleEvidence plain) {
  return {{kF16, Chained(16, 25), true, plain},
          {kBF16, Chained(16, 25), false, plain},
          {kTf32, Chained(8, 25), false, kRead},
          {kFp8, Chained(32, 25), true, kRead},
          {kF8F6F4, Chained(32, 25), true, kRead},
          {kFp8Block, Chained(32, 25), false, kRead},
          {kFp8Group, Chained(32, 25), false, kRead},
          {kMx32, Chained(32, 25), false, kRead},
          {kNv16, Nvfp4(), false, kRead}};
}

std::vector<ArithmeticRow> MakeTable() {
  const std::string read = "the rule of a public model, from reading it; not measured here";
  const std::string recorded =
      "the rule of a public model that its authors checked against recordings of the hardware; not "
      "measured here";
  const std::string recorded_but_tf32 = recorded + "; tf32 from reading the model";
  return {
      {kSm70,
       {{"sm70", "Volta, mma m8n8k4: fp16 in fused steps of 4 products aligned to 23 bits",
         "docs/tensor-cores.md section 2", recorded, false}},
       {{kF16, Chained(4, 23), true, kRecorded}}},
      {kSm75,
       {{"sm75", "Turing, mma m16n8k8: fp16 in steps of 8 aligned to 24 bits",
         "docs/tensor-cores.md section 2", read, false}},
       {{kF16, Chained(8, 24), true, kRead}}},
      {kSm80,
       {{"sm80",
         "Ampere (A100), mma.sync: fp16 and bf16 in steps of 8, tf32 of 4, aligned to 24 bits",
         "docs/tensor-cores.md section 2", recorded_but_tf32, false}},
       AmpereRules()},
      {kSm86,
       {{"sm86", "Ampere (A2, RTX 30): the rules of sm80", "docs/tensor-cores.md section 2",
         recorded_but_tf32, false}},
       AmpereRules()},
      {kSm89,
       {{"sm89",
         "Ada, mma.sync: as sm80, and FP8 in steps of 16 aligned to 13 bits, results of 13 bits",
         "docs/tensor-cores.md section 2", recorded_but_tf32, false}},
       AdaRules()},
      {kSm90,
       {{"sm90",
         "Hopper tensor cores as cuBLASLt drives them: bf16, fp16 and tf32 in fused steps of 16, "
         "16 and 8 products aligned to 25 bits; FP8 in steps of 32 aligned to 13 bits, accumulated "
         "as the recipe says, always split under scales of 128. Parameters: fast, split, splitk=N",
         "docs/tensor-cores.md sections 1 to 3",
         "measured: H200, cuBLASLt 13.1.0, 2026-11-20, 7.84e10 outputs compared, 0 differing, and "
         "3.39e10 of k to 8192; scales of 128: 1.84e10, 0 differing (tests/hardware/README.md). "
         "tf32 only where k is a multiple of 8 and without split-K; algorithms that differ: "
         "docs/tensor-cores.md section 3.6",
         false},
        {"sm90:fast", "sm90 with FP8 accumulated in the tensor core alone (FAST_ACCUM on)",
         "docs/tensor-cores.md section 3.1",
         "the same measurement: 3.3e10 FP8 outputs compared, 0 differing", false},
        {"sm90:split", "sm90 with FP8 sums promoted to fp32 every 128 of K (FAST_ACCUM off)",
         "docs/tensor-cores.md section 3.1",
         "the same measurement: 2.2e10 FP8 outputs compared, 0 differing", false}},
       {{kF16, Chained(16, 25), false, kMeasured},
        {kBF16, Chained(16, 25), false, kMeasured},
        {kTf32, Chained(8, 25), false, kMeasured},
        {kFp8, Chained(32, 13, 13), false, kMeasured},
        {kFp8Block, Chained(32, 13, 13), false, kMeasured}}},
      {kSm90MmaFp8,
       {{"sm90_mma_fp8",
         "Hopper's mma.sync m16n8k32 FP8, compiled to fp16 instructions: two chained steps of 16 "
         "fp16 numbers aligned to 25 bits (of each 4 k, the first two, then the others), added to "
         "the accumulator in fp32",
         "docs/tensor-cores.md section 2",
         "measured: H200, CUDA 13.0, 2026-11-20, 7.7e7 outputs of single instructions compared, 0 "
         "differing (tests/hardware/README.md); chains of instructions follow from them",
         false}},
       {{kFp8, EmulatedFp8(), true, kMeasured}}},
      {kSm100,
       {{"sm100",
         "Blackwell, tcgen05: bf16 and fp16 in steps of 16, FP8, FP6 and FP4 in steps of 32, also "
         "under E8M0 scales of 32, aligned to 25 bits; NVFP4 in steps of 4 exact groups of 16 "
         "aligned to 35 bits",
         "docs/tensor-cores.md sections 2 and 3.5",
         "rules of a public model: bf16 and fp16 checked by its authors against recordings of the "
         "hardware, the rest from reading it; not measured here",
         false}},
       BlackwellRules(kRecorded),
       true},
      {kSm100MmaFp8,
       {{"sm100_mma_fp8",
         "Blackwell's (B200) mma.sync m16n8k32 FP8, also sm100:mma: the rule of sm90_mma_fp8",
         "docs/tensor-cores.md section 2", recorded, false}},
       {{kFp8, EmulatedFp8(), true, kRecorded}}},
      {kSm120,
       {{"sm120", "Blackwell (RTX), mma.sync: the rules of sm100",
         "docs/tensor-cores.md sections 2 and 3.5", read, false}},
       BlackwellRules(kRead),
       true},
      {kExact,
       {{"exact", "the real-number result, rounded once; does not depend on any order",
         "docs/tensor-cores.md section 5",
         "exact rational arithmetic (tests/data/exact_dots.txt, tests/data/exact_scaled_dots.txt)",
         false}},
       {}},
      {kFp32,
       {{"fp32", "sequential fp32 fused multiply-add over k, from zero, on decoded operands",
         "IEEE 754; docs/tensor-cores.md section 5",
         "by definition; cuBLASLt's algorithm 55, what COMPUTE_32F gets, gives the same bits (the "
         "measurement of sm90)",
         false}},
       {}},
      {kInt32,
       {{"int32",
         "operands of 8-bit integers: sums of products without rounding (below 2^31 those of an "
         "int32 accumulator, which wraps beyond), then scales, a's first",
         "docs/quantizers.md section 11.4",
         "integers and rationals of Python; torchao's linear with f32 activations gives the same "
         "bits",
         false}},
       {}},
      {kCublasLt,
       {{"cublaslt",
         "the hardware, through cuBLASLt: the subject under test. The CUDA engine only. "
         "Parameters: fast, split, splitk=any (algorithms that split K too), algorithm=N (the N-th "
         "that the heuristic returns)",
         "cuBLASLt's documentation", "it is the hardware", true}},
       {}},
  };
}

}  // namespace

const std::vector<ArithmeticRow>& ArithmeticTable() {
  static const auto& table = *new std::vector<ArithmeticRow>(MakeTable());
  return table;
}

const ArithmeticRow* FindArithmetic(ArithmeticFamily family) {
  for (const ArithmeticRow& row : ArithmeticTable()) {
    if (row.family == family) return &row;
  }
  return nullptr;
}

std::string_view ArithmeticFamilyName(ArithmeticFamily family) {
  const ArithmeticRow* row = FindArithmetic(family);
  return row == nullptr ? "auto" : row->name();
}

bool IsTensorCore(ArithmeticFamily family) {
  const ArithmeticRow* row = FindArithmetic(family);
  return row != nullptr && !row->rules.empty();
}

const std::vector<ArithmeticDescription>& AllArithmetics() {
  static const auto& all = *[] {
    auto* list = new std::vector<ArithmeticDescription>;
    for (const ArithmeticRow& row : ArithmeticTable()) {
      list->insert(list->end(), row.descriptions.begin(), row.descriptions.end());
    }
    return list;
  }();
  return all;
}

const std::vector<ArchitectureRule>& AllArchitectureRules() {
  static const auto& all = *[] {
    auto* list = new std::vector<ArchitectureRule>;
    for (const ArithmeticRow& row : ArithmeticTable()) {
      for (const OperandRule& rule : row.rules) list->push_back({rule, row.family});
    }
    return list;
  }();
  return all;
}

}  // namespace quantgate

// fp8_block against vectors of an independent implementation
// (tests/vectors/fp8_block_reference.py): codes, scales and dequantized values of both directions,
// together and each alone, on every instruction set.
#include <gtest/gtest.h>

#include "tests/quantize/vector_tensors.h"

namespace quantgate {
namespace {

using testing::Digest64;

/// Words of a case: NAME SOURCE ELEMENT BLOCK_DIM POW2 EPS RULE ROUNDING OVERFLOW, then three
/// digests per direction.
constexpr size_t kDigestsBegin = 9;

void ExpectCopy(const QuantizedTensor& quantized, Usage usage,
                const std::vector<std::string>& words, const ExecutionContext& context) {
  SCOPED_TRACE(UsageName(usage));
  const size_t at = kDigestsBegin + (usage == Usage::kColumnwise ? 3 : 0);
  const QuantizedCopy& copy = *quantized.copy(usage);
  EXPECT_EQ(Digest64({copy.data}), words[at]) << "codes";
  EXPECT_EQ(Digest64({copy.scale_inv}), words[at + 1]) << "scale_inv";
  if (quantized.usages() == Usages{true, true}) {
    EXPECT_EQ(testing::ValuesDigest(quantized, usage, context), words[at + 2]) << "values";
  }
}

class Fp8BlockVectors : public ::testing::TestWithParam<ExecutionContext> {};

TEST_P(Fp8BlockVectors, CodesScalesAndValues) {
  static const testing::VectorFile vectors = testing::ReadVectors("fp8_block_vectors.txt");
  ASSERT_GT(vectors.cases.size(), 1000u);
  const ExecutionContext& context = GetParam();
  for (const std::vector<std::string>& words : vectors.cases) {
    std::string text;
    for (size_t i = 0; i < kDigestsBegin; ++i) text += words[i] + " ";
    SCOPED_TRACE(text);
    const Tensor& source = vectors.tensors.at(words[0] + " " + words[1]);
    for (const Usages usages : {Usages{true, true}, Usages{true, false}, Usages{false, true}}) {
      const auto quantized =
          QuantizeCpu(source, testing::Fp8BlockQuantizer(words), usages, {}, context);
      ASSERT_TRUE(quantized.ok()) << quantized.status();
      EXPECT_EQ(quantized->usages(), usages);
      if (usages.rowwise) ExpectCopy(*quantized, Usage::kRowwise, words, context);
      if (usages.columnwise) ExpectCopy(*quantized, Usage::kColumnwise, words, context);
    }
    if (HasFailure()) return;  // The first of a thousand cases says enough.
  }
}

INSTANTIATE_TEST_SUITE_P(EveryPath, Fp8BlockVectors, ::testing::ValuesIn(testing::EveryPath()),
                         [](const auto& path) { return testing::PathName(path.param); });

}  // namespace
}  // namespace quantgate

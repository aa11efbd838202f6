// fp8_block, fp8_rowwise and mxfp8 against vectors of independent implementations
// (tests/vectors/fp8_block_reference.py and mxfp8_reference.py): codes, scales and dequantized
// values of both directions, together and each alone, on every instruction set.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/quantize/vector_tensors.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::Digest64;
using testing::ValuesDigest;
using testing::VectorFile;

void ExpectCopy(const QuantizedTensor& quantized, Usage usage, const std::string* digests,
                const ExecutionContext& context) {
  SCOPED_TRACE(UsageName(usage));
  const QuantizedCopy& copy = *quantized.copy(usage);
  EXPECT_EQ(Digest64({copy.data}), digests[0]) << "codes";
  EXPECT_EQ(Digest64({copy.scale_inv}), digests[1]) << "scale_inv";
  if (quantized.usages() == Usages{true, true}) {
    EXPECT_EQ(ValuesDigest(quantized, usage, context), digests[2]) << "values";
  }
}

/// Expects the codes, scales and dequantized values of both directions of every case. The first two
/// words of a case are the source, those before `digests_begin` the rules that `quantizer_of`
/// reads, then come three digests per direction. Stops after the first case that fails.
void ExpectBlockVectors(const VectorFile& vectors, size_t digests_begin,
                        Quantizer (*quantizer_of)(const std::vector<std::string>& words),
                        const ExecutionContext& context) {
  for (const std::vector<std::string>& words : vectors.cases) {
    ASSERT_EQ(words.size(), digests_begin + 6);
    std::string text;
    for (size_t i = 0; i < digests_begin; ++i) text += words[i] + " ";
    SCOPED_TRACE(text);
    const Tensor& source = vectors.tensors.at(words[0] + " " + words[1]);
    for (const Usages usages : {Usages{true, true}, Usages{true, false}, Usages{false, true}}) {
      const auto quantized = QuantizeCpu(source, quantizer_of(words), usages, {}, context);
      ASSERT_TRUE(quantized.ok()) << quantized.status();
      EXPECT_EQ(quantized->usages(), usages);
      const std::string* digests = &words[digests_begin];
      if (usages.rowwise) ExpectCopy(*quantized, Usage::kRowwise, digests, context);
      if (usages.columnwise) ExpectCopy(*quantized, Usage::kColumnwise, digests + 3, context);
    }
    if (::testing::Test::HasFailure()) return;  // The first of a thousand cases says enough.
  }
}

class BlockVectors : public ::testing::TestWithParam<ExecutionContext> {};

TEST_P(BlockVectors, CodesScalesAndValuesOfFp8Block) {
  static const VectorFile vectors = testing::ReadVectors("fp8_block_vectors.txt");
  ASSERT_GT(vectors.cases.size(), 1000u);
  // NAME SOURCE ELEMENT BLOCK_DIM POW2 EPS RULE ROUNDING OVERFLOW
  ExpectBlockVectors(vectors, 9, testing::Fp8BlockQuantizer, GetParam());
}

TEST_P(BlockVectors, CodesScalesAndValuesOfFp8Rowwise) {
  static const VectorFile vectors = testing::ReadVectors("fp8_rowwise_vectors.txt");
  ASSERT_GT(vectors.cases.size(), 500u);
  // NAME SOURCE ELEMENT BLOCK_DIM POW2 EPS RULE ROUNDING OVERFLOW
  ExpectBlockVectors(vectors, 9, testing::Fp8RowwiseQuantizer, GetParam());
}

TEST_P(BlockVectors, CodesScalesAndValuesOfMxfp8) {
  static const VectorFile vectors = testing::ReadVectors("mxfp8_vectors.txt");
  ASSERT_GT(vectors.cases.size(), 1000u);
  // NAME SOURCE ELEMENT BLOCK_DIM RULE ROUNDING OVERFLOW
  ExpectBlockVectors(vectors, 7, testing::Mxfp8Quantizer, GetParam());
}

INSTANTIATE_TEST_SUITE_P(EveryPath, BlockVectors, ::testing::ValuesIn(testing::EveryPath()),
                         [](const auto& path) { return testing::PathName(path.param); });

}  // namespace QG_TEST_FILE
}  // namespace quantgate

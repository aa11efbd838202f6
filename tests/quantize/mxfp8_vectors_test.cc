// mxfp8 against vectors of an independent implementation
// (tests/vectors/mxfp8_reference.py): codes, scales and dequantized values of both directions,
// together and each alone, on every instruction set.
#include <gtest/gtest.h>

#include "tests/quantize/cpu/block_vectors.h"

namespace quantgate {
namespace {

/// Words of a case: NAME SOURCE ELEMENT BLOCK_DIM RULE ROUNDING OVERFLOW, then three digests per
/// direction.
constexpr size_t kDigestsBegin = 7;

class Mxfp8Vectors : public ::testing::TestWithParam<ExecutionContext> {};

TEST_P(Mxfp8Vectors, CodesScalesAndValues) {
  static const testing::VectorFile vectors = testing::ReadVectors("mxfp8_vectors.txt");
  ASSERT_GT(vectors.cases.size(), 1000u);
  testing::ExpectBlockVectors(vectors, kDigestsBegin, testing::Mxfp8Quantizer, GetParam());
}

INSTANTIATE_TEST_SUITE_P(EveryPath, Mxfp8Vectors, ::testing::ValuesIn(testing::EveryPath()),
                         [](const auto& path) { return testing::PathName(path.param); });

}  // namespace
}  // namespace quantgate

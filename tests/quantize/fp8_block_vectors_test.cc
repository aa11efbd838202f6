// fp8_block against vectors of an independent implementation
// (tests/vectors/fp8_block_reference.py): codes, scales and dequantized values of both directions,
// together and each alone, on every instruction set.
#include <gtest/gtest.h>

#include "tests/quantize/cpu/block_vectors.h"

namespace quantgate {
namespace {

/// Words of a case: NAME SOURCE ELEMENT BLOCK_DIM POW2 EPS RULE ROUNDING OVERFLOW, then three
/// digests per direction.
constexpr size_t kDigestsBegin = 9;

class Fp8BlockVectors : public ::testing::TestWithParam<ExecutionContext> {};

TEST_P(Fp8BlockVectors, CodesScalesAndValues) {
  static const testing::VectorFile vectors = testing::ReadVectors("fp8_block_vectors.txt");
  ASSERT_GT(vectors.cases.size(), 1000u);
  testing::ExpectBlockVectors(vectors, kDigestsBegin, testing::Fp8BlockQuantizer, GetParam());
}

INSTANTIATE_TEST_SUITE_P(EveryPath, Fp8BlockVectors, ::testing::ValuesIn(testing::EveryPath()),
                         [](const auto& path) { return testing::PathName(path.param); });

}  // namespace
}  // namespace quantgate

// Every one of the 2^32 bit patterns of a master comes back from its two halves.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

#include "kernels/ops/optimizer/optimizer.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr int64_t kPiece = int64_t{1} << 22;

/// Patterns first, first + 1, ... of one piece.
Tensor Patterns(uint32_t first) {
  Tensor master = *Tensor::Allocate(DType::kF32, {kPiece});
  for (int64_t i = 0; i < kPiece; ++i) {
    master.as<uint32_t>()[i] = first + static_cast<uint32_t>(i);
  }
  return master;
}

TEST(SplitMaster, EveryPatternComesBack) {
  for (uint64_t first = 0; first < uint64_t{1} << 32; first += kPiece) {
    const Tensor master = Patterns(static_cast<uint32_t>(first));
    const SplitTensor split = *SplitMasterCpu(master, {});
    const Tensor joined = *JoinMasterCpu(split, {});
    ASSERT_EQ(std::memcmp(master.data(), joined.data(), master.byte_size()), 0)
        << "from pattern " << first;
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

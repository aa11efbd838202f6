// Operands for tests of overlapped calls, and the expected results, which are computed without
// overlap: from whole tensors joined by hand, GEMMs of the whole, and sums written out.
#pragma once

#include <string>
#include <vector>

#include "kernels/comm/overlap/overlap.h"
#include "tests/comm/ranks.h"

namespace quantgate {

enum class Payload { kBf16, kFp8, kMxfp8 };
inline constexpr Payload kPayloads[] = {Payload::kBf16, Payload::kFp8, Payload::kMxfp8};
std::string PayloadName(Payload payload);

/// The number of rows of each of `ranks` ranks: equal for all and permitted for the payload.
std::vector<int64_t> EqualRows(Payload payload, int ranks);

/// An operand [rows][k] whose values depend on `seed`, and whose sums have to be rounded.
GemmOperand MakeOperand(Payload payload, int64_t rows, int64_t k, int seed);
/// A GEMM of two such operands with a bf16 output.
GemmDesc MakeGemm(Payload payload, int64_t m, int64_t n, int64_t k, int seed);
/// A k and n that the payload permits.
int64_t WidthOf(Payload payload);

/// The identity, f32 [n][n].
Tensor Identity(int64_t n);
/// The shards of all ranks end to end.
Tensor Joined(const std::vector<Tensor>& parts);
/// A GEMM with the identity, whose partial products have sums that depend on the order.
GemmDesc OrderSensitiveGemm(int rank, int64_t m, int64_t n);

/// The group, the buffers and the Overlap of one rank in a test.
struct OverlapRank {
  explicit OverlapRank(Rank& rank, OverlapOptions options = {.keeps_timelines = true});

  ProcessGroup& group;
  OverlapBuffers buffers;
  std::unique_ptr<Overlap> overlap;
};

}  // namespace quantgate

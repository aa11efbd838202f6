// Operands for tests of overlapped calls, and what they give without any overlap: whole tensors put
// together by hand, GEMMs of the whole, and sums written out.
#pragma once

#include <string>
#include <vector>

#include "kernels/comm/overlap/overlap.h"
#include "tests/comm/ranks.h"

namespace quantgate {

enum class Payload { kBf16, kFp8, kMxfp8 };
inline constexpr Payload kPayloads[] = {Payload::kBf16, Payload::kFp8, Payload::kMxfp8};
std::string PayloadName(Payload payload);

/// Rows that each of `ranks` has: as many for all, what the payload permits.
std::vector<int64_t> EqualRows(Payload payload, int ranks);

/// An operand [rows][k] whose values depend on `seed`; sums of them are rounded.
GemmOperand MakeOperand(Payload payload, int64_t rows, int64_t k, int seed);
/// A GEMM of both, to bf16.
GemmDesc MakeGemm(Payload payload, int64_t m, int64_t n, int64_t k, int seed);
/// k and n that suit it.
int64_t WidthOf(Payload payload);

/// f32 [n][n].
Tensor Identity(int64_t n);
/// The shards of all ranks end to end.
Tensor Joined(const std::vector<Tensor>& parts);
/// A GEMM by the identity, whose partial sums are numbers on which orders differ.
GemmDesc OrderSensitiveGemm(int rank, int64_t m, int64_t n);

/// One rank's end in a test.
struct OverlapRank {
  explicit OverlapRank(Rank& rank, OverlapOptions options = {.keeps_timelines = true});

  ProcessGroup& group;
  OverlapBuffers buffers;
  std::unique_ptr<Overlap> overlap;
};

}  // namespace quantgate

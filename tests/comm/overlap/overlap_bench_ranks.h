// For overlap_cuda_bench: ranks on a GPU each, one GEMM of a tensor-parallel layer on each of them,
// and how long a way to compute it and to communicate takes.
#pragma once

#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "kernels/comm/group/world.h"
#include "kernels/comm/overlap/overlap.h"

namespace quantgate {

/// Of the GEMM of each rank: y [tokens][n] = x [tokens][k] w [n][k]^T, cuBLASLt's.
struct BenchShape {
  int64_t tokens = 0, n = 0, k = 0;
};

/// What a rank has of it. x is divided by rows where it is gathered.
struct BenchRank {
  GemmDesc whole;     ///< All rows of x.
  GemmOperand shard;  ///< This rank's.
  Tensor partial;     ///< What `whole` gives.
  std::unique_ptr<OverlapBuffers> buffers;
  std::unique_ptr<Overlap> overlap;        ///< Keeps no timelines.
  std::unique_ptr<Overlap> timed_overlap;  ///< Keeps them.
};

/// What one call gives: a tensor whose bits are compared, and what the result says of itself.
struct BenchOutput {
  Tensor tensor;
  std::string note;
  OverlapTimeline timeline;
};

/// A way to do the GEMM, the communication or both.
struct BenchWay {
  enum class Kind { kGemm, kCommunication, kBoth };
  std::string name;
  Kind kind = Kind::kBoth;
  bool by_copies = false;  ///< Collectives are copies between peers, not NCCL's.
  std::function<absl::StatusOr<BenchOutput>(Rank& rank, BenchRank& state, Overlap& overlap)> run;
};

/// The program has nothing to say after an error.
inline void DieUnlessOk(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << "\n";
  std::exit(1);
}
template <typename T>
T ValueOrDie(absl::StatusOr<T> value) {
  DieUnlessOk(value.status());
  return *std::move(value);
}

class BenchRanks {
 public:
  /// On GPUs 0 to size - 1. Exits where they cannot be had.
  explicit BenchRanks(int size);
  ~BenchRanks();

  int size() const { return static_cast<int>(engines_.size()); }
  /// Device, driver, cuBLASLt and NCCL.
  std::string Text() const;

  /// Operands of normal numbers in bf16, or as fp8_current's codes of one scale for all ranks.
  void Make(const BenchShape& shape, bool is_fp8);
  void Drop();
  /// Seconds of each of `calls` calls in a row after a few that warm up: CUDA events around each on
  /// the rank's stream, those of the slowest rank. The host is at most two calls ahead.
  std::vector<double> TimeCalls(const BenchWay& way, int calls);
  /// What one call gives on each rank.
  std::vector<BenchOutput> RunOnce(const BenchWay& way, bool keeps_timelines);
  /// The fingerprints of tensors, one of each rank.
  std::string FingerprintsOf(const std::vector<BenchOutput>& outputs);

 private:
  void RunOnRanks(const BenchWay& way, const std::function<absl::Status(Rank&)>& body);

  std::vector<std::unique_ptr<Engine>> engines_;
  std::unique_ptr<World> nccl_, copies_;
  std::vector<BenchRank> ranks_;
};

}  // namespace quantgate

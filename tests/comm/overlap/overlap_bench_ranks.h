// For overlap_cuda_bench: ranks on a GPU each, one GEMM of a tensor-parallel layer on each of them,
// and the time that a way to compute it and to communicate takes.
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

/// The shape of the GEMM of each rank, by cuBLASLt: y [tokens][n] = x [tokens][k] w [n][k]^T.
struct BenchShape {
  int64_t tokens = 0, n = 0, k = 0;
};

/// The operands of one rank. Where x is gathered, each rank has a shard of its rows.
struct BenchRank {
  GemmDesc whole;     ///< The GEMM with all rows of x.
  GemmOperand shard;  ///< This rank's rows of x.
  Tensor partial;     ///< The result of `whole`.
  std::unique_ptr<OverlapBuffers> buffers;
  std::unique_ptr<Overlap> overlap;        ///< Keeps no timelines.
  std::unique_ptr<Overlap> timed_overlap;  ///< Keeps timelines.
};

/// The result of one call: a tensor whose bits are compared, with its note and timeline.
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

/// Exits with the error, after which the program cannot measure anything.
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
  /// Opens ranks on GPUs 0 to size - 1. Exits where they are not available.
  explicit BenchRanks(int size);
  ~BenchRanks();

  int size() const { return static_cast<int>(engines_.size()); }
  /// Names the device, the driver, cuBLASLt and NCCL.
  std::string Text() const;

  /// Makes the operands: normally distributed numbers in bf16, or codes of fp8_current with one
  /// scale for all ranks.
  void Make(const BenchShape& shape, bool is_fp8);
  void Drop();
  /// The seconds that each of `calls` consecutive calls takes on the slowest rank, after a few
  /// calls to warm up, by CUDA events around each call on the rank's stream. The host is at most
  /// two calls ahead.
  std::vector<double> TimeCalls(const BenchWay& way, int calls);
  /// The result of one call on each rank.
  std::vector<BenchOutput> RunOnce(const BenchWay& way, bool keeps_timelines);
  /// The fingerprints of the ranks' tensors.
  std::string FingerprintsOf(const std::vector<BenchOutput>& outputs);

 private:
  void RunOnRanks(const BenchWay& way, const std::function<absl::Status(Rank&)>& body);

  std::vector<std::unique_ptr<Engine>> engines_;
  std::unique_ptr<World> nccl_, copies_;
  std::vector<BenchRank> ranks_;
};

}  // namespace quantgate

// Overlapped calls of four ranks, one for each method, in which one rank fails or hangs.
#pragma once

#include <atomic>
#include <latch>
#include <span>
#include <string>
#include <vector>

#include "kernels/comm/group/world.h"
#include "kernels/comm/overlap/overlap.h"

namespace quantgate {

inline constexpr int kOverlapRanks = 4;
inline constexpr int kTroubledRank = 1;

struct OverlapCallCase {
  const char* name;
  /// Makes the call on one rank and gives its outputs.
  absl::StatusOr<std::vector<Tensor>> (*call)(Overlap& overlap, int rank);
};
std::span<const OverlapCallCase> OverlapCallCases();

/// The failure at an operation of the troubled rank: before the call, at a GEMM, copy or sum of the
/// call, or after it.
struct OverlapTrouble {
  bool is_stuck = false;            ///< The rank hangs until all others have ended; else it fails.
  int at = -1;                      ///< The number of the operation, from 0; -1: no failure.
  std::atomic<int> operations = 0;  ///< Operations so far.
  std::latch others_have_ended{kOverlapRanks - 1};

  /// Called before each operation of the troubled rank.
  absl::Status Before();
};

/// The options of a world whose troubled rank calls trouble.Before() before each operation.
WorldOptions OptionsWith(OverlapTrouble& trouble, absl::Duration deadline);

/// Makes the call, and then a barrier in which a rank that is done waits for the others. `outputs`,
/// which may be null, receives the outputs on the host.
absl::Status CallThenMeet(const OverlapCallCase& one, Rank& rank, OverlapTrouble& trouble,
                          std::vector<Tensor>* outputs);
/// Runs CallThenMeet on every rank and gives the status of each.
std::vector<absl::Status> RunTroubled(const OverlapCallCase& one, World& world,
                                      OverlapTrouble& trouble,
                                      const Cancellation* cancellation = nullptr);
/// The outputs of all ranks of a run without a failure, as bytes.
std::string OverlapOutputs(const OverlapCallCase& one, World& world, OverlapTrouble& trouble);

}  // namespace quantgate

// Overlapped calls of four ranks, one by each method, of which one rank goes wrong on the way.
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
  /// The rank's end of the call, and what it gives.
  absl::StatusOr<std::vector<Tensor>> (*call)(Overlap& overlap, int rank);
};
std::span<const OverlapCallCase> OverlapCallCases();

/// What goes wrong at an operation of the troubled rank: before the call, at a GEMM, copy or sum of
/// it, or after it.
struct OverlapTrouble {
  bool is_stuck = false;            ///< Until all others have ended; else it dies.
  int at = -1;                      ///< The number of the operation, from 0; -1: nothing does.
  std::atomic<int> operations = 0;  ///< So far.
  std::latch others_have_ended{kOverlapRanks - 1};

  /// Before each operation of the troubled rank.
  absl::Status Before();
};

/// Options of a world whose troubled rank asks `trouble` before each operation.
WorldOptions OptionsWith(OverlapTrouble& trouble, absl::Duration deadline);

/// The call, and a barrier in which a rank that is done waits for the others. `outputs`: what it
/// gives, on the host; null: not asked for.
absl::Status CallThenMeet(const OverlapCallCase& one, Rank& rank, OverlapTrouble& trouble,
                          std::vector<Tensor>* outputs);
/// That on every rank: the status of each.
std::vector<absl::Status> RunTroubled(const OverlapCallCase& one, World& world,
                                      OverlapTrouble& trouble,
                                      const Cancellation* cancellation = nullptr);
/// The outputs of ranks that nothing goes wrong with, as bytes.
std::string OverlapOutputs(const OverlapCallCase& one, World& world, OverlapTrouble& trouble);

}  // namespace quantgate

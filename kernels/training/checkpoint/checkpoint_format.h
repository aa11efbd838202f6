// Checkpoints of sessions: one safetensors file with every tensor of the state under its name, and
// what else the state is in the file's metadata. Tensors of several ranks are whole, so that a file
// does not depend on which ranks wrote it. What cannot be joined is each rank's own, "rank0.NAME",
// and metadata "ranks" says whose; such a file goes on on the same ranks alone
// (docs/ranks.md section 9). Private to kernels/training.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/training/session_state.h"

namespace quantgate {

inline constexpr char kCheckpointVersionKey[] = "quantgate.session";
inline constexpr char kCheckpointVersion[] = "1";
inline constexpr char kCheckpointSpecKey[] = "spec";
inline constexpr char kCheckpointRecipeKey[] = "recipe";
inline constexpr char kCheckpointStateKey[] = "state";
inline constexpr char kCheckpointRanksKey[] = "ranks";

/// The file of a state of one rank whose tensors are on the host.
TensorFile WriteCheckpoint(const SessionSpec& spec, SessionState state);
/// Likewise of all ranks of a session on several.
absl::StatusOr<TensorFile> WriteCheckpointOfRanks(const SessionSpec& spec,
                                                  std::vector<SessionState> ranks);

/// The state of one rank, of which `rank` says which of spec.parallel's it is; null: there are no
/// others. Files come from untrusted hands: INVALID_ARGUMENT for one that is no checkpoint,
/// FAILED_PRECONDITION for one of another session or of other ranks.
absl::StatusOr<SessionState> ReadCheckpoint(Engine& engine, const SessionSpec& spec,
                                            const TensorFile& file, const SessionRank* rank,
                                            const Cancellation* cancellation);

}  // namespace quantgate

// Checkpoints of sessions: one safetensors file with every tensor of the state under its name, and
// the rest of the state in the file's metadata. The parts of several ranks are joined, so that a
// file does not depend on which ranks wrote it. Parts that cannot be joined are stored as
// "rank0.NAME", ..., and the metadata "ranks" describes the ranks; only the same ranks can continue
// from such a file (docs/ranks.md section 9). Private to kernels/training.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
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
/// The file of the states of all ranks, whose tensors are on the host.
absl::StatusOr<TensorFile> WriteCheckpointOfRanks(const SessionSpec& spec,
                                                  std::vector<SessionState> ranks);

/// Reads the state of one rank. A non-null `rank` says which of spec.parallel's ranks it is. Files
/// are untrusted: INVALID_ARGUMENT if it is no checkpoint, FAILED_PRECONDITION if it is that of
/// another session or of other ranks.
absl::StatusOr<SessionState> ReadCheckpoint(Engine& engine, const SessionSpec& spec,
                                            const TensorFile& file, const SessionRank* rank,
                                            const Cancellation* cancellation);

/// What a checkpoint and the session that continues from it must agree on, as canonical JSON:
/// layers, weight storage, masters, optimizer, main gradients and seed. The recipe, the arithmetic,
/// the ranks and how they divide layers, and what only Open reads are left out. Keys are sorted,
/// floats are written as their shortest decimal.
nlohmann::json SessionSpecJson(const SessionSpec& spec);

/// One line of ASCII.
std::string JsonText(const nlohmann::json& json);

/// FAILED_PRECONDITION naming the first place where the two specs differ and both values.
absl::Status CheckSameSpec(const nlohmann::json& checkpoint, const nlohmann::json& session);

}  // namespace quantgate

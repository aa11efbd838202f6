// Sessions whose copies divide what they keep of two layers or a gated MLP, whatever that is.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "tests/training/parallel/parallel_fixture.h"
#include "tests/training/same_sessions.h"

namespace quantgate {

/// Checkpoints of a trained session under the first spec, and of sessions under the others, which
/// went on from each other's; and what the last one, on ranks like the first's, is after more
/// training.
inline void ExpectSameCheckpointsElsewhere(
    Engine& engine, const std::vector<SessionSpec>& specs,
    const std::map<std::string, Tensor>& parameters,
    absl::FunctionRef<void(Session& session, uint64_t seed)> train) {
  const auto first = OpenRanks(engine, specs[0], parameters);
  ASSERT_NE(first, nullptr);
  train(*first, 300);
  absl::StatusOr<TensorFile> file = first->Checkpoint(nullptr);
  std::unique_ptr<Session> last;
  for (size_t i = 1; i < specs.size(); ++i) {
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->metadata.count("ranks"), 0u);
    auto session = RestoreSession(engine, specs[i], *file, nullptr, nullptr);
    ASSERT_TRUE(session.ok()) << i << ": " << session.status();
    last = *std::move(session);
    ExpectSameFiles(*first, *last);
    file = last->Checkpoint(nullptr);
  }
  train(*first, 310);
  train(*last, 310);
  ExpectSameFiles(*first, *last);
}

/// Layers of kNarrow columns and kWide rows, and back; kWide is twice an MLP's hidden width.
template <int64_t kNarrow, int64_t kWide>
class DividedSessions : public ::testing::TestWithParam<SessionCase> {
 protected:
  static SessionSpec SpecOf(const ParallelSpec& parallel) {
    const bool is_divided = parallel.tensor_parallel > 1;
    SessionSpec spec =
        LinearLayers(GetParam().recipe, {is_divided ? ParallelMode::kColumn : ParallelMode::kNone,
                                         is_divided ? ParallelMode::kRow : ParallelMode::kNone});
    if (GetParam().is_mlp) BecomeGatedMlp(spec);
    GetParam().Set(spec);
    spec.parallel = parallel;
    return spec;
  }
  static std::map<std::string, Tensor> Parameters() {
    if (GetParam().is_mlp) {
      return {{"fc1.gamma", Normal(1, {kNarrow})},
              {"fc1.beta", Normal(2, {kNarrow})},
              {"fc1.fc1.weight", Normal(3, {kWide, kNarrow})},
              {"fc1.fc2.weight", Normal(5, {kNarrow, kWide / 2})},
              {"fc1.fc2.bias", Normal(6, {kNarrow})}};
    }
    return {{"fc1.weight", Normal(3, {kWide, kNarrow})},
            {"fc1.bias", Normal(4, {kWide})},
            {"fc2.weight", Normal(5, {kNarrow, kWide})}};
  }
  std::unique_ptr<Session> Open(const SessionSpec& spec) {
    return OpenRanks(*engine_, spec, Parameters());
  }

  /// ExpectSameCheckpointsElsewhere, on four copies, on two, one and four again.
  void ExpectSameCheckpointsOnOtherCopies(
      absl::FunctionRef<SessionSpec(int copies)> on_copies,
      absl::FunctionRef<void(Session& session, uint64_t seed)> train) {
    ExpectSameCheckpointsElsewhere(
        *engine_, {on_copies(4), on_copies(2), on_copies(1), on_copies(4)}, Parameters(), train);
  }

  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
};

}  // namespace quantgate

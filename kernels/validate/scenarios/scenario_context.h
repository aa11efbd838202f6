// ScenarioContext: what a scenario runs on, and where it says what does not hold. Used by one
// thread.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/seeded_fault.h"
#include "kernels/comm/group/transport.h"
#include "kernels/engine/engine.h"
#include "kernels/quantize/recipe/recipe.h"
#include "kernels/validate/scenarios/oracles/check_digest.h"

namespace quantgate {

class RankPlaces;

/// One thing that does not hold: the first element of a tensor that differs, or a fact.
struct ScenarioDifference {
  std::string recipe = {};
  int64_t step = 0;                      ///< Of a training trace; 0 where there is one step.
  std::string tensor;                    ///< "x columnwise scale_inv", "dw", "status of fprop".
  std::vector<int64_t> coordinate = {};  ///< Of the first element that differs; empty: none.
  std::string subject = {};              ///< What was found: hex and decimal of an element.
  std::string expected = {};
};

/// How the ranks of a world were placed, as the world itself says.
struct RankPlacement {
  CollectiveBackend backend = CollectiveBackend::kLocal;  ///< kLocal: virtual ranks.
  std::string transport;                                  ///< "local", "nccl 2.28.9 (...)".
  friend auto operator<=>(const RankPlacement&, const RankPlacement&) = default;
};
/// The sizes of the worlds that were placed so.
using RankPlacements = std::map<RankPlacement, std::set<int>>;
void AddPlacements(const RankPlacements& more, RankPlacements& placements);

class ScenarioContext {
 public:
  /// What a run of a scenario is given. `engine` may have a fault around it; `reference` never has
  /// one, is on the CPU, and takes plain scalar code on one thread.
  struct Subjects {
    Engine& engine;
    Engine& reference;
    const SeededFaults& faults;
    const Cancellation* cancellation = nullptr;
    RankPlaces* places = nullptr;  ///< Null: every rank is virtual.
  };

  ScenarioContext(const Subjects& subjects, const Recipe& recipe);

  Engine& engine() { return subjects_.engine; }
  Engine& reference() { return subjects_.reference; }
  const SeededFaults& faults() const { return subjects_.faults; }
  const Cancellation* cancellation() const { return subjects_.cancellation; }
  const Recipe& recipe() const { return recipe_; }

  /// Of a world of so many ranks.
  CollectiveBackend RankBackend(int ranks) const;
  /// An engine for each of so many ranks, with the fault that is around engine(): lanes of it, or
  /// GPUs of their own. They live as long as the context.
  absl::StatusOr<std::vector<Engine*>> RankEngines(int ranks);
  /// As WorldOptions::communicators, of every world.
  CommunicatorCache* communicators() const;
  /// Notes a world that was made.
  void NoteWorld(int ranks, RankPlacement placement);

  /// The step that later differences are of.
  void SetStep(int64_t step) { step_ = step; }

  /// A generated tensor in host memory, and the same in the engine's.
  absl::StatusOr<Tensor> Generate(Distribution distribution, uint64_t seed, DType dtype,
                                  Shape shape, float scale = 1.0f);
  absl::StatusOr<Tensor> ToEngine(const Tensor& tensor);
  absl::StatusOr<Tensor> ToHost(const Tensor& tensor);

  /// Compares dtype, shape and every bit; `subject` may be anywhere, `expected` on the host. No
  /// value on both sides is equal.
  absl::Status ExpectSameBits(std::string_view tensor, const Tensor& subject,
                              const Tensor& expected);
  /// As above, of every part of a copy: codes, scale_inv, amax, and the facts that go with them.
  absl::Status ExpectSameCopy(std::string_view tensor, const std::optional<QuantizedCopy>& subject,
                              const std::optional<QuantizedCopy>& expected);
  void ExpectEqual(std::string_view fact, int64_t subject, int64_t expected);
  void ExpectSameFloat(std::string_view fact, float subject, float expected);  ///< By bits.
  void ExpectSameText(std::string_view fact, std::string_view subject, std::string_view expected);
  void ExpectShape(std::string_view tensor, const Shape& subject, const Shape& expected);
  /// `holds`, described by both sides where it does not.
  void Expect(bool holds, std::string_view fact, std::string_view subject,
              std::string_view expected);
  /// A call that must be refused with this code, or (kOk) must succeed.
  void ExpectCode(std::string_view call, const absl::Status& status, absl::StatusCode expected);

  /// Takes over what another context of the same scenario found.
  void Absorb(const ScenarioContext& other);
  /// A number that was measured on the way; the report says it.
  void AddNote(std::string_view note);
  /// Says that nothing can be looked at here, and why.
  void LeaveOut(std::string reason) { left_out_ = std::move(reason); }

  const std::vector<std::string>& notes() const { return notes_; }
  const RankPlacements& rank_placements() const { return rank_placements_; }
  /// Of all subjects so far: tensors with their bytes, numbers and texts; of calls the status code;
  /// of other conditions whether they hold, since their texts may be of one machine or engine.
  const CheckDigest& digest() const { return digest_; }
  const std::string& left_out() const { return left_out_; }
  int64_t checks() const { return checks_; }
  int64_t difference_count() const { return difference_count_; }
  /// The first ones.
  const std::vector<ScenarioDifference>& differences() const { return differences_; }

 private:
  void Add(ScenarioDifference difference);
  /// Counts a check, notes its subject in the digest and, where it does not hold, the difference.
  void Conclude(bool holds, std::string_view fact, std::string_view subject,
                std::string_view expected, std::string_view digested);

  const Subjects subjects_;
  const Recipe recipe_;
  std::map<CollectiveBackend, std::vector<std::unique_ptr<Engine>>> rank_engines_;
  RankPlacements rank_placements_;
  CheckDigest digest_;
  int64_t step_ = 0;
  int64_t checks_ = 0;
  int64_t difference_count_ = 0;
  std::vector<ScenarioDifference> differences_;
  std::vector<std::string> notes_;
  std::string left_out_;
};

}  // namespace quantgate

// ScenarioContext: what a scenario runs on, and where it records what does not hold. Used by one
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

/// One check that does not hold: the first differing element of a tensor, or a fact.
struct ScenarioDifference {
  std::string recipe = {};
  int64_t step = 0;                      ///< The step of a training trace; 0 if there is only one.
  std::string tensor;                    ///< "x columnwise scale_inv", "dw", "status of fprop".
  std::vector<int64_t> coordinate = {};  ///< Of the first differing element; empty for a fact.
  std::string subject = {};              ///< What was found; for an element in hex and decimal.
  std::string expected = {};
};

/// How the ranks of a world were placed, as the world itself reports.
struct RankPlacement {
  CollectiveBackend backend = CollectiveBackend::kLocal;  ///< kLocal: virtual ranks.
  std::string transport;                                  ///< "local", "nccl 2.28.9 (...)".
  friend auto operator<=>(const RankPlacement&, const RankPlacement&) = default;
};
/// The sizes of the worlds that were placed in each way.
using RankPlacements = std::map<RankPlacement, std::set<int>>;
void AddPlacements(const RankPlacements& more, RankPlacements& placements);

class ScenarioContext {
 public:
  /// What a run of a scenario is given. `engine` may have a fault around it. `reference` never has
  /// one; it is on the CPU and runs plain scalar code on one thread.
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

  /// The backend of a world of so many ranks.
  CollectiveBackend RankBackend(int ranks) const;
  /// An engine for each of so many ranks, with the fault that is around engine(): lanes of
  /// engine(), or engines on other GPUs. They live as long as the context.
  absl::StatusOr<std::vector<Engine*>> RankEngines(int ranks);
  /// WorldOptions::communicators for every world.
  CommunicatorCache* communicators() const;
  /// Records that a world was made.
  void NoteWorld(int ranks, RankPlacement placement);

  /// Sets the step of later differences.
  void SetStep(int64_t step) { step_ = step; }

  /// A generated tensor in host memory.
  absl::StatusOr<Tensor> Generate(Distribution distribution, uint64_t seed, DType dtype,
                                  Shape shape, float scale = 1.0f);
  absl::StatusOr<Tensor> ToEngine(const Tensor& tensor);
  absl::StatusOr<Tensor> ToHost(const Tensor& tensor);

  /// Compares dtype, shape and every bit. `subject` may be in any memory, `expected` must be on the
  /// host. Two absent tensors are equal.
  absl::Status ExpectSameBits(std::string_view tensor, const Tensor& subject,
                              const Tensor& expected);
  /// Compares every part of a copy: codes, scale_inv, amax, and the facts that go with them.
  absl::Status ExpectSameCopy(std::string_view tensor, const std::optional<QuantizedCopy>& subject,
                              const std::optional<QuantizedCopy>& expected);
  void ExpectEqual(std::string_view fact, int64_t subject, int64_t expected);
  void ExpectSameFloat(std::string_view fact, float subject, float expected);  ///< Compares bits.
  void ExpectSameText(std::string_view fact, std::string_view subject, std::string_view expected);
  void ExpectShape(std::string_view tensor, const Shape& subject, const Shape& expected);
  /// Checks `holds`; `subject` and `expected` describe the two sides if it does not hold.
  void Expect(bool holds, std::string_view fact, std::string_view subject,
              std::string_view expected);
  /// Checks that a call was refused with this code or, for kOk, succeeded.
  void ExpectCode(std::string_view call, const absl::Status& status, absl::StatusCode expected);

  /// Adds the findings of another context of the same scenario.
  void Absorb(const ScenarioContext& other);
  /// Adds a measurement to the report.
  void AddNote(std::string_view note);
  /// Marks the scenario as left out here, and says why.
  void LeaveOut(std::string reason) { left_out_ = std::move(reason); }

  const std::vector<std::string>& notes() const { return notes_; }
  const RankPlacements& rank_placements() const { return rank_placements_; }
  /// A digest over all subjects so far: the bytes of tensors, numbers and texts, and the status
  /// codes of calls. Of other conditions only whether they hold, since their texts may depend on
  /// machine or engine.
  const CheckDigest& digest() const { return digest_; }
  const std::string& left_out() const { return left_out_; }
  int64_t checks() const { return checks_; }
  int64_t difference_count() const { return difference_count_; }
  /// The first differences; difference_count() counts all.
  const std::vector<ScenarioDifference>& differences() const { return differences_; }

 private:
  void Add(ScenarioDifference difference);
  /// Counts a check, adds its subject to the digest and, if it does not hold, the difference.
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

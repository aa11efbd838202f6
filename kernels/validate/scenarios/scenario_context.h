// ScenarioContext: what a scenario runs on, and where it says what does not hold. Used by one
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/seeded_fault.h"
#include "kernels/engine/engine.h"
#include "kernels/quantize/recipe.h"

namespace quantgate {

/// One thing that does not hold: the first element of a tensor that differs, or a fact.
struct ScenarioDifference {
  std::string recipe = {};
  int64_t step = 0;                      ///< Of a training trace; 0 where there is one step.
  std::string tensor;                    ///< "x columnwise scale_inv", "dw", "status of fprop".
  std::vector<int64_t> coordinate = {};  ///< Of the first element that differs; empty: none.
  std::string subject = {};              ///< What was found: hex and decimal of an element.
  std::string expected = {};
};

class ScenarioContext {
 public:
  /// What a run of a scenario is given. `engine` may have a fault around it; `reference` never has
  /// one, is on the CPU, and takes plain scalar code on one thread.
  struct Subjects {
    Engine& engine;
    Engine& reference;
    const SeededFaults& faults;
    const Cancellation* cancellation = nullptr;
  };

  ScenarioContext(const Subjects& subjects, const Recipe& recipe);

  Engine& engine() { return subjects_.engine; }
  Engine& reference() { return subjects_.reference; }
  const SeededFaults& faults() const { return subjects_.faults; }
  const Cancellation* cancellation() const { return subjects_.cancellation; }
  const Recipe& recipe() const { return recipe_; }

  /// An engine for each of so many ranks: lanes of engine(), with the fault that is around it.
  /// They live as long as the context.
  absl::StatusOr<std::vector<Engine*>> RankEngines(int ranks);

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
  const std::string& left_out() const { return left_out_; }
  int64_t checks() const { return checks_; }
  int64_t difference_count() const { return difference_count_; }
  /// The first ones.
  const std::vector<ScenarioDifference>& differences() const { return differences_; }

 private:
  void Add(ScenarioDifference difference);

  const Subjects subjects_;
  const Recipe recipe_;
  std::vector<std::unique_ptr<Engine>> rank_engines_;
  int64_t step_ = 0;
  int64_t checks_ = 0;
  int64_t difference_count_ = 0;
  std::vector<ScenarioDifference> differences_;
  std::vector<std::string> notes_;
  std::string left_out_;
};

}  // namespace quantgate

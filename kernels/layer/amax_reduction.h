// Amaxes over the group that a call names for the role of an operand (docs/ranks.md
// section 4.1).
#pragma once

#include <string>

#include "kernels/comm/group/world.h"
#include "kernels/layer/linear/linear_unit.h"

namespace quantgate {

/// Whether a step quantizes anything beside what experts do. Those that expert_parallel divides are
/// whole on their ranks, so that ranks with other experts have no amaxes in common.
enum class QuantizedLayers { kAny, kExpertsAlone };

/// INVALID_ARGUMENT "PREFIXamax_groups[ROLE]: GROUP; rule" unless the ranks of `parallel` have each
/// named group, lists have every rank once, some ranks of a group have amaxes of the same tensors,
/// and the recipe has an amax of the role's whole tensor.
absl::Status CheckAmaxGroups(const std::string& prefix, const AmaxGroups& groups,
                             const ParallelSpec& parallel, const Recipe& recipe,
                             QuantizedLayers layers = QuantizedLayers::kAny);

/// That a quantization in these usages can stand under the group that is named for its role:
/// INVALID_ARGUMENT "PREFIXamax_groups[ROLE]: GROUP; rule" as CheckGroupAmaxes.
absl::Status CheckAmaxesOfRole(const std::string& prefix, const AmaxGroups& groups, TensorRole role,
                               const Quantizer& quantizer, Usages usages);

/// This rank's end of a group; null of `none`, and where none is named. NOT_FOUND where the world
/// has not made it.
absl::StatusOr<ProcessGroup*> FindAmaxGroup(Rank& rank, const AmaxGroup& group);
/// Of those that the step names.
absl::Status AttachAmaxGroups(Rank& rank, ParallelStep& step);

/// What of a step's amax groups one quantization takes.
class AmaxOfRole {
 public:
  AmaxOfRole(const StepOptions& options, TensorRole role);

  /// Whether the step names a group for the role, `none` among them.
  bool is_named() const { return group_ != nullptr && group_->is_named(); }
  /// Whether quantizing so calls the named group.
  bool IsReduced(const Quantizer& quantizer, Usages usages) const;
  /// This rank's end of that group.
  ProcessGroup& end() const { return *step_->amax_end(role_); }
  /// "reduce amax of x over data".
  std::string Stage() const;
  /// The maxima over the named group; nothing where IsReduced says no, and where `arguments` have
  /// them, as those of experts.
  absl::Status Reduce(StepRecorder& recorder, const LinearNames& names, const Tensor& source,
                      const Quantizer& quantizer, Usages usages,
                      QuantizeArguments& arguments) const;
  /// QuantizationRecord::amax_group, of a quantization with these arguments.
  std::string Text(const Quantizer& quantizer, Usages usages,
                   const QuantizeArguments& arguments) const;
  /// What an error about the scale of `name` begins with: the field, the value and the ranks whose
  /// codes are joined; `name` alone where no group is named.
  std::string NameInError(const std::string& name) const;

 private:
  const ParallelStep* const step_;
  const TensorRole role_;
  const bool is_delayed_;
  const AmaxGroup* group_ = nullptr;
};

}  // namespace quantgate

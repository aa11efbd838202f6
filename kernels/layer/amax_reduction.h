// Reducing amaxes over the group of ranks that a call names for the role of an operand
// (docs/ranks.md section 4.1).
#pragma once

#include <string>

#include "kernels/comm/group/world.h"
#include "kernels/layer/linear/linear_unit.h"

namespace quantgate {

/// Whether a step quantizes anything outside of experts. Each expert that expert_parallel divides
/// is whole on its rank, so ranks with different experts have no amaxes in common.
enum class QuantizedLayers { kAny, kExpertsAlone };

/// Checks that the ranks of `parallel` have each named group, that lists of ranks contain every
/// rank once, that some ranks of each group quantize parts of the same tensors, and that `recipe`
/// takes one amax of the role's whole tensor. Else INVALID_ARGUMENT "PREFIXamax_groups[ROLE]:
/// GROUP; rule".
absl::Status CheckAmaxGroups(const std::string& prefix, const AmaxGroups& groups,
                             const ParallelSpec& parallel, const Recipe& recipe,
                             QuantizedLayers layers = QuantizedLayers::kAny);

/// Checks that the amaxes of a quantization in these usages can be reduced over the group named for
/// `role`. Else INVALID_ARGUMENT "PREFIXamax_groups[ROLE]: GROUP; rule", with CheckGroupAmaxes'
/// rule.
absl::Status CheckAmaxesOfRole(const std::string& prefix, const AmaxGroups& groups, TensorRole role,
                               const Quantizer& quantizer, Usages usages);

/// This rank's end of `group`; null if the group is `none` or not named. NOT_FOUND if the world has
/// not made the group.
absl::StatusOr<ProcessGroup*> FindAmaxGroup(Rank& rank, const AmaxGroup& group);
/// Sets step.amax_ends to this rank's ends of the groups that step.amax_groups names.
absl::Status AttachAmaxGroups(Rank& rank, ParallelStep& step);

/// The amax group that a step names for one role, and what it does to a quantization of that role.
class RoleAmaxGroup {
 public:
  RoleAmaxGroup(const StepOptions& options, TensorRole role);

  /// Whether the step names a group for the role; `none` counts as named.
  bool is_named() const { return group_ != nullptr && group_->is_named(); }
  /// Whether a quantization with these arguments calls the named group.
  bool IsReduced(const Quantizer& quantizer, Usages usages) const;
  /// This rank's end of that group.
  ProcessGroup& end() const { return *step_->amax_end(role_); }
  /// "reduce amax of x over data".
  std::string Stage() const;
  /// Puts the maxima over the named group into `arguments`. Does nothing where IsReduced is false,
  /// or where `arguments` already have amaxes, as those of experts do.
  absl::Status Reduce(StepRecorder& recorder, const LinearNames& names, const Tensor& source,
                      const Quantizer& quantizer, Usages usages,
                      QuantizeArguments& arguments) const;
  /// QuantizationRecord::amax_group of a quantization with these arguments.
  std::string Text(const Quantizer& quantizer, Usages usages,
                   const QuantizeArguments& arguments) const;
  /// The beginning of an error about the scale of `name`: the field, the value and the ranks whose
  /// codes are joined. `name` alone if no group is named.
  std::string NameInError(const std::string& name) const;

 private:
  const ParallelStep* const step_;
  const TensorRole role_;
  const AmaxGroup* group_ = nullptr;
};

}  // namespace quantgate

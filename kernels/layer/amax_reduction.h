// Amaxes over the group that a call names for the role of an operand (docs/distributed.md
// section 4.1).
#pragma once

#include <string>

#include "kernels/comm/world.h"
#include "kernels/layer/linear_unit.h"

namespace quantgate {

/// INVALID_ARGUMENT "PREFIXamax_groups[ROLE]: GROUP; rule" unless the ranks of `parallel` have each
/// named group, lists have every rank once, and the recipe has an amax of the role's whole tensor.
absl::Status CheckAmaxGroups(const std::string& prefix, const AmaxGroups& groups,
                             const ParallelSpec& parallel, const Recipe& recipe);

/// This rank's ends of the groups that the step names. NOT_FOUND where the world has none of them.
absl::Status AttachAmaxGroups(Rank& rank, ParallelStep& step);

/// What of a step's amax groups one quantization takes.
class AmaxOfRole {
 public:
  AmaxOfRole(const StepOptions& options, TensorRole role);

  /// Whether the step names a group for the role, `none` among them.
  bool is_named() const { return group_ != nullptr && group_->is_named(); }
  /// Whether quantizing so calls the named group.
  bool IsReduced(const Quantizer& quantizer, Usages usages) const;
  /// "reduce amax of x over data".
  std::string Stage() const;
  /// The maxima over the named group; nothing where IsReduced says no.
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

// The two kinds of LayerSaved: what forward keeps for backward, and what backward keeps for a
// deferred wgrad.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/layer/layer_step.h"
#include "kernels/layer/layer_values.h"

namespace quantgate {

/// What forward keeps for backward.
class ForwardSaved : public LayerSaved {
 public:
  ForwardSaved(std::shared_ptr<const LayerPlan> plan, std::shared_ptr<const StepOptions> options)
      : plan_(std::move(plan)), options_(std::move(options)) {}

  const StepOptions& options() const override { return *options_; }
  std::vector<SavedPart> parts() override;
  std::vector<HeldOperand> operands() const override;
  int64_t bytes() const override;
  std::unique_ptr<LayerSaved> Clone() const override {
    return std::make_unique<ForwardSaved>(*this);
  }

  const std::shared_ptr<const LayerPlan>& plan() const { return plan_; }
  const std::shared_ptr<const StepOptions>& shared_options() const { return options_; }
  /// By program, by operation.
  std::vector<std::vector<OperationSaved>> operations;

 private:
  std::shared_ptr<const LayerPlan> plan_;
  std::shared_ptr<const StepOptions> options_;
};

/// What backward keeps for a deferred wgrad.
class DeferredSaved : public LayerSaved {
 public:
  explicit DeferredSaved(std::shared_ptr<const StepOptions> options)
      : options_(std::move(options)) {}

  const StepOptions& options() const override { return *options_; }
  std::vector<SavedPart> parts() override;
  std::vector<HeldOperand> operands() const override;
  int64_t bytes() const override;
  std::unique_ptr<LayerSaved> Clone() const override {
    return std::make_unique<DeferredSaved>(*this);
  }

  std::vector<LinearWgrad> wgrads;

 private:
  std::shared_ptr<const StepOptions> options_;
};

}  // namespace quantgate

// One linear step in progress: what forward leaves for backward, and the records of what was done.
// Used by one thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/layer/linear.h"
#include "kernels/layer/linear_dataflow.h"

namespace quantgate {

class LinearStep {
 public:
  LinearStep(Engine& engine, const LinearRequest& request, const Recipe& recipe,
             const Arithmetic& arithmetic, const Cancellation* cancellation,
             StageObserver on_stage);

  absl::Status Forward();
  absl::Status Backward();
  /// Waits for what is under way and reads what the report says of it.
  absl::StatusOr<LinearResult> Finish();

  const LinearDataflow& flow() const { return flow_; }

 private:
  /// An operand, and what is kept of it for backward: what was given, codes, or both where
  /// directions differ.
  struct Saved {
    Tensor original;
    QuantizedTensor codes;
    size_t record = 0;  ///< Index into result_.saved.
  };
  /// One side of a GEMM and what the report calls it.
  struct NamedOperand {
    GemmOperand operand;
    std::string source;
  };

  // linear_forward.cc
  absl::Status PrepareOperands();
  absl::Status CastWeightCopy();
  absl::StatusOr<Tensor> Fprop();
  absl::Status SaveOperands();
  void KeepOperands();
  absl::Status Save(const std::string& name, const std::string& content, Saved& saved);

  // linear_backward.cc
  absl::Status BiasGradient(const Tensor& grad_output);
  absl::Status PrepareGradOutput(const Tensor& grad_output);
  absl::Status CheckSaved();
  absl::Status Dgrad(const Tensor& grad_output);
  absl::Status Wgrad(const Tensor& grad_output);
  /// A saved operand as the high-precision GEMMs of the overrides read it.
  absl::StatusOr<NamedOperand> OverrideOperand(const std::string& name, Saved& saved,
                                               const char* dequantize_stage,
                                               const char* cast_stage);

  // linear_scales.cc
  absl::Status PrepareScales();
  absl::Status Calibrate(const char* stage, TensorRole role, const Tensor& source);
  absl::Status NoteCast(TensorRole role, const QuantizedTensor& quantized);
  absl::Status UpdateScales(const char* stage, const std::vector<TensorRole>& roles);

  // Both
  /// One direction of an operand: its codes, or high precision where that is not quantized.
  static NamedOperand DirectionOf(const std::string& name, const Saved& operand, Usage usage);
  absl::StatusOr<Tensor> CastTo(const char* stage, const Tensor& source, DType dtype);
  absl::StatusOr<QuantizedTensor> Quantize(const char* stage, TensorRole role, const Tensor& source,
                                           Usages usages);
  absl::Status StartFingerprintOf(const Saved& saved, Fingerprint SavedOperand::*moment);
  /// Runs a GEMM, records it, and returns d.
  absl::StatusOr<Tensor> RunGemm(const char* stage, GemmRole role, const std::string& output,
                                 GemmDesc desc, const NamedOperand& a, const NamedOperand& b);
  absl::Status AddOutput(const std::string& name, const Tensor& value, Shape shape);

  // linear_finish.cc
  absl::Status ReadFingerprints();
  void AddState();

  /// Runs one stage: cancellation, the observer, and its time.
  template <typename Body>
  auto Timed(const char* stage, Body body) -> decltype(body()) {
    if (cancellation_ != nullptr) {
      if (absl::Status status = cancellation_->Check(); !status.ok()) return status;
    }
    on_stage_(stage);
    std::unique_ptr<Stopwatch> stopwatch = engine_.StartStopwatch();
    auto value = body();
    if (absl::Status status = stopwatch->Stop(); !status.ok()) return status;
    stages_.push_back({stage, std::move(stopwatch)});
    return value;
  }

  Engine& engine_;
  const LinearRequest& request_;
  const Recipe& recipe_;
  const Arithmetic arithmetic_;
  const Cancellation* const cancellation_;
  const StageObserver on_stage_;
  const LinearDataflow flow_;
  const int64_t m_;
  const int64_t n_;
  const int64_t k_;

  // Read once at the end, so that nothing waits for a device between operations.
  struct RunningStage {
    const char* name;
    std::unique_ptr<Stopwatch> stopwatch;
  };
  struct RunningFingerprint {
    size_t record;  ///< Index into result_.saved.
    Fingerprint SavedOperand::*moment;
    std::vector<Tensor> parts;
  };
  std::vector<RunningStage> stages_;
  std::vector<RunningFingerprint> fingerprints_;
  /// What result_.quantizations are of, without the codes.
  std::vector<QuantizedTensor> quantized_;

  LinearResult result_;
  Saved x_;
  Saved weight_;
  /// The quantized weight that high_precision also keeps (docs/quantizers.md section 9); nothing
  /// reads it.
  Saved weight_workspace_;
  Saved grad_output_;
  std::map<TensorRole, DelayedScalingState> scales_;  ///< Delayed scaling only.
  Tensor db_;
};

GemmOperand PlainOperand(const Tensor& tensor);

/// cuBLASLt's FAST_ACCUM off for a GEMM whose M side is `a`.
bool UsesSplit(const Recipe& recipe, GemmRole role, const GemmOperand& a);

/// How a direction of a format is stored for dgrad and wgrad: transposed to TN, but for mxfp8,
/// whose columnwise codes keep the source's layout.
GemmLayout DgradLayout(const Quantizer& weight);
GemmLayout WgradLayout(const Quantizer& x);

}  // namespace quantgate

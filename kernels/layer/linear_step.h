// One linear step in progress: what forward leaves for backward, and the records of what was done.
// Used by one thread.
#pragma once

#include <chrono>
#include <string>
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
  LinearResult TakeResult() { return std::move(result_); }

  const LinearDataflow& flow() const { return flow_; }

 private:
  /// An operand kept for backward: what was given, or codes.
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
  absl::Status PrepareForwardQuantized(NamedOperand& x, NamedOperand& weight);
  absl::Status PrepareForwardHighPrecision(NamedOperand& x, NamedOperand& weight);
  absl::Status SaveOperands();
  absl::Status Save(const std::string& name, const std::string& content, Saved& saved);

  // linear_backward.cc
  absl::Status BiasGradient(const Tensor& grad_output);
  absl::Status QuantizeGradOutput(const Tensor& grad_output);
  absl::Status CheckSaved();
  absl::Status Dgrad(const Tensor& grad_output);
  absl::Status Wgrad(const Tensor& grad_output);
  /// A saved operand as the high-precision GEMMs of the overrides read it.
  absl::StatusOr<NamedOperand> HighPrecisionOperand(const std::string& name, Saved& saved,
                                                    const char* dequantize_stage,
                                                    const char* cast_stage);

  // Both
  absl::StatusOr<Tensor> CastTo(const char* stage, const Tensor& source, DType dtype);
  absl::StatusOr<QuantizedTensor> Quantize(const char* stage, TensorRole role, const Tensor& source,
                                           Usages usages);
  absl::StatusOr<Fingerprint> FingerprintOfSaved(const Saved& saved);
  /// Runs a GEMM, records it, and returns d.
  absl::StatusOr<Tensor> RunGemm(const char* stage, GemmRole role, const std::string& output,
                                 GemmDesc desc, const NamedOperand& a, const NamedOperand& b);
  absl::Status AddOutput(const std::string& name, const Tensor& value, Shape shape);

  /// Runs one stage: cancellation, the observer, and its time.
  template <typename Body>
  auto Timed(const char* stage, Body body) -> decltype(body()) {
    if (cancellation_ != nullptr) {
      if (absl::Status status = cancellation_->Check(); !status.ok()) return status;
    }
    on_stage_(stage);
    const auto begin = std::chrono::steady_clock::now();
    auto value = body();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    result_.stages.push_back({stage, elapsed.count()});
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

  LinearResult result_;
  Saved x_;
  Saved weight_;
  /// The quantized weight that high_precision also keeps (docs/quantizers.md section 9); nothing
  /// reads it.
  Saved weight_workspace_;
  QuantizedTensor grad_output_codes_;
  Tensor db_;
};

GemmOperand PlainOperand(const Tensor& tensor);

}  // namespace quantgate

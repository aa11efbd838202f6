// FaultyEngine: an engine with some operations altered, for scenarios to catch. Production code
// uses none of this.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/engine/forwarding_engine.h"

namespace quantgate {

/// The arguments of Engine::Quantize, which an alteration may change.
struct QuantizeCall {
  Tensor source;
  Quantizer quantizer;
  Usages usages;
  QuantizeArguments arguments;
  const Cancellation* cancellation = nullptr;

  absl::StatusOr<QuantizedTensor> On(Engine& engine) const {
    return engine.Quantize(source, quantizer, usages, arguments, cancellation);
  }
};
struct DequantizeCall {
  QuantizedTensor quantized;
  Usage usage = Usage::kRowwise;
  DType out = DType::kF32;
  const Cancellation* cancellation = nullptr;

  absl::StatusOr<Tensor> On(Engine& engine) const {
    return engine.Dequantize(quantized, usage, out, cancellation);
  }
};
struct ConvertScalesCall {
  Tensor scales;
  ScaleArray array;
  ScaleLayout from = ScaleLayout::kLogical;
  ScaleLayout to = ScaleLayout::kLogical;

  absl::StatusOr<Tensor> On(Engine& engine) const {
    return engine.ConvertScales(scales, array, from, to);
  }
};

/// Replacements of operations; a null one leaves its operation as it is. `engine` is the engine
/// without the fault.
struct EngineAlterations {
  std::function<absl::StatusOr<QuantizedTensor>(Engine& engine, QuantizeCall call)> quantize = {};
  std::function<absl::StatusOr<Tensor>(Engine& engine, DequantizeCall call)> dequantize = {};
  std::function<absl::Status(Engine& engine, QuantizedTensor& quantized, Usages usages,
                             const Cancellation* cancellation)>
      update_usages = {};
  std::function<absl::StatusOr<Tensor>(Engine& engine, ConvertScalesCall call)> convert_scales = {};
  std::function<absl::StatusOr<GemmResult>(Engine& engine, GemmDesc desc,
                                           const Cancellation* cancellation)>
      gemm = {};
  std::function<absl::StatusOr<Tensor>(Engine& engine, const Tensor& source, DType out,
                                       const Cancellation* cancellation)>
      cast = {};
  std::function<absl::StatusOr<Tensor>(Engine& engine, const Tensor& source, DType out,
                                       const Cancellation* cancellation)>
      column_sums = {};
  std::function<absl::StatusOr<DelayedScalingState>(
      Engine& engine, const DelayedScalingState& state, const Tensor& amax)>
      note_cast = {};
  std::function<absl::StatusOr<DelayedScalingState>(
      Engine& engine, const DelayedScalingState& state, DelayedScalingOptions options,
      float max_finite)>
      update_scale = {};
  std::function<absl::StatusOr<NormForwardResult>(Engine& engine, NormForwardDesc desc,
                                                  const Cancellation* cancellation)>
      norm_forward = {};
  std::function<absl::StatusOr<TensorAmaxes>(Engine& engine, TensorAmaxes measured)> measured = {};
  std::function<absl::StatusOr<Tensor>(Engine& engine, std::span<const Tensor> parts,
                                       const Cancellation* cancellation)>
      concatenate_columns = {};
  std::function<absl::StatusOr<Tensor>(Engine& engine, const Tensor& source,
                                       std::vector<int64_t> rows, const Cancellation* cancellation)>
      gather_rows = {};
  std::function<absl::StatusOr<Tensor>(Engine& engine, RowSums sums,
                                       const Cancellation* cancellation)>
      sum_rows = {};
  /// For OrderedSum and OrderedSumTo: changes what is summed, and how.
  std::function<void(std::vector<Tensor>& parts_in_order, SumAccumulation& accumulation)> sum = {};
};

/// `engine`, which must outlive it, with these alterations.
class FaultyEngine final : public ForwardingEngine {
 public:
  FaultyEngine(Engine& engine, EngineAlterations alterations);
  FaultyEngine(std::unique_ptr<Engine> engine, EngineAlterations alterations);

  /// `engine`, which must outlive the result, with the alterations of `model`, if it has any.
  static std::unique_ptr<Engine> AroundAs(Engine& model, Engine& engine);

  /// The lane has the same alterations.
  absl::StatusOr<std::unique_ptr<Engine>> OpenLane(LanePriority priority) override;
  absl::StatusOr<QuantizedTensor> Quantize(const Tensor& source, const Quantizer& quantizer,
                                           Usages usages, const QuantizeArguments& arguments,
                                           const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> Dequantize(const QuantizedTensor& quantized, Usage usage, DType out,
                                    const Cancellation* cancellation) override;
  absl::Status UpdateUsages(QuantizedTensor& quantized, Usages usages,
                            const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> ConvertScales(const Tensor& scales, const ScaleArray& array,
                                       ScaleLayout from, ScaleLayout to) override;
  absl::StatusOr<StartedGemm> StartGemm(const GemmDesc& desc,
                                        const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> Cast(const Tensor& source, DType out,
                              const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> ColumnSums(const Tensor& source, DType out,
                                    const Cancellation* cancellation) override;
  absl::StatusOr<DelayedScalingState> NoteCast(const DelayedScalingState& state,
                                               const Tensor& amax) override;
  absl::StatusOr<DelayedScalingState> UpdateScale(const DelayedScalingState& state,
                                                  const DelayedScalingOptions& options,
                                                  float max_finite) override;
  absl::StatusOr<NormForwardResult> NormForward(const NormForwardDesc& desc,
                                                const Cancellation* cancellation) override;
  absl::StatusOr<TensorAmaxes> MeasureAmax(const Tensor& source, const Quantizer& quantizer,
                                           Usages usages,
                                           const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> ConcatenateColumns(std::span<const Tensor> parts,
                                            const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> GatherRows(const Tensor& source, std::span<const int64_t> rows,
                                    const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> SumRows(const RowSums& sums, const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> OrderedSum(std::span<const Tensor> parts_in_order,
                                    SumAccumulation accumulation, DType out,
                                    const Cancellation* cancellation) override;
  absl::Status OrderedSumTo(std::span<const Tensor> parts_in_order, SumAccumulation accumulation,
                            const Tensor& to, const Cancellation* cancellation) override;

 private:
  const std::unique_ptr<Engine> owned_;  // What engine_ refers to if this owns it; else null.
  Engine& engine_;
  const EngineAlterations alterations_;
};

/// A copy of `tensor` in the engine's memory with its bytes altered.
absl::StatusOr<Tensor> WithAlteredBytes(Engine& engine, const Tensor& tensor,
                                        absl::FunctionRef<void(Tensor& bytes)> alter);

}  // namespace quantgate

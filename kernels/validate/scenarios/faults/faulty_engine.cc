#include "kernels/validate/scenarios/faults/faulty_engine.h"

#include <utility>

#include "kernels/base/status_macros.h"

namespace quantgate {

FaultyEngine::FaultyEngine(Engine& engine, EngineAlterations alterations)
    : ForwardingEngine(engine), engine_(engine), alterations_(std::move(alterations)) {}

FaultyEngine::FaultyEngine(std::unique_ptr<Engine> engine, EngineAlterations alterations)
    : ForwardingEngine(*engine),
      owned_(std::move(engine)),
      engine_(*owned_),
      alterations_(std::move(alterations)) {}

std::unique_ptr<Engine> FaultyEngine::AroundAs(Engine& model, Engine& engine) {
  const auto* faulty = dynamic_cast<const FaultyEngine*>(&model);
  if (faulty == nullptr) return std::make_unique<ForwardingEngine>(engine);
  return std::make_unique<FaultyEngine>(engine, faulty->alterations_);
}

absl::StatusOr<std::unique_ptr<Engine>> FaultyEngine::OpenLane(LanePriority priority) {
  QG_ASSIGN_OR_RETURN(std::unique_ptr<Engine> lane, engine_.OpenLane(priority));
  return std::make_unique<FaultyEngine>(std::move(lane), alterations_);
}

absl::StatusOr<QuantizedTensor> FaultyEngine::Quantize(const Tensor& source,
                                                       const Quantizer& quantizer, Usages usages,
                                                       const QuantizeArguments& arguments,
                                                       const Cancellation* cancellation) {
  const QuantizeCall call{source, quantizer, usages, arguments, cancellation};
  return alterations_.quantize ? alterations_.quantize(engine_, call) : call.On(engine_);
}

absl::StatusOr<Tensor> FaultyEngine::Dequantize(const QuantizedTensor& quantized, Usage usage,
                                                DType out, const Cancellation* cancellation) {
  const DequantizeCall call{quantized, usage, out, cancellation};
  return alterations_.dequantize ? alterations_.dequantize(engine_, call) : call.On(engine_);
}

absl::Status FaultyEngine::UpdateUsages(QuantizedTensor& quantized, Usages usages,
                                        const Cancellation* cancellation) {
  return alterations_.update_usages
             ? alterations_.update_usages(engine_, quantized, usages, cancellation)
             : engine_.UpdateUsages(quantized, usages, cancellation);
}

absl::StatusOr<Tensor> FaultyEngine::ConvertScales(const Tensor& scales, const ScaleArray& array,
                                                   ScaleLayout from, ScaleLayout to) {
  const ConvertScalesCall call{scales, array, from, to};
  return alterations_.convert_scales ? alterations_.convert_scales(engine_, call)
                                     : call.On(engine_);
}

absl::StatusOr<StartedGemm> FaultyEngine::StartGemm(const GemmDesc& desc,
                                                    const Cancellation* cancellation) {
  return alterations_.gemm ? ReadyGemm(alterations_.gemm(engine_, desc, cancellation))
                           : engine_.StartGemm(desc, cancellation);
}

absl::StatusOr<Tensor> FaultyEngine::Cast(const Tensor& source, DType out,
                                          const Cancellation* cancellation) {
  return alterations_.cast ? alterations_.cast(engine_, source, out, cancellation)
                           : engine_.Cast(source, out, cancellation);
}

absl::StatusOr<Tensor> FaultyEngine::ColumnSums(const Tensor& source, DType out,
                                                const Cancellation* cancellation) {
  return alterations_.column_sums ? alterations_.column_sums(engine_, source, out, cancellation)
                                  : engine_.ColumnSums(source, out, cancellation);
}

absl::StatusOr<DelayedScalingState> FaultyEngine::NoteCast(const DelayedScalingState& state,
                                                           const Tensor& amax) {
  return alterations_.note_cast ? alterations_.note_cast(engine_, state, amax)
                                : engine_.NoteCast(state, amax);
}

absl::StatusOr<DelayedScalingState> FaultyEngine::UpdateScale(const DelayedScalingState& state,
                                                              const DelayedScalingOptions& options,
                                                              float max_finite) {
  return alterations_.update_scale ? alterations_.update_scale(engine_, state, options, max_finite)
                                   : engine_.UpdateScale(state, options, max_finite);
}

absl::StatusOr<NormForwardResult> FaultyEngine::NormForward(const NormForwardDesc& desc,
                                                            const Cancellation* cancellation) {
  return alterations_.norm_forward ? alterations_.norm_forward(engine_, desc, cancellation)
                                   : engine_.NormForward(desc, cancellation);
}

absl::StatusOr<TensorAmaxes> FaultyEngine::MeasureAmax(const Tensor& source,
                                                       const Quantizer& quantizer, Usages usages,
                                                       const Cancellation* cancellation) {
  QG_ASSIGN_OR_RETURN(TensorAmaxes measured,
                      engine_.MeasureAmax(source, quantizer, usages, cancellation));
  return alterations_.measured ? alterations_.measured(engine_, std::move(measured)) : measured;
}

absl::StatusOr<Tensor> FaultyEngine::ConcatenateColumns(std::span<const Tensor> parts,
                                                        const Cancellation* cancellation) {
  return alterations_.concatenate_columns
             ? alterations_.concatenate_columns(engine_, parts, cancellation)
             : engine_.ConcatenateColumns(parts, cancellation);
}

absl::StatusOr<Tensor> FaultyEngine::GatherRows(const Tensor& source, std::span<const int64_t> rows,
                                                const Cancellation* cancellation) {
  return alterations_.gather_rows
             ? alterations_.gather_rows(engine_, source, {rows.begin(), rows.end()}, cancellation)
             : engine_.GatherRows(source, rows, cancellation);
}

absl::StatusOr<Tensor> FaultyEngine::SumRows(const RowSums& sums,
                                             const Cancellation* cancellation) {
  return alterations_.sum_rows ? alterations_.sum_rows(engine_, sums, cancellation)
                               : engine_.SumRows(sums, cancellation);
}

absl::StatusOr<Tensor> FaultyEngine::OrderedSum(std::span<const Tensor> parts_in_order,
                                                SumAccumulation accumulation, DType out,
                                                const Cancellation* cancellation) {
  std::vector<Tensor> parts(parts_in_order.begin(), parts_in_order.end());
  if (alterations_.sum) alterations_.sum(parts, accumulation);
  return engine_.OrderedSum(parts, accumulation, out, cancellation);
}

absl::Status FaultyEngine::OrderedSumTo(std::span<const Tensor> parts_in_order,
                                        SumAccumulation accumulation, const Tensor& to,
                                        const Cancellation* cancellation) {
  std::vector<Tensor> parts(parts_in_order.begin(), parts_in_order.end());
  if (alterations_.sum) alterations_.sum(parts, accumulation);
  return engine_.OrderedSumTo(parts, accumulation, to, cancellation);
}

absl::StatusOr<Tensor> WithAlteredBytes(Engine& engine, const Tensor& tensor,
                                        absl::FunctionRef<void(Tensor& bytes)> alter) {
  QG_ASSIGN_OR_RETURN(const Tensor on_host, engine.ToHost(tensor, nullptr));
  QG_ASSIGN_OR_RETURN(Tensor copy,
                      Tensor::FromBytes(tensor.dtype(), tensor.shape(), on_host.bytes()));
  alter(copy);
  return engine.ToDevice(copy, nullptr);
}

}  // namespace quantgate

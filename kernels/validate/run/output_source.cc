#include "kernels/validate/run/output_source.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/attention_core.h"
#include "kernels/layer/layer_plan.h"
#include "kernels/layer/layer_values.h"
#include "kernels/validate/plan.h"

namespace quantgate {
namespace {

/// Finds an output's name in the layer's plan, and the tensors in request and result.
class SourceFinder {
 public:
  SourceFinder(Engine& engine, const LayerRequest& request, const LayerResult& result,
               const Cancellation* cancellation)
      : engine_(engine),
        request_(request),
        result_(result),
        cancellation_(cancellation),
        plan_(*result.plan) {}

  absl::StatusOr<OutputSource> Find(const std::string& output) const;

 private:
  using Kind = OperationCall::Kind;
  using Source = std::optional<OutputSource>;

  /// The source of an output that joins parts of all experts.
  absl::StatusOr<std::vector<OutputSource>> PartsOf(const std::string& output) const;
  absl::StatusOr<Source> OfValue(const ProgramPlan& program, const std::string& output) const;
  absl::StatusOr<Source> OfGradient(const ProgramPlan& program, const std::string& output) const;
  absl::StatusOr<Source> OfParameter(const ProgramPlan& program, const std::string& output) const;
  /// An operation's contribution to the gradient of `value`, which it reads.
  absl::StatusOr<OperationCall> Contribution(const ProgramPlan& program, size_t operation) const;
  // Of attention: its output, its input's gradient, and the rotated heads between them.
  absl::StatusOr<Tensor> AsHeads(const Tensor& tensor, const AttentionDims& dims,
                                 int64_t count) const;
  absl::StatusOr<AttentionCall> CoreOf(const ProgramPlan& program,
                                       const PlannedOperation& attention) const;
  absl::StatusOr<OutputSource> OfContext(const ProgramPlan& program,
                                         const PlannedOperation& attention) const;
  absl::StatusOr<OutputSource> OfHeadsGradient(const ProgramPlan& program, size_t operation) const;
  absl::StatusOr<OutputSource> OfRotation(const PlannedOperation& attention, Tensor heads,
                                          bool is_backward) const;
  absl::StatusOr<OutputSource> OfAttentionGradient(const ProgramPlan& program,
                                                   size_t operation) const;
  absl::StatusOr<Source> OfInside(const ProgramPlan& program, const std::string& output) const;
  /// The gradient whose rows a bias gradient sums.
  absl::StatusOr<Tensor> SummedBy(const ProgramPlan& program, size_t operation) const;

  absl::StatusOr<Tensor> TensorOf(const std::string& name) const;
  absl::StatusOr<Tensor> InActivationDType(const Tensor& tensor) const {
    if (!tensor.has_value()) return tensor;
    return engine_.Cast(tensor, plan_.activation_dtype, cancellation_);
  }
  absl::StatusOr<Tensor> ValueOf(const ProgramPlan& program, int value) const {
    QG_ASSIGN_OR_RETURN(const Tensor tensor, TensorOf(program.values[value].name));
    return InActivationDType(tensor);
  }

  Engine& engine_;
  const LayerRequest& request_;
  const LayerResult& result_;
  const Cancellation* const cancellation_;
  const LayerPlan& plan_;
};

absl::StatusOr<Tensor> SourceFinder::TensorOf(const std::string& name) const {
  if (const Tensor computed = FindComputed(result_, name); computed.has_value()) return computed;
  if (const Tensor given = FindGiven(request_, name); given.has_value()) {
    return InActivationDType(given);
  }
  return absl::InternalError(absl::StrCat("the layer does not say what ", name, " is"));
}

absl::StatusOr<std::vector<OutputSource>> SourceFinder::PartsOf(const std::string& output) const {
  std::vector<OutputSource> parts;
  for (size_t i = 0; i < request_.layer.m_splits.size(); ++i) {
    const std::string part = absl::StrCat(output, ".", i);
    if (const GemmRecord* gemm = FindGemm(result_, part); gemm != nullptr) {
      parts.emplace_back().gemm = gemm;
      continue;
    }
    // This expert's bias is an operation of its own.
    QG_ASSIGN_OR_RETURN(Source source, OfValue(plan_.programs[i], part));
    if (source.has_value()) parts.push_back(*std::move(source));
  }
  return parts;
}

/// [S][B * count * D] as [B * count][S][D].
absl::StatusOr<Tensor> SourceFinder::AsHeads(const Tensor& tensor, const AttentionDims& dims,
                                             int64_t count) const {
  QG_ASSIGN_OR_RETURN(
      const Tensor by_position,
      tensor.Reinterpret(tensor.dtype(), {dims.sequence, dims.batch * count, dims.columns}));
  return engine_.SwapDims(by_position, cancellation_);
}

absl::StatusOr<AttentionCall> SourceFinder::CoreOf(const ProgramPlan& program,
                                                   const PlannedOperation& attention) const {
  const AttentionDims& dims = attention.core;
  AttentionCall core;
  core.heads = FindComputed(result_, RotatedHeadsName(attention));
  if (!core.heads.has_value()) {
    QG_ASSIGN_OR_RETURN(const Tensor qkv, ValueOf(program, attention.input));
    QG_ASSIGN_OR_RETURN(core.heads, AsHeads(qkv, dims, dims.groups * dims.members()));
  }
  core.heads_per_group = dims.queries();
  core.scale = AttentionScale(dims);
  core.mask = attention.attention.mask;
  // Without rows there is no product.
  const GemmRecord* const scores = FindGemm(result_, attention.name + ".scores");
  if (scores != nullptr) core.arithmetic = scores->result.arithmetic;
  return core;
}

absl::StatusOr<OutputSource> SourceFinder::OfContext(const ProgramPlan& program,
                                                     const PlannedOperation& attention) const {
  OutputSource source;
  OperationCall& call = source.operations.emplace_back();
  call.kind = Kind::kAttention;
  QG_ASSIGN_OR_RETURN(call.attention, CoreOf(program, attention));
  source.swaps_dims = true;
  return source;
}

absl::StatusOr<OutputSource> SourceFinder::OfHeadsGradient(const ProgramPlan& program,
                                                           size_t index) const {
  const PlannedOperation& attention = program.operations[index];
  const AttentionDims& dims = attention.core;
  QG_ASSIGN_OR_RETURN(const Tensor gradient, TensorOf(program.values[index + 1].gradient));
  OperationCall call;
  QG_ASSIGN_OR_RETURN(call.gradient, AsHeads(gradient, dims, dims.heads));
  QG_ASSIGN_OR_RETURN(call.attention, CoreOf(program, attention));
  OutputSource source;
  for (const Kind kind : {Kind::kAttentionDq, Kind::kAttentionDk, Kind::kAttentionDv}) {
    call.kind = kind;
    source.operations.push_back(call);
  }
  source.joins_heads = true;
  return source;
}

absl::StatusOr<OutputSource> SourceFinder::OfRotation(const PlannedOperation& attention,
                                                      Tensor heads, bool is_backward) const {
  const AttentionDims& dims = attention.core;
  OutputSource source;
  OperationCall& call = source.operations.emplace_back();
  call.kind = Kind::kRotary;
  RotaryDesc& rotary = call.rotary;
  QG_ASSIGN_OR_RETURN(rotary.table, MakeRotaryTable(*attention.attention.rotary_base, dims.sequence,
                                                    dims.columns, heads.dtype()));
  rotary.heads = std::move(heads);
  rotary.period = dims.members();
  rotary.rotated = dims.queries() + 1;
  rotary.is_backward = is_backward;
  return source;
}

/// The gradient of attention's input.
absl::StatusOr<OutputSource> SourceFinder::OfAttentionGradient(const ProgramPlan& program,
                                                               size_t index) const {
  const PlannedOperation& attention = program.operations[index];
  const std::string rotated = RotatedHeadsGradientName(attention);
  OutputSource source;
  if (const Tensor dheads = FindComputed(result_, rotated); dheads.has_value()) {
    QG_ASSIGN_OR_RETURN(source, OfRotation(attention, dheads, /*is_backward=*/true));
  } else {
    QG_ASSIGN_OR_RETURN(source, OfHeadsGradient(program, index));
  }
  source.swaps_dims = true;
  return source;
}

/// The source of rotated heads or of their gradient.
absl::StatusOr<SourceFinder::Source> SourceFinder::OfInside(const ProgramPlan& program,
                                                            const std::string& output) const {
  for (size_t i = 0; i < program.operations.size(); ++i) {
    const PlannedOperation& operation = program.operations[i];
    if (operation.kind != OperationKind::kAttention) continue;
    const AttentionDims& dims = operation.core;
    if (output == RotatedHeadsGradientName(operation)) {
      QG_ASSIGN_OR_RETURN(OutputSource source, OfHeadsGradient(program, i));
      return Source(std::move(source));
    }
    if (output != RotatedHeadsName(operation)) continue;
    QG_ASSIGN_OR_RETURN(const Tensor qkv, ValueOf(program, operation.input));
    QG_ASSIGN_OR_RETURN(Tensor heads, AsHeads(qkv, dims, dims.groups * dims.members()));
    QG_ASSIGN_OR_RETURN(OutputSource source, OfRotation(operation, std::move(heads), false));
    return Source(std::move(source));
  }
  return Source();
}

absl::StatusOr<SourceFinder::Source> SourceFinder::OfValue(const ProgramPlan& program,
                                                           const std::string& output) const {
  for (size_t i = 0; i < program.operations.size(); ++i) {
    const PlannedOperation& operation = program.operations[i];
    if (program.values[i + 1].name != output) continue;
    if (operation.kind == OperationKind::kAttention) {
      QG_ASSIGN_OR_RETURN(OutputSource source, OfContext(program, operation));
      return Source(std::move(source));
    }
    OutputSource source;
    OperationCall call;
    QG_ASSIGN_OR_RETURN(call.x, ValueOf(program, operation.input));
    switch (operation.kind) {
      case OperationKind::kBasicLinear:
        return Source();
      case OperationKind::kQuantize:
        source.quantized = call.x;
        return Source(std::move(source));
      case OperationKind::kNorm: {
        call.kind = Kind::kNorm;
        call.norm = operation.norm;
        QG_ASSIGN_OR_RETURN(call.gamma, InActivationDType(FindGiven(request_, operation.gamma)));
        QG_ASSIGN_OR_RETURN(call.beta, InActivationDType(FindGiven(request_, operation.beta)));
        break;
      }
      case OperationKind::kActivation:
        call.kind = Kind::kActivation;
        call.activation = operation.activation;
        break;
      case OperationKind::kBias: {
        call.kind = Kind::kAdd;
        QG_ASSIGN_OR_RETURN(call.addend, InActivationDType(FindGiven(request_, operation.bias)));
        break;
      }
      case OperationKind::kAdd: {
        call.kind = Kind::kAdd;
        QG_ASSIGN_OR_RETURN(call.addend, ValueOf(program, operation.addend));
        break;
      }
      case OperationKind::kScale:
        call.kind = Kind::kScale;
        call.factor = operation.factor;
        break;
      case OperationKind::kAttention:
        break;  // Above.
    }
    source.operations.push_back(std::move(call));
    return Source(std::move(source));
  }
  return Source();
}

absl::StatusOr<OperationCall> SourceFinder::Contribution(const ProgramPlan& program,
                                                         size_t index) const {
  const PlannedOperation& operation = program.operations[index];
  OperationCall call;
  if (operation.kind == OperationKind::kBasicLinear) {
    const GemmRecord* gemm = FindGemm(result_, operation.names.dx);
    if (gemm == nullptr) {
      return absl::InternalError(absl::StrCat("no GEMM gave ", operation.names.dx));
    }
    call.kind = Kind::kCopy;
    call.x = gemm->result_codes.has_value() ? gemm->result_codes->values : gemm->result.d;
    return call;
  }
  QG_ASSIGN_OR_RETURN(const Tensor gradient, TensorOf(program.values[index + 1].gradient));
  switch (operation.kind) {
    case OperationKind::kNorm: {
      call.kind = Kind::kNormDx;
      call.norm = operation.norm;
      call.is_joined = plan_.fused;
      QG_ASSIGN_OR_RETURN(call.gamma, InActivationDType(FindGiven(request_, operation.gamma)));
      QG_ASSIGN_OR_RETURN(call.x, ValueOf(program, operation.input));
      call.gradient = gradient;
      break;
    }
    case OperationKind::kActivation: {
      call.kind = Kind::kActivationGradient;
      call.activation = operation.activation;
      QG_ASSIGN_OR_RETURN(call.x, ValueOf(program, operation.input));
      call.gradient = gradient;
      break;
    }
    case OperationKind::kScale:
      call.kind = Kind::kScale;
      call.factor = operation.factor;
      call.x = gradient;
      break;
    default:
      call.kind = Kind::kCopy;
      call.x = gradient;
      break;
  }
  return call;
}

absl::StatusOr<SourceFinder::Source> SourceFinder::OfGradient(const ProgramPlan& program,
                                                              const std::string& output) const {
  // The first value of that name: a bias behind it passes its gradient on under the same one.
  size_t value = 0;
  while (value < program.values.size() && program.values[value].gradient != output) ++value;
  if (value == program.values.size()) return Source();
  OutputSource source;
  // In the order of backward: the last operation first, an addend before what it is added to.
  for (size_t left = program.operations.size(); left > 0; --left) {
    const PlannedOperation& operation = program.operations[left - 1];
    if (!operation.needs_backward) continue;
    const int readers = (operation.input == static_cast<int>(value) ? 1 : 0) +
                        (operation.addend == static_cast<int>(value) ? 1 : 0);
    if (readers == 0) continue;
    if (operation.kind == OperationKind::kAttention) {
      // The only reader: no layer kind has another.
      QG_ASSIGN_OR_RETURN(source, OfAttentionGradient(program, left - 1));
      return Source(std::move(source));
    }
    QG_ASSIGN_OR_RETURN(OperationCall call, Contribution(program, left - 1));
    if (operation.kind == OperationKind::kQuantize && program.values[value].consumers == 1) {
      source.quantized = call.x;
      return Source(std::move(source));
    }
    source.operations.insert(source.operations.end(), readers, call);
  }
  return source.operations.empty() ? Source() : Source(std::move(source));
}

absl::StatusOr<Tensor> SourceFinder::SummedBy(const ProgramPlan& program, size_t index) const {
  // An activation's gradient may reach the bias before it is rounded.
  for (size_t i = 0; i < program.operations.size(); ++i) {
    const PlannedOperation& reader = program.operations[i];
    if (reader.input != static_cast<int>(index) + 1 ||
        reader.gradient != ActivationGradient::kForBiasOnly) {
      continue;
    }
    QG_ASSIGN_OR_RETURN(const Tensor dy, TensorOf(program.values[i + 1].gradient));
    QG_ASSIGN_OR_RETURN(const Tensor h, ValueOf(program, reader.input));
    return engine_.ActivationBackward(dy, h, reader.activation, DType::kF32, cancellation_);
  }
  return TensorOf(program.values[index + 1].gradient);
}

absl::StatusOr<SourceFinder::Source> SourceFinder::OfParameter(const ProgramPlan& program,
                                                               const std::string& output) const {
  const std::vector<LayerParameter> parameters = ParametersOf(request_.layer);
  const auto found =
      std::find_if(parameters.begin(), parameters.end(),
                   [&](const LayerParameter& parameter) { return parameter.gradient == output; });
  if (found == parameters.end()) return Source();
  const std::string& name = found->name;
  for (size_t i = 0; i < program.operations.size(); ++i) {
    const PlannedOperation& operation = program.operations[i];
    if (operation.gamma != name && operation.beta != name && operation.bias != name) continue;
    OutputSource source;
    QG_ASSIGN_OR_RETURN(const Tensor gradient, SummedBy(program, i));
    if (operation.bias == name) {
      // A sum over no rows is not formed.
      if (gradient.rows() > 0) source.summed = gradient;
      return Source(std::move(source));
    }
    OperationCall call;
    call.kind = operation.gamma == name ? Kind::kNormDgamma : Kind::kNormDbeta;
    call.norm = operation.norm;
    call.gradient = gradient;
    if (call.kind == Kind::kNormDgamma) {
      QG_ASSIGN_OR_RETURN(call.x, ValueOf(program, operation.input));
    }
    source.operations.push_back(std::move(call));
    return Source(std::move(source));
  }
  return Source();
}

absl::StatusOr<OutputSource> SourceFinder::Find(const std::string& output) const {
  OutputSource source;
  source.gemm = FindGemm(result_, output);
  if (source.gemm != nullptr) return source;
  QG_ASSIGN_OR_RETURN(source.parts, PartsOf(output));
  if (!source.parts.empty()) return source;
  for (const ProgramPlan& program : plan_.programs) {
    for (const auto find : {&SourceFinder::OfValue, &SourceFinder::OfGradient,
                            &SourceFinder::OfParameter, &SourceFinder::OfInside}) {
      QG_ASSIGN_OR_RETURN(Source found, (this->*find)(program, output));
      if (found.has_value()) return *std::move(found);
    }
  }
  const std::string_view word = OutputWord(output);
  if (word == "dw" || word == "main_grad") return source;
  return absl::InternalError(absl::StrCat("the layer does not say where ", output, " comes from"));
}

}  // namespace

const GemmRecord* FindGemm(const LayerResult& result, const std::string& output) {
  const auto found = std::find_if(result.gemms.begin(), result.gemms.end(),
                                  [&](const GemmRecord& gemm) { return gemm.output == output; });
  return found == result.gemms.end() ? nullptr : &*found;
}

Tensor FindGiven(const LayerRequest& request, const std::string& name) {
  if (name == "x") return request.x;
  if (name == "grad_output") return request.grad_output;
  const auto parameter = request.parameters.find(name);
  if (parameter != request.parameters.end()) return parameter->second;
  int64_t row = 0;
  for (size_t i = 0; i < request.layer.m_splits.size(); ++i) {
    const int64_t rows = request.layer.m_splits[i];
    for (const auto& [prefix, whole] :
         {std::pair("x.", &request.x), std::pair("grad_output.", &request.grad_output)}) {
      if (name == absl::StrCat(prefix, i)) return RowSlice(*whole, row, rows).value_or(Tensor());
    }
    row += rows;
  }
  return Tensor();
}

Tensor FindComputed(const LayerResult& result, const std::string& name) {
  for (const auto* tensors : {&result.intermediates, &result.outputs}) {
    for (const NamedTensor& tensor : *tensors) {
      if (tensor.name == name) return tensor.tensor;
    }
  }
  return Tensor();
}

absl::StatusOr<OutputSource> SourceOf(Engine& engine, const LayerRequest& request,
                                      const LayerResult& result, const std::string& output,
                                      const Cancellation* cancellation) {
  return SourceFinder(engine, request, result, cancellation).Find(output);
}

}  // namespace quantgate

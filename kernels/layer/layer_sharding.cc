#include "kernels/layer/layer_sharding.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/comm/row_blocks.h"
#include "kernels/layer/layer_program.h"

namespace quantgate {
namespace {

constexpr int kLastDim = -2;  ///< ShardRule::dim for the last dim, before the rank is known.

/// The only program, or the first expert's, since all experts' programs are alike.
LayerProgram ProgramOf(const LayerSpec& spec) {
  return std::move(ProgramsOf(spec, [](const std::string&) { return true; }).front());
}

const ProgramOperation* FirstParallel(const LayerProgram& program) {
  for (const ProgramOperation& operation : program.operations) {
    if (operation.parallel_mode != ParallelMode::kNone) return &operation;
  }
  return nullptr;
}

const ProgramOperation* LastParallel(const LayerProgram& program) {
  for (size_t left = program.operations.size(); left > 0; --left) {
    const ProgramOperation& operation = program.operations[left - 1];
    if (operation.parallel_mode != ParallelMode::kNone) return &operation;
  }
  return nullptr;
}

/// 2 if the columns that operation `next` reads reach a gated activation before a basic_linear;
/// else 1.
int PartsBefore(const LayerProgram& program, size_t next) {
  for (size_t i = next; i < program.operations.size(); ++i) {
    const ProgramOperation& operation = program.operations[i];
    if (operation.kind == OperationKind::kBasicLinear) return 1;
    if (operation.kind != OperationKind::kActivation) continue;
    return IsGated(operation.activation.kind) ? 2 : 1;
  }
  return 1;
}

/// The name of the same parameter of the first expert.
std::string OfFirstExpert(const LayerSpec& spec, const std::string& parameter) {
  if (!spec.traits().has_experts) return parameter;
  ParameterName name = ParameterName::Parse(parameter);
  name.expert = 0;
  return name.Text();
}

absl::Status CheckDivides(const std::string& field, const Tensor& whole, const ShardRule& rule,
                          int size) {
  const int64_t count = whole.shape()[static_cast<size_t>(rule.dim)];
  const int64_t multiple = static_cast<int64_t>(rule.parts) * size;
  if (count % multiple == 0) return absl::OkStatus();
  return Refuse(
      field, TensorText(whole),
      absl::StrCat("its dim ", rule.dim, " must be a multiple of ", multiple,
                   rule.parts == 1 ? "" : absl::StrCat(", ", rule.parts, " parts for each"),
                   " of the ", size, " ranks of the tensor-parallel group"));
}

absl::StatusOr<Tensor> RowsOf(Engine& engine, const std::string& field, const Tensor& whole,
                              const ParallelStep& parallel) {
  int64_t sum = 0;
  for (const int64_t rows : parallel.rows) sum += rows;
  const bool has_dims = whole.rank() >= 2 && sum == whole.shape()[0] &&
                        parallel.rows.size() == static_cast<size_t>(parallel.size());
  if (!has_dims) {
    return Refuse(field, TensorText(whole),
                  absl::StrCat("parallel.rows divide dim 0 of 2 dims or more into ",
                               parallel.size(), " parts, of ", sum, " rows together"));
  }
  int64_t begin = 0;
  for (int i = 0; i < parallel.rank(); ++i) begin += parallel.rows[static_cast<size_t>(i)];
  return engine.Slice(whole, 0, begin, parallel.rows[static_cast<size_t>(parallel.rank())],
                      nullptr);
}

/// This rank's part of `tensor`: columns by `columns`, and rows if `divides_rows`.
absl::StatusOr<Tensor> Divide(Engine& engine, const std::string& field, const Tensor& tensor,
                              ShardRule columns, bool divides_rows, const ParallelStep& parallel) {
  if (!tensor.has_value()) return tensor;
  Tensor part = tensor;
  if (divides_rows && parallel.divides_rows()) {
    QG_ASSIGN_OR_RETURN(part, RowsOf(engine, field, part, parallel));
  }
  return ShardOf(engine, field, part, columns, parallel.rank(), parallel.size());
}

}  // namespace

bool HasParallelMode(const LayerSpec& layer) {
  return layer.parallel_mode != ParallelMode::kNone ||
         std::any_of(layer.operations.begin(), layer.operations.end(),
                     [](const OperationSpec& operation) {
                       return operation.parallel_mode != ParallelMode::kNone;
                     });
}

ShardRule ParameterShardRule(const LayerSpec& spec, const std::string& given) {
  const std::string parameter = OfFirstExpert(spec, given);
  const LayerProgram program = ProgramOf(spec);
  ShardRule columns = InputColumns(spec);
  for (size_t i = 0; i < program.operations.size(); ++i) {
    const ProgramOperation& operation = program.operations[i];
    const bool is_linear = operation.kind == OperationKind::kBasicLinear;
    if (is_linear) {
      const bool is_column = operation.parallel_mode == ParallelMode::kColumn;
      columns = is_column ? ShardRule{0, PartsBefore(program, i + 1)} : ShardRule{};
      if (parameter == operation.weight) {
        if (operation.parallel_mode == ParallelMode::kRow) return {1, 1};
        return columns;
      }
    }
    if (parameter != operation.bias) continue;
    return columns.dim == -1 ? ShardRule{} : ShardRule{0, columns.parts};
  }
  return {};
}

ShardRule InputColumns(const LayerSpec& spec) {
  const LayerProgram program = ProgramOf(spec);
  const ProgramOperation* const first = FirstParallel(program);
  if (first == nullptr || first->parallel_mode != ParallelMode::kRow) return {};
  return {kLastDim, PartsBefore(program, 0)};
}

ShardRule OutputColumns(const LayerSpec& spec) {
  const LayerProgram program = ProgramOf(spec);
  const ProgramOperation* const last = LastParallel(program);
  if (last == nullptr || last->parallel_mode != ParallelMode::kColumn) return {};
  return {kLastDim, 1};
}

bool DividesInputRows(const LayerSpec& spec) {
  if (spec.traits().has_experts) return false;
  const LayerProgram program = ProgramOf(spec);
  const ProgramOperation* const first = FirstParallel(program);
  return first != nullptr && first->parallel_mode == ParallelMode::kColumn;
}

bool DividesOutputRows(const LayerSpec& spec) {
  if (spec.traits().has_experts) return false;
  const LayerProgram program = ProgramOf(spec);
  const ProgramOperation* const last = LastParallel(program);
  return last != nullptr && last->parallel_mode == ParallelMode::kRow;
}

std::vector<ValueDivision> ValueDivisionsOf(const LayerSpec& spec) {
  const LayerProgram program = ProgramOf(spec);
  const bool has_experts = spec.traits().has_experts;
  std::vector<ValueDivision> divisions = {{InputColumns(spec), DividesInputRows(spec)}};
  for (size_t i = 0; i < program.operations.size(); ++i) {
    const ProgramOperation& operation = program.operations[i];
    ValueDivision division = divisions[static_cast<size_t>(operation.input)];
    // A gated activation reads two halves and gives one.
    if (division.columns.dim != -1) division.columns.parts = PartsBefore(program, i + 1);
    if (operation.kind == OperationKind::kBasicLinear) {
      division.columns = {};
      if (operation.parallel_mode == ParallelMode::kColumn) {
        division = {{kLastDim, PartsBefore(program, i + 1)}, false};
      }
      if (operation.parallel_mode == ParallelMode::kRow) division.divides_rows = !has_experts;
    }
    divisions.push_back(division);
  }
  return divisions;
}

absl::StatusOr<Tensor> ShardOf(Engine& engine, const std::string& field, const Tensor& whole,
                               const ShardRule& given, int rank, int size) {
  if (given.dim == -1 || !whole.has_value()) return whole;
  ShardRule rule = given;
  if (rule.dim == kLastDim) rule.dim = whole.rank() - 1;
  if (rule.dim >= whole.rank()) {
    return Refuse(field, TensorText(whole), absl::StrCat("it is divided along dim ", rule.dim));
  }
  QG_RETURN_IF_ERROR(CheckDivides(field, whole, rule, size));
  const int64_t part = whole.shape()[static_cast<size_t>(rule.dim)] / rule.parts;
  const int64_t count = part / size;
  std::vector<Tensor> pieces;
  for (int i = 0; i < rule.parts; ++i) {
    QG_ASSIGN_OR_RETURN(Tensor piece,
                        engine.Slice(whole, rule.dim, i * part + rank * count, count, nullptr));
    pieces.push_back(std::move(piece));
  }
  if (pieces.size() == 1) return pieces[0];
  return rule.dim == 0 ? engine.ConcatenateRows(pieces, nullptr)
                       : engine.ConcatenateColumns(pieces, nullptr);
}

absl::StatusOr<Tensor> JoinRows(Engine& engine, const std::vector<Tensor>& parts,
                                const Cancellation* cancellation) {
  if (parts[0].rank() >= 2) return engine.ConcatenateRows(parts, cancellation);
  std::vector<Tensor> columns;
  int64_t count = 0;
  for (const Tensor& part : parts) {
    QG_ASSIGN_OR_RETURN(columns.emplace_back(),
                        part.Reinterpret(part.dtype(), {part.element_count(), 1}));
    count += part.element_count();
  }
  QG_ASSIGN_OR_RETURN(const Tensor joined, engine.ConcatenateRows(columns, cancellation));
  return joined.Reinterpret(joined.dtype(), {count});
}

absl::StatusOr<Tensor> JoinShards(Engine& engine, const std::vector<Tensor>& parts,
                                  const ShardRule& rule, const Cancellation* cancellation) {
  const int dim = rule.dim == kLastDim ? parts[0].rank() - 1 : rule.dim;
  std::vector<Tensor> pieces;
  for (int piece = 0; piece < rule.parts; ++piece) {
    for (const Tensor& part : parts) {
      const int64_t count = part.shape()[static_cast<size_t>(dim)] / rule.parts;
      QG_ASSIGN_OR_RETURN(pieces.emplace_back(),
                          engine.Slice(part, dim, piece * count, count, cancellation));
    }
  }
  return dim == 0 ? JoinRows(engine, pieces, cancellation)
                  : engine.ConcatenateColumns(pieces, cancellation);
}

absl::StatusOr<LayerRequest> ShardLayer(Engine& engine, const LayerRequest& whole,
                                        ParallelStep parallel) {
  const LayerSpec& spec = whole.layer;
  QG_RETURN_IF_ERROR(CheckLayerSpec(spec));
  if (parallel.divides_rows() && parallel.rows.empty() && whole.x.has_value()) {
    const int64_t dim = whole.x.rank() == 0 ? 0 : whole.x.shape()[0];
    parallel.rows = EvenRows(dim, parallel.size());
  }
  LayerRequest part = whole;
  QG_ASSIGN_OR_RETURN(
      part.x, Divide(engine, "x", whole.x, InputColumns(spec), DividesInputRows(spec), parallel));
  QG_ASSIGN_OR_RETURN(part.grad_output,
                      Divide(engine, "grad_output", whole.grad_output, OutputColumns(spec),
                             DividesOutputRows(spec), parallel));
  const auto divide_all = [&](const char* field, std::map<std::string, Tensor>& tensors) {
    for (auto& [name, tensor] : tensors) {
      QG_ASSIGN_OR_RETURN(
          tensor, ShardOf(engine, absl::StrCat(field, "[", name, "]"), tensor,
                          ParameterShardRule(spec, name), parallel.rank(), parallel.size()));
    }
    return absl::OkStatus();
  };
  QG_RETURN_IF_ERROR(divide_all("parameters", part.parameters));
  QG_RETURN_IF_ERROR(divide_all("main_grads", part.main_grads));
  part.parallel = std::make_shared<const ParallelStep>(std::move(parallel));
  return part;
}

}  // namespace quantgate

#include "kernels/validate/reference/attention_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/exact/exact_operand.h"
#include "kernels/numerics/attention.h"
#include "kernels/validate/reference/running_error.h"

namespace quantgate {
namespace {

using Kind = OperationCall::Kind;

/// The bound of a GEMM of this dtype and length.
struct GemmOfLength {
  ProductBound bound;
  std::string derivation;
};

absl::StatusOr<GemmOfLength> BoundOfLength(const Arithmetic& arithmetic, DType dtype, int64_t k) {
  GemmDesc desc;
  QG_ASSIGN_OR_RETURN(desc.a.data, Tensor::Allocate(dtype, {1, k}));
  desc.b.data = desc.a.data;
  desc.arithmetic = arithmetic;
  desc.out_dtype = dtype;
  QG_ASSIGN_OR_RETURN(ErrorBound bound, BoundFor(desc));
  GemmOfLength gemm;
  gemm.bound = {bound.factor, bound.absolute,
                std::ldexp(1.0, dtype == DType::kF16 ? FormatConstants<Float16>::kExponentMin
                                                     : FormatConstants<Float32>::kExponentMin)};
  gemm.derivation = std::move(bound.derivation);
  if (ResolvedFor(desc).family == ArithmeticFamily::kExact) {
    // What is rounded once to f32 differs from the sum; the other arithmetics have it in fp32.
    gemm.bound.factor += running_error::kU;
    gemm.bound.absolute += running_error::kUnderflow;
  }
  return gemm;
}

/// Matrices [S][D] of one tensor, as floats in host memory.
class Matrices {
 public:
  absl::Status Load(Engine& engine, const Tensor& tensor, const Cancellation* cancellation) {
    QG_ASSIGN_OR_RETURN(const Tensor host, engine.ToHost(tensor, cancellation));
    values_ = DecodeToFloats(host);
    size_ = host.shape()[1] * host.shape()[2];
    return absl::OkStatus();
  }
  std::span<const float> At(int64_t index) const {
    return std::span(values_).subspan(static_cast<size_t>(index * size_),
                                      static_cast<size_t>(size_));
  }

 private:
  std::vector<float> values_;
  int64_t size_ = 0;
};

class AttentionEvaluation {
 public:
  AttentionEvaluation(const OperationCall& call, const ExecutionContext& context)
      : call_(call), context_(context), output_(FactsOfOutput(call.attention.heads.dtype())) {}

  absl::StatusOr<OperationReference> Run(Engine& engine);

 private:
  /// Key and value of a group, as the GEMMs read them.
  struct Group {
    GivenRows keys, keys_by_column, values, values_by_column;
  };
  using Row = std::vector<RunningError>;

  absl::Status CheckShapes() const;
  bool SumsOverQueries() const {
    return call_.kind == Kind::kAttentionDk || call_.kind == Kind::kAttentionDv;
  }
  /// The matrix of a query head in `heads`; `head` counts those alone, as the gradient does.
  std::span<const float> QueriesOf(int64_t head) const {
    return heads_.At(head / per_group_ * (per_group_ + 2) + head % per_group_);
  }
  Group GroupAt(int64_t group) const;
  int64_t TakenOf(int64_t query) const {
    const bool is_causal = call_.attention.mask == AttentionMask::kCausal;
    return TakenKeys(is_causal, query, positions_, positions_);
  }
  /// Row `row` of `a` times all rows of the matrix whose columns `b` has, rounded to the dtype.
  Row Products(std::span<const float> a, int64_t row, const GivenRows& b) const;
  /// Of one query, all keys, before they are rounded to the dtype.
  Row Probabilities(int64_t head, int64_t query, const Group& group) const;
  /// The gradient of the scores of one query.
  Row ScoreGradients(int64_t head, int64_t query, const Group& group, const Row& p) const;
  Row Rounded(Row row) const {
    for (RunningError& one : row) one = RoundedTo(one, output_);
    return row;
  }
  void QueryRow(int64_t head, int64_t query, const Group& group,
                OperationReference& reference) const;
  /// The sum over a group's query heads.
  void GroupMatrix(int64_t group, OperationReference& reference) const;
  /// One query head's part of it.
  std::vector<RunningProducts> HeadProducts(int64_t head, const Group& group) const;
  std::string Derivation() const;

  const OperationCall& call_;
  const ExecutionContext& context_;
  const error_bound::OutputFacts output_;
  Matrices heads_, gradients_;
  int64_t positions_ = 0, columns_ = 0, per_group_ = 0, groups_ = 0;
  GemmOfLength along_columns_, along_positions_;
};

absl::Status AttentionEvaluation::CheckShapes() const {
  const AttentionCall& attention = call_.attention;
  const Shape& heads = attention.heads.shape();
  const int64_t in_group = attention.heads_per_group + 2;
  const bool fits = attention.heads_per_group >= 1 && heads.size() == 3 && heads[0] % in_group == 0;
  const Shape per_query = {fits ? heads[0] / in_group * attention.heads_per_group : 0,
                           fits ? heads[1] : 0, fits ? heads[2] : 0};
  const bool needs_gradient = call_.kind != Kind::kAttention;
  if (fits &&
      (!needs_gradient || (call_.gradient.has_value() && call_.gradient.shape() == per_query))) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("attention of ", TensorText(attention.heads), " with ",
                                          attention.heads_per_group, " heads a group and gradient ",
                                          TensorText(call_.gradient)));
}

AttentionEvaluation::Group AttentionEvaluation::GroupAt(int64_t group) const {
  const int64_t key = group * (per_group_ + 2) + per_group_;
  return {GivenRows(heads_.At(key), positions_, columns_, false),
          GivenRows(heads_.At(key), positions_, columns_, true),
          GivenRows(heads_.At(key + 1), positions_, columns_, false),
          GivenRows(heads_.At(key + 1), positions_, columns_, true)};
}

AttentionEvaluation::Row AttentionEvaluation::Products(std::span<const float> a, int64_t row,
                                                       const GivenRows& b) const {
  RunningProducts products(positions_, along_columns_.bound);
  for (int64_t d = 0; d < columns_; ++d) {
    products.Add(Given(a[static_cast<size_t>(row * columns_ + d)]), b, d);
  }
  Row result(static_cast<size_t>(positions_));
  for (int64_t j = 0; j < positions_; ++j) result[j] = RoundedTo(products.At(j), output_);
  return result;
}

AttentionEvaluation::Row AttentionEvaluation::Probabilities(int64_t head, int64_t query,
                                                            const Group& group) const {
  Row z = Products(QueriesOf(head), query, group.keys_by_column);
  z.resize(static_cast<size_t>(TakenOf(query)));
  for (RunningError& one : z) one = RoundedTo(one * call_.attention.scale, output_);
  Row p(z.size());
  SoftmaxReference(z, positions_, p);
  p.resize(static_cast<size_t>(positions_), Given(0));
  return p;
}

AttentionEvaluation::Row AttentionEvaluation::ScoreGradients(int64_t head, int64_t query,
                                                             const Group& group,
                                                             const Row& p) const {
  const Row g = Products(gradients_.At(head), query, group.values_by_column);
  const auto taken = static_cast<size_t>(TakenOf(query));
  RunningSum sum;
  for (size_t j = 0; j < g.size(); ++j) sum.Add(j < taken ? g[j] * p[j] : Given(0));
  const RunningError along = sum.Sum();
  Row slopes(g.size());
  for (size_t j = 0; j < taken; ++j) {
    const RunningError slope = RoundedTo((g[j] - along) * p[j], output_);
    slopes[j] = RoundedTo(slope * call_.attention.scale, output_);
  }
  return slopes;
}

void AttentionEvaluation::QueryRow(int64_t head, int64_t query, const Group& group,
                                   OperationReference& reference) const {
  const bool is_forward = call_.kind == Kind::kAttention;
  const Row p = Probabilities(head, query, group);
  const Row factors = is_forward ? Rounded(p) : ScoreGradients(head, query, group, p);
  const GivenRows& rows = is_forward ? group.values : group.keys;
  RunningProducts products(columns_, along_positions_.bound);
  for (int64_t j = 0; j < positions_; ++j) products.Add(factors[j], rows, j);
  const int64_t at = (head * positions_ + query) * columns_;
  for (int64_t d = 0; d < columns_; ++d) {
    const RunningError result = products.At(d);
    reference.value.as<double>()[at + d] = result.value;
    reference.error.as<double>()[at + d] = result.error;
  }
}

std::vector<RunningProducts> AttentionEvaluation::HeadProducts(int64_t head,
                                                               const Group& group) const {
  const bool is_value = call_.kind == Kind::kAttentionDv;
  const GivenRows rows(is_value ? gradients_.At(head) : QueriesOf(head), positions_, columns_,
                       false);
  std::vector<RunningProducts> sums(static_cast<size_t>(positions_),
                                    RunningProducts(columns_, along_positions_.bound));
  for (int64_t i = 0; i < positions_ && context_.CheckCancelled().ok(); ++i) {
    const Row p = Probabilities(head, i, group);
    const Row factors = is_value ? Rounded(p) : ScoreGradients(head, i, group, p);
    for (int64_t j = 0; j < positions_; ++j) sums[j].Add(factors[j], rows, i);
  }
  return sums;
}

void AttentionEvaluation::GroupMatrix(int64_t group, OperationReference& reference) const {
  const Group operands = GroupAt(group);
  const int64_t begin = group * positions_ * columns_;
  double* const values = reference.value.as<double>() + begin;
  double* const errors = reference.error.as<double>() + begin;
  for (int64_t r = 0; r < per_group_; ++r) {
    const std::vector<RunningProducts> sums = HeadProducts(group * per_group_ + r, operands);
    for (int64_t at = 0; at < positions_ * columns_; ++at) {
      RunningError part = sums[at / columns_].At(at % columns_);
      // Heads are rounded before they are added; one alone is the output.
      if (per_group_ > 1) part = RoundedTo(part, output_);
      const RunningError total = r == 0 ? part : RunningError{values[at], errors[at]} + part;
      values[at] = total.value;
      errors[at] = total.error;
    }
  }
}

std::string AttentionEvaluation::Derivation() const {
  const int levels = std::bit_width(static_cast<uint64_t>(positions_ - 1));
  std::string text = absl::StrFormat(
      "running error analysis: GEMMs of length %d (%s) and %d (%s), half an ulp after each GEMM, "
      "scale and softmax, 2^-24 for each fp32 operation, %d levels of the sums over keys",
      columns_, along_columns_.derivation, positions_, along_positions_.derivation, levels);
  if (SumsOverQueries() && per_group_ > 1) absl::StrAppend(&text, ", ", per_group_, " heads");
  return text;
}

absl::StatusOr<OperationReference> AttentionEvaluation::Run(Engine& engine) {
  QG_RETURN_IF_ERROR(CheckShapes());
  const AttentionCall& attention = call_.attention;
  const Shape& shape = attention.heads.shape();
  per_group_ = attention.heads_per_group;
  groups_ = shape[0] / (per_group_ + 2);
  positions_ = shape[1];
  columns_ = shape[2];
  const Shape out = {SumsOverQueries() ? groups_ : groups_ * per_group_, positions_, columns_};
  OperationReference reference;
  QG_ASSIGN_OR_RETURN(reference.value, Tensor::Allocate(DType::kF64, out));
  QG_ASSIGN_OR_RETURN(reference.error, Tensor::Allocate(DType::kF64, out));
  if (reference.value.element_count() == 0) {
    reference.derivation = "no elements";
    return reference;
  }
  QG_RETURN_IF_ERROR(heads_.Load(engine, attention.heads, context_.cancellation));
  if (call_.kind != Kind::kAttention) {
    QG_RETURN_IF_ERROR(gradients_.Load(engine, call_.gradient, context_.cancellation));
  }
  const DType dtype = attention.heads.dtype();
  QG_ASSIGN_OR_RETURN(along_columns_, BoundOfLength(attention.arithmetic, dtype, columns_));
  QG_ASSIGN_OR_RETURN(along_positions_, BoundOfLength(attention.arithmetic, dtype, positions_));
  reference.derivation = Derivation();
  if (SumsOverQueries()) {
    ParallelFor(context_, groups_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t group = begin; group < end; ++group) GroupMatrix(group, reference);
    });
    QG_RETURN_IF_ERROR(context_.CheckCancelled());
    return reference;
  }
  for (int64_t group = 0; group < groups_; ++group) {
    const Group operands = GroupAt(group);
    ParallelFor(context_, per_group_ * positions_, 8, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        QueryRow(group * per_group_ + row / positions_, row % positions_, operands, reference);
      }
    });
    QG_RETURN_IF_ERROR(context_.CheckCancelled());
  }
  return reference;
}

}  // namespace

absl::StatusOr<OperationReference> EvaluateAttention(Engine& engine, const OperationCall& call,
                                                     const ExecutionContext& context) {
  return AttentionEvaluation(call, context).Run(engine);
}

absl::StatusOr<OperationReference> EvaluateRotary(Engine& engine, const OperationCall& call,
                                                  const ExecutionContext& context) {
  const RotaryDesc& rotary = call.rotary;
  QG_RETURN_IF_ERROR(CheckRotary(rotary));
  const auto floats = [&](const Tensor& tensor) -> absl::StatusOr<std::vector<float>> {
    QG_ASSIGN_OR_RETURN(const Tensor host, engine.ToHost(tensor, context.cancellation));
    return DecodeToFloats(host);
  };
  QG_ASSIGN_OR_RETURN(const std::vector<float> x, floats(rotary.heads));
  QG_ASSIGN_OR_RETURN(const std::vector<float> cosines, floats(rotary.table.cosines));
  QG_ASSIGN_OR_RETURN(const std::vector<float> sines, floats(rotary.table.sines));
  const error_bound::OutputFacts output = FactsOfOutput(rotary.heads.dtype());
  const int64_t positions = rotary.heads.shape()[1], columns = rotary.heads.shape()[2];
  OperationReference reference;
  QG_ASSIGN_OR_RETURN(reference.value, Tensor::Allocate(DType::kF64, rotary.heads.shape()));
  QG_ASSIGN_OR_RETURN(reference.error, Tensor::Allocate(DType::kF64, rotary.heads.shape()));
  reference.derivation = "half an ulp of each product, one fp32 rounding of 2^-24 of their sum";
  const auto rotate_row = [&](int64_t row) {
    const bool is_rotated = row / positions % rotary.period < rotary.rotated;
    for (int64_t i = 0; i < columns; ++i) {
      const bool is_low = i < columns / 2;
      const int64_t entry = row % positions * (columns / 2) + i % (columns / 2);
      const int64_t partner = row * columns + (is_low ? i + columns / 2 : i - columns / 2);
      const RunningError own = Given(x[row * columns + i]), other = Given(x[partner]);
      const float sine = is_low != rotary.is_backward ? -sines[entry] : sines[entry];
      const RunningError result =
          is_rotated ? RoundedTo(own * cosines[entry], output) + RoundedTo(other * sine, output)
                     : own;
      reference.value.as<double>()[row * columns + i] = result.value;
      reference.error.as<double>()[row * columns + i] = result.error;
    }
  };
  ParallelFor(context, rotary.heads.rows(), 8, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) rotate_row(row);
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return reference;
}

}  // namespace quantgate

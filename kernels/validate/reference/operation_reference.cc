#include "kernels/validate/reference/operation_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/exact/exact_operand.h"
#include "kernels/validate/reference/attention_reference.h"
#include "kernels/validate/reference/running_error.h"

namespace quantgate {
namespace {

/// Elements that a thread takes at a time.
constexpr int64_t kGrainElements = 1 << 14;

int64_t Grain(int64_t length) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, length));
}

/// A tensor of the request as floats in host memory; empty if the tensor is absent.
class Floats {
 public:
  absl::Status Load(Engine& engine, const Tensor& tensor, const Cancellation* cancellation) {
    if (!tensor.has_value()) return absl::OkStatus();
    QG_ASSIGN_OR_RETURN(const Tensor host, engine.ToHost(tensor, cancellation));
    values_ = DecodeToFloats(host);
    return absl::OkStatus();
  }
  bool has_value() const { return !values_.empty(); }
  int64_t size() const { return static_cast<int64_t>(values_.size()); }
  RunningError operator[](int64_t i) const { return Given(values_[static_cast<size_t>(i)]); }
  /// Row `row` of `columns` elements. The rows of a tensor that has fewer repeat.
  std::span<const float> Row(int64_t row, int64_t columns) const {
    return std::span(values_).subspan(static_cast<size_t>(row * columns % size()),
                                      static_cast<size_t>(columns));
  }

 private:
  std::vector<float> values_;
};

/// What a row's normalization needs (docs/numerics.md section 5).
struct RowStatistics {
  RunningError mean;
  RunningError rstd;
};

RunningError InverseCount(int64_t count) { return 1.0f / Given(static_cast<double>(count)); }

/// The mean of squares around a mean that errs by D is s^2 + D^2 of the exact differences: what D
/// adds is of second order. L levels, three roundings of each term and two of 1/N are the rest.
RunningError MeanOfSquares(std::span<const float> x, const RunningError& mean) {
  double squares = 0;
  for (const float value : x) {
    const double difference = value - mean.value;
    squares += difference * difference;
  }
  const auto count = static_cast<int64_t>(x.size());
  const double exact = squares / static_cast<double>(count);
  const int64_t roundings = std::bit_width(static_cast<uint64_t>(count - 1)) + 5;
  const double shifted = exact + mean.error * mean.error;
  const double relative = error_bound::Gamma(roundings) + static_cast<double>(count + 2) * 0x1p-53;
  const double error = mean.error * mean.error + relative * shifted + 2 * running_error::kUnderflow;
  const bool is_bounded = (exact + error) * static_cast<double>(count) < running_error::kOverflow;
  return {exact, is_bounded ? error : running_error::kInfinity};
}

RowStatistics StatisticsOf(std::span<const float> x, const NormOptions& options) {
  RowStatistics statistics;
  if (options.kind == NormKind::kLayerNorm) {
    RunningSum sum;
    for (const float value : x) sum.Add(Given(value));
    statistics.mean = sum.Sum() * InverseCount(static_cast<int64_t>(x.size()));
  }
  statistics.rstd = 1.0f / Sqrt(MeanOfSquares(x, statistics.mean) + Given(options.epsilon));
  return statistics;
}

RunningError Hat(float x, const RowStatistics& statistics, const NormOptions& options) {
  if (options.kind == NormKind::kRmsNorm) return statistics.rstd * Given(x);
  return statistics.rstd * (Given(x) - statistics.mean);
}

class Evaluation {
 public:
  Evaluation(const OperationCall& call, const ExecutionContext& context)
      : call_(call), context_(context) {}

  absl::StatusOr<OperationReference> Run(Engine& engine);

 private:
  using Row = std::span<RunningError>;

  RunningError Gamma(int64_t column) const {
    return call_.norm.zero_centered_gamma ? gamma_[column] + 1.0f : gamma_[column];
  }
  void NormRow(int64_t row, Row out) const;
  void NormDxRow(int64_t row, Row out) const;
  void ElementRow(int64_t row, Row out) const;
  void ActivationRow(int64_t row, Row out) const;
  /// Sums over rows: dgamma, dbeta.
  void ColumnSums(int64_t begin, int64_t end, OperationReference& reference) const;
  absl::Status EvaluateRows(OperationReference& reference);
  absl::Status EvaluateColumns(OperationReference& reference);
  Shape OutputShape() const;
  std::string Derivation() const;

  const OperationCall& call_;
  const ExecutionContext& context_;
  Floats x_, gamma_, beta_, gradient_, addend_;
  int64_t rows_ = 0, columns_ = 0;  // Dims of what is summed, or of the output.
  std::vector<RowStatistics> statistics_;
};

bool SumsOverRows(OperationCall::Kind kind) {
  return kind == OperationCall::Kind::kNormDgamma || kind == OperationCall::Kind::kNormDbeta;
}

void Evaluation::NormRow(int64_t row, Row out) const {
  const auto x = x_.Row(row, columns_);
  const RowStatistics statistics = StatisticsOf(x, call_.norm);
  for (int64_t n = 0; n < columns_; ++n) {
    const RunningError scaled = Gamma(n) * Hat(x[n], statistics, call_.norm);
    out[n] = beta_.has_value() ? scaled + beta_[n] : scaled;
  }
}

void Evaluation::NormDxRow(int64_t row, Row out) const {
  const auto x = x_.Row(row, columns_);
  const auto dz = gradient_.Row(row, columns_);
  const bool is_centered = call_.norm.kind == NormKind::kLayerNorm;
  const RowStatistics statistics = StatisticsOf(x, call_.norm);
  std::vector<RunningError> hat(static_cast<size_t>(columns_));
  RunningSum products, gradients;
  for (int64_t n = 0; n < columns_; ++n) {
    hat[n] = Hat(x[n], statistics, call_.norm);
    out[n] = Gamma(n) * Given(dz[n]);
    products.Add(out[n] * hat[n]);
    gradients.Add(out[n]);
  }
  const RunningError a = products.Sum() * InverseCount(columns_);
  const RunningError b = gradients.Sum() * InverseCount(columns_);
  for (int64_t n = 0; n < columns_; ++n) {
    const RunningError along = is_centered ? a * hat[n] + b : a * hat[n];
    out[n] = statistics.rstd * (out[n] - along);
  }
}

void Evaluation::ElementRow(int64_t row, Row out) const {
  const auto x = x_.Row(row, columns_);
  if (call_.kind != OperationCall::Kind::kAdd) {
    const bool is_copy = call_.kind == OperationCall::Kind::kCopy;
    for (int64_t n = 0; n < columns_; ++n) {
      out[n] = is_copy ? Given(x[n]) : Given(x[n]) * call_.factor;
    }
    return;
  }
  const auto addend = addend_.Row(row, columns_);
  for (int64_t n = 0; n < columns_; ++n) out[n] = Given(x[n]) + addend[n];
}

void Evaluation::ActivationRow(int64_t row, Row out) const {
  const int64_t inputs = x_.size() / rows_;
  const auto x = x_.Row(row, inputs);
  if (call_.kind == OperationCall::Kind::kActivation) {
    ActivationReference(call_.activation, x, out);
  } else {
    ActivationGradientReference(call_.activation, x, gradient_.Row(row, gradient_.size() / rows_),
                                out);
  }
}

void Evaluation::ColumnSums(int64_t begin, int64_t end, OperationReference& reference) const {
  std::vector<RunningSum> sums(static_cast<size_t>(end - begin));
  for (int64_t row = 0; row < rows_; ++row) {
    const auto dz = gradient_.Row(row, columns_);
    for (int64_t n = begin; n < end; ++n) {
      RunningError term = Given(dz[n]);
      if (call_.kind == OperationCall::Kind::kNormDgamma) {
        term = term * Hat(x_.Row(row, columns_)[n], statistics_[row], call_.norm);
      }
      sums[n - begin].Add(term);
    }
  }
  for (int64_t n = begin; n < end; ++n) {
    const RunningError sum = sums[n - begin].Sum();
    reference.value.as<double>()[n] = sum.value;
    reference.error.as<double>()[n] = sum.error;
  }
}

absl::Status Evaluation::EvaluateColumns(OperationReference& reference) {
  if (call_.kind == OperationCall::Kind::kNormDgamma) {
    statistics_.resize(static_cast<size_t>(rows_));
    ParallelFor(context_, rows_, Grain(columns_), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        statistics_[row] = StatisticsOf(x_.Row(row, columns_), call_.norm);
      }
    });
    QG_RETURN_IF_ERROR(context_.CheckCancelled());
  }
  // 16 columns at a time are a cache line of floats.
  ParallelFor(context_, columns_, 16,
              [&](int64_t begin, int64_t end) { ColumnSums(begin, end, reference); });
  return context_.CheckCancelled();
}

absl::Status Evaluation::EvaluateRows(OperationReference& reference) {
  const int64_t length = reference.value.columns();
  ParallelFor(context_, rows_, Grain(length), [&](int64_t begin, int64_t end) {
    std::vector<RunningError> out(static_cast<size_t>(length));
    for (int64_t row = begin; row < end; ++row) {
      switch (call_.kind) {
        case OperationCall::Kind::kNorm:
          NormRow(row, out);
          break;
        case OperationCall::Kind::kNormDx:
          NormDxRow(row, out);
          break;
        case OperationCall::Kind::kActivation:
        case OperationCall::Kind::kActivationGradient:
          ActivationRow(row, out);
          break;
        default:
          ElementRow(row, out);
          break;
      }
      for (int64_t n = 0; n < length; ++n) {
        reference.value.as<double>()[row * length + n] = out[n].value;
        reference.error.as<double>()[row * length + n] = out[n].error;
      }
    }
  });
  return context_.CheckCancelled();
}

Shape Evaluation::OutputShape() const {
  if (SumsOverRows(call_.kind)) return {call_.gradient.columns()};
  if (call_.kind == OperationCall::Kind::kActivation) {
    return ActivationOutputShape(call_.x.shape(), call_.activation.kind);
  }
  return call_.x.shape();
}

std::string Evaluation::Derivation() const {
  constexpr char kEach[] = "running error analysis: 2^-24 for each fp32 operation";
  const auto levels = [](int64_t count) {
    return std::bit_width(static_cast<uint64_t>(std::max<int64_t>(count, 1) - 1));
  };
  switch (call_.kind) {
    case OperationCall::Kind::kNorm:
    case OperationCall::Kind::kNormDx:
      return absl::StrFormat("%s, %d levels of each pairwise sum of %d", kEach, levels(columns_),
                             columns_);
    case OperationCall::Kind::kNormDgamma:
      return absl::StrFormat("%s, %d levels of the sum over %d rows and %d of each row's", kEach,
                             levels(rows_), rows_, levels(columns_));
    case OperationCall::Kind::kNormDbeta:
      return absl::StrFormat("%d levels of the sum over %d rows x 2^-24", levels(rows_), rows_);
    case OperationCall::Kind::kActivation:
    case OperationCall::Kind::kActivationGradient:
      return absl::StrCat(kEach, ", one ulp of exp, tanh and sigmoid");
    case OperationCall::Kind::kCopy:
      return "the same value";
    case OperationCall::Kind::kAdd:
    case OperationCall::Kind::kScale:
      return "one fp32 rounding of 2^-24";
    case OperationCall::Kind::kRotary:
    case OperationCall::Kind::kAttention:
    case OperationCall::Kind::kAttentionDq:
    case OperationCall::Kind::kAttentionDk:
    case OperationCall::Kind::kAttentionDv:
      break;
  }
  return "";  // Those of attention have derivations of their own.
}

absl::StatusOr<OperationReference> Evaluation::Run(Engine& engine) {
  const std::pair<Floats*, const Tensor*> inputs[] = {{&x_, &call_.x},
                                                      {&gamma_, &call_.gamma},
                                                      {&beta_, &call_.beta},
                                                      {&gradient_, &call_.gradient},
                                                      {&addend_, &call_.addend}};
  for (const auto& [floats, tensor] : inputs) {
    QG_RETURN_IF_ERROR(floats->Load(engine, *tensor, context_.cancellation));
  }
  const Tensor& shaped = SumsOverRows(call_.kind) ? call_.gradient : call_.x;
  rows_ = shaped.rows();
  columns_ = shaped.columns();
  OperationReference reference;
  QG_ASSIGN_OR_RETURN(reference.value, Tensor::Allocate(DType::kF64, OutputShape()));
  QG_ASSIGN_OR_RETURN(reference.error, Tensor::Allocate(DType::kF64, OutputShape()));
  reference.derivation = Derivation();
  if (SumsOverRows(call_.kind)) {
    QG_RETURN_IF_ERROR(EvaluateColumns(reference));
  } else if (rows_ > 0) {
    QG_RETURN_IF_ERROR(EvaluateRows(reference));
  }
  return reference;
}

/// The error that rounding to this dtype adds.
void AddRounding(OperationReference& reference, DType dtype) {
  const error_bound::OutputFacts facts = FactsOfOutput(dtype);
  for (int64_t i = 0; i < reference.value.element_count(); ++i) {
    double& error = reference.error.as<double>()[i];
    // A NaN or an infinity that fp32 has too is no value that is rounded.
    if (!std::isfinite(reference.value.as<double>()[i]) && std::isfinite(error)) continue;
    const double magnitude = std::fabs(reference.value.as<double>()[i]) + error;
    error =
        magnitude < facts.Overflow() ? error + facts.HalfUlp(magnitude) : running_error::kInfinity;
  }
}

/// |subject - value| over the largest that it may be; infinite for a difference of class.
double Ratio(double subject, const RunningError& reference,
             const error_bound::OutputFacts& output) {
  const double value = reference.value;
  // An intermediate may have overflowed: infinity, NaN and everything after them are allowed.
  if (subject == value || reference.error == running_error::kInfinity) return 0;
  if (std::isnan(subject) || std::isnan(value)) {
    return std::isnan(subject) && std::isnan(value) ? 0 : running_error::kInfinity;
  }
  if (std::isinf(value)) return running_error::kInfinity;
  const double error = reference.error + output.HalfUlp(std::fabs(value) + reference.error);
  if (std::isfinite(subject)) return std::fabs(subject - value) / error;
  const double missing = output.Overflow() - std::fabs(value);
  const bool same_sign = (subject > 0) == (value > 0);
  if (!same_sign) return running_error::kInfinity;
  return missing <= 0 ? 0 : missing / error;
}

absl::StatusOr<OperationReference> EvaluateOne(Engine& engine, const OperationCall& call,
                                               const ExecutionContext& context) {
  switch (call.kind) {
    case OperationCall::Kind::kAttention:
    case OperationCall::Kind::kAttentionDq:
    case OperationCall::Kind::kAttentionDk:
    case OperationCall::Kind::kAttentionDv:
      return EvaluateAttention(engine, call, context);
    case OperationCall::Kind::kRotary:
      return EvaluateRotary(engine, call, context);
    default:
      return Evaluation(call, context).Run(engine);
  }
}

}  // namespace

std::vector<const Tensor*> OperationCall::Tensors() const {
  return {&x,
          &gamma,
          &beta,
          &gradient,
          &addend,
          &rotary.heads,
          &rotary.table.cosines,
          &rotary.table.sines,
          &attention.heads};
}

absl::StatusOr<OperationReference> EvaluateOperations(Engine& engine,
                                                      std::span<const OperationCall> calls,
                                                      DType rounded,
                                                      const Cancellation* cancellation) {
  ExecutionContext context;
  context.cancellation = cancellation;
  QG_ASSIGN_OR_RETURN(OperationReference sum, EvaluateOne(engine, calls[0], context));
  bool is_rounded = calls[0].kind == OperationCall::Kind::kCopy;
  for (const OperationCall& call : calls.subspan(1)) {
    QG_ASSIGN_OR_RETURN(OperationReference term, EvaluateOne(engine, call, context));
    if (!is_rounded) AddRounding(sum, rounded);
    if (!call.is_joined && call.kind != OperationCall::Kind::kCopy) AddRounding(term, rounded);
    for (int64_t i = 0; i < sum.value.element_count(); ++i) {
      const RunningError total =
          RunningError{sum.value.as<double>()[i], sum.error.as<double>()[i]} +
          RunningError{term.value.as<double>()[i], term.error.as<double>()[i]};
      sum.value.as<double>()[i] = total.value;
      sum.error.as<double>()[i] = total.error;
    }
    absl::StrAppend(&sum.derivation, "; added to ", term.derivation);
    is_rounded = false;
  }
  return sum;
}

absl::StatusOr<BoundCheck> CheckOperationBound(const OperationReference& reference,
                                               const Tensor& subject,
                                               const Cancellation* cancellation) {
  ExecutionContext context;
  context.cancellation = cancellation;
  const std::vector<float> found = DecodeToFloats(subject);
  const double* values = reference.value.as<double>();
  const double* errors = reference.error.as<double>();
  const error_bound::OutputFacts output = FactsOfOutput(subject.dtype());
  const auto count = static_cast<int64_t>(found.size());
  struct Findings {
    int64_t violations = 0;
    double worst = 0;
  };
  std::vector<Findings> pieces(static_cast<size_t>(count / kGrainElements + 1));
  ParallelFor(context, count, kGrainElements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const double ratio = Ratio(found[i], {values[i], errors[i]}, output);
      Findings& findings = pieces[i / kGrainElements];
      findings.violations += !(ratio <= 1);
      findings.worst = std::max(findings.worst, ratio);
    }
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  BoundCheck check;
  check.bound.derivation = reference.derivation;
  for (const Findings& findings : pieces) {
    check.violation_count += findings.violations;
    check.worst_ratio = std::max(check.worst_ratio, findings.worst);
  }
  check.pass = check.violation_count == 0;
  return check;
}

}  // namespace quantgate

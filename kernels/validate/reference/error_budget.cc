#include "kernels/validate/reference/error_budget.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/layer_program.h"
#include "kernels/numerics/pairwise.h"
#include "kernels/tensor/transpose.h"
#include "kernels/validate/reference/ideal_scale.h"
#include "kernels/validate/run/output_source.h"

namespace quantgate {
namespace {

/// A version of an operand on its way from the given tensor to what the GEMM read: in f32, in the
/// layout of the GEMM, with the stage that made it of the version before.
struct Version {
  std::string stage;
  Tensor matrix;
  bool is_of_scale_rule = false;
};

/// One side of a GEMM.
struct Side {
  TensorRole role;
  std::string name;  ///< "x", "weight", "grad_output", "fc1.x", ...
  const GemmOperand* operand;
  bool k_is_last;     ///< Whether K is the last dim of the operand's layout.
  Usage usage;        ///< The copy that was read, or dequantized.
  bool is_quantized;  ///< Whether it was codes, or dequantized from codes.
  bool is_transposed;
  bool is_cast;                   ///< Whether identity cast it to another dtype.
  std::vector<Version> versions;  ///< The original first.
};

/// The bias that a GEMM's epilogue adds, as it was given; absent if it adds none.
Tensor GivenBias(const LayerRequest& request, const GemmRecord& gemm) {
  if (!gemm.desc.bias.has_value()) return Tensor();
  const auto programs = ProgramsOf(request.layer, [&](const std::string& parameter) {
    return request.parameters.contains(parameter);
  });
  for (const LayerProgram& program : programs) {
    for (const ProgramOperation& operation : program.operations) {
      if (operation.weight == gemm.b.tensor) return FindGiven(request, operation.bias);
    }
  }
  return Tensor();
}

std::pair<Side, Side> SidesOf(const GemmRecord& gemm) {
  const bool is_fprop = gemm.role == GemmRole::kFprop;
  Side a{is_fprop ? TensorRole::kInput : TensorRole::kGradOutput,
         gemm.a.tensor,
         &gemm.desc.a,
         gemm.desc.layout != GemmLayout::kNT,
         gemm.role == GemmRole::kWgrad ? Usage::kColumnwise : Usage::kRowwise,
         false,
         false,
         gemm.a.content == OperandOrigin::Content::kCast,
         {}};
  const bool is_wgrad = gemm.role == GemmRole::kWgrad;
  Side b{is_wgrad ? TensorRole::kInput : TensorRole::kWeight,
         gemm.b.tensor,
         &gemm.desc.b,
         gemm.desc.layout == GemmLayout::kTN,
         is_fprop ? Usage::kRowwise : Usage::kColumnwise,
         false,
         false,
         gemm.b.content == OperandOrigin::Content::kCast,
         {}};
  for (auto [side, origin] : {std::pair(&a, &gemm.a), std::pair(&b, &gemm.b)}) {
    const bool is_dequantized = origin->content == OperandOrigin::Content::kDequantized;
    side->is_quantized = is_dequantized || side->operand->scaling != ScaleMode::kNone;
    if (is_dequantized) side->usage = Usage::kRowwise;
    // Copies stored for TN GEMMs have the contracted dim last, which columnwise is the first one.
    side->is_transposed = side->operand->scaling != ScaleMode::kNone &&
                          side->usage == Usage::kColumnwise && side->k_is_last;
  }
  return {std::move(a), std::move(b)};
}

/// A format whose codes a GEMM reads with this scaling.
QuantizerFormat FormatOf(ScaleMode scaling) {
  for (const ScalingTraits& traits : AllQuantizerFormats()) {
    if (traits.scale_modes[0] == scaling || traits.scale_modes[1] == scaling) return traits.format;
  }
  return QuantizerFormat::kIdentity;
}

/// The values of one direction of a tensor in f32, in the operand's layout.
absl::StatusOr<Tensor> OperandValues(Engine& engine, const Side& side,
                                     const Cancellation* cancellation) {
  const GemmOperand& operand = *side.operand;
  if (operand.scaling == ScaleMode::kNone) {
    return engine.Cast(operand.data, DType::kF32, cancellation);
  }
  QuantizedCopy copy;
  copy.format = FormatOf(operand.scaling);
  copy.element = operand.data.dtype();
  copy.block_dim = ScaleBlockOf(operand.scaling).rows > 1 ? 2 : 1;
  copy.data = operand.data;
  copy.scale_inv = operand.scale_inv;
  copy.amax = operand.amax;
  copy.e4m3_max = operand.e4m3_max;
  QuantizedTensor quantized;
  quantized.shape = operand.data.shape();
  if (copy.element == DType::kF4E2M1x2) quantized.shape.back() *= 2;
  const Usage usage = side.k_is_last ? Usage::kRowwise : Usage::kColumnwise;
  quantized.copy(usage) = std::move(copy);
  return engine.Dequantize(quantized, usage, DType::kF32, cancellation);
}

class Budgets {
 public:
  Budgets(Engine& engine, const LayerRequest& request, const Recipe& recipe,
          const LayerResult& result, const Cancellation* cancellation)
      : engine_(engine),
        request_(request),
        recipe_(RecipeOfLayer(request.layer, recipe)),
        result_(result),
        cancellation_(cancellation) {
    context_.cancellation = cancellation;
  }

  absl::StatusOr<ErrorBudget> Measure(const GemmRecord& gemm);

 private:
  absl::Status AddVersions(const Recipe& recipe, Side& side) const;
  /// The exact product of two f32 matrices in gemm's layout, with its epilogue, in f32.
  absl::StatusOr<Tensor> Exact(const GemmDesc& desc, const Tensor& a, const Tensor& b) const;
  absl::StatusOr<Tensor> Accumulated(const GemmRecord& gemm) const;
  /// Copies a tensor to the host, where sums of differences are formed.
  absl::StatusOr<Tensor> OnHost(absl::StatusOr<Tensor> tensor) const {
    QG_RETURN_IF_ERROR(tensor.status());
    return engine_.ToHost(*tensor, cancellation_);
  }

  Engine& engine_;
  const LayerRequest& request_;
  const Recipe recipe_;
  const LayerResult& result_;
  const Cancellation* const cancellation_;
  ExecutionContext context_;
};

/// `recipe`: that of the GEMM's module.
absl::Status Budgets::AddVersions(const Recipe& recipe, Side& side) const {
  Tensor given = FindGiven(request_, side.name);
  const bool is_given = given.has_value();
  if (!is_given) given = FindComputed(result_, side.name);
  if (!given.has_value()) {
    return absl::InternalError(
        absl::StrCat("a GEMM reads ", side.name, ", which the layer does not say"));
  }
  QG_ASSIGN_OR_RETURN(Tensor matrix,
                      given.Reinterpret(given.dtype(), {given.rows(), given.columns()}));
  const QuantizerSpec spec = recipe.QuantizerFor(side.role).spec(side.usage);
  const auto add = [&](const std::string& stage, const Tensor& source) -> absl::Status {
    QG_ASSIGN_OR_RETURN(Tensor version, OnHost(engine_.Cast(source, DType::kF32, cancellation_)));
    if (side.is_transposed) {
      QG_ASSIGN_OR_RETURN(version, Transpose2d(version, context_));
    }
    if (side.is_quantized && side.usage == Usage::kColumnwise && spec.hadamard) {
      QG_ASSIGN_OR_RETURN(version, WithHadamard(version, context_));
    }
    side.versions.push_back({stage, std::move(version)});
    return absl::OkStatus();
  };
  QG_RETURN_IF_ERROR(add(side.name, matrix));
  // Activations and gradients enter in the activation dtype; weights are quantized as given, and
  // what another operation left unrounded as it is.
  const DType activation = recipe_.activation_dtype().value_or(request_.x.dtype());
  const bool is_cast =
      side.role == TensorRole::kWeight ? !side.is_quantized && !side.is_cast : is_given;
  if (matrix.dtype() != activation && is_cast) {
    QG_ASSIGN_OR_RETURN(const Tensor cast, engine_.Cast(matrix, activation, cancellation_));
    QG_RETURN_IF_ERROR(add(absl::StrCat(side.name, ": cast"), cast));
  }
  if (side.is_cast) {
    QG_ASSIGN_OR_RETURN(Tensor used, OnHost(OperandValues(engine_, side, cancellation_)));
    side.versions.push_back({absl::StrCat(side.name, ": identity"), std::move(used)});
    return absl::OkStatus();
  }
  if (!side.is_quantized) return absl::OkStatus();
  const bool along_rows = side.k_is_last || side.usage == Usage::kRowwise;
  QG_ASSIGN_OR_RETURN(Tensor ideal,
                      WithIdealScales(side.versions.back().matrix, spec, along_rows, context_));
  side.versions.push_back({absl::StrCat(side.name, ": elements"), std::move(ideal)});
  QG_ASSIGN_OR_RETURN(Tensor used, OnHost(OperandValues(engine_, side, cancellation_)));
  side.versions.push_back({absl::StrCat(side.name, ": scale rule"), std::move(used), true});
  return absl::OkStatus();
}

absl::StatusOr<Tensor> Budgets::Exact(const GemmDesc& like, const Tensor& a,
                                      const Tensor& b) const {
  GemmDesc desc = like;
  desc.a = {};
  desc.b = {};
  desc.a.data = a;
  desc.b.data = b;
  desc.arithmetic = Arithmetic{ArithmeticFamily::kExact};
  desc.use_split_accumulator = false;
  desc.in_place = false;
  desc.out_dtype = DType::kF32;
  QG_ASSIGN_OR_RETURN(GemmResult result, engine_.Gemm(desc, cancellation_));
  return OnHost(result.d);
}

/// The output before its cast.
absl::StatusOr<Tensor> Budgets::Accumulated(const GemmRecord& gemm) const {
  GemmDesc desc = gemm.desc;
  desc.out_dtype = DType::kF32;
  // cuBLASLt adds an f32 bias to f32 outputs of high-precision operands. Widening is exact.
  if (desc.bias.has_value() && IsHighPrecision(desc.a.data.dtype())) {
    QG_ASSIGN_OR_RETURN(desc.bias, engine_.Cast(desc.bias, DType::kF32, cancellation_));
  }
  QG_ASSIGN_OR_RETURN(GemmResult result, engine_.Gemm(desc, cancellation_));
  return OnHost(result.d);
}

/// value[i] = sum of sign * array[i].
struct Difference {
  std::string stage;
  std::vector<std::pair<double, const float*>> parts;
  /// The term before this one is the error of the elements under ideal scales; both together are
  /// the error of quantization.
  bool shares_with_previous = false;

  double At(int64_t i) const {
    double sum = 0;
    for (const auto& [sign, values] : parts) sum += sign * static_cast<double>(values[i]);
    return sum;
  }
  bool IsFinite(int64_t i) const {
    return std::all_of(parts.begin(), parts.end(),
                       [&](const auto& part) { return std::isfinite(part.second[i]); });
  }
};

struct TermSums {
  PairwiseAccumulator<double> value, square, with_total;
  double max_abs = 0;

  void Add(double term, double total) {
    value.Add(term);
    square.Add(term * term);
    with_total.Add(term * total);
    max_abs = std::max(max_abs, std::fabs(term));
  }
  BudgetTerm Term(const std::string& stage, int64_t count, double total_square) const {
    BudgetTerm term;
    term.stage = stage;
    if (count == 0) return term;
    term.mean = value.Sum() / static_cast<double>(count);
    term.rms = std::sqrt(square.Sum() / static_cast<double>(count));
    term.max_abs = max_abs;
    term.share = total_square == 0 ? 0 : with_total.Sum() / total_square;
    return term;
  }
};

/// Two quantizations of one tensor have almost independent errors, so the error under ideal scales
/// hardly correlates with the total. The share of both terms together is divided by the powers of
/// the errors: that under ideal scales over that under actual ones.
void DivideShare(const TermSums& together, double total_square, BudgetTerm& elements,
                 BudgetTerm& scale_rule, int64_t count) {
  const double actual_square = together.square.Sum();
  if (actual_square == 0 || total_square == 0) return;
  const double share = together.with_total.Sum() / total_square;
  const double ideal_square = elements.rms * elements.rms * static_cast<double>(count);
  elements.share = share * (ideal_square / actual_square);
  scale_rule.share = share - elements.share;
}

void Summarize(const std::vector<Difference>& terms, const Difference& total, ErrorBudget& budget) {
  std::vector<TermSums> sums(terms.size()), together(terms.size());
  TermSums total_sums;
  int64_t finite = 0;
  for (int64_t i = 0; i < budget.element_count; ++i) {
    const bool is_finite =
        total.IsFinite(i) && std::all_of(terms.begin(), terms.end(),
                                         [&](const Difference& term) { return term.IsFinite(i); });
    if (!is_finite) continue;
    ++finite;
    const double whole = total.At(i);
    double added = 0, previous = 0;
    for (size_t t = 0; t < terms.size(); ++t) {
      const double term = terms[t].At(i);
      sums[t].Add(term, whole);
      if (terms[t].shares_with_previous) together[t].Add(previous + term, whole);
      added += term;
      previous = term;
    }
    total_sums.Add(whole, whole);
    budget.closure = std::max(budget.closure, std::fabs(added - whole));
  }
  budget.non_finite_count = budget.element_count - finite;
  const double total_square = total_sums.square.Sum();
  budget.total = total_sums.Term("total", finite, total_square);
  for (size_t t = 0; t < terms.size(); ++t) {
    budget.terms.push_back(sums[t].Term(terms[t].stage, finite, total_square));
    if (terms[t].shares_with_previous) {
      DivideShare(together[t], total_square, budget.terms[t - 1], budget.terms[t], finite);
    }
  }
}

absl::StatusOr<ErrorBudget> Budgets::Measure(const GemmRecord& gemm) {
  auto [a, b] = SidesOf(gemm);
  const Recipe recipe = RecipeOfParameter(request_.layer, recipe_, gemm.output);
  QG_RETURN_IF_ERROR(AddVersions(recipe, a));
  QG_RETURN_IF_ERROR(AddVersions(recipe, b));
  const Tensor& original_a = a.versions.front().matrix;
  const Tensor& original_b = b.versions.front().matrix;
  std::vector<Tensor> kept;  // Keeps alive what the differences point into.
  const auto values = [&](const Tensor& tensor) {
    kept.push_back(tensor);
    return tensor.as<float>();
  };

  QG_ASSIGN_OR_RETURN(const Tensor base, Exact(gemm.desc, original_a, original_b));
  std::vector<Difference> terms;
  const float* const start = values(base);
  const float* start_of_total = start;
  const Tensor given_bias = GivenBias(request_, gemm);
  if (given_bias.has_value() && gemm.desc.bias.dtype() != given_bias.dtype()) {
    GemmDesc desc = gemm.desc;
    desc.bias = given_bias;
    QG_ASSIGN_OR_RETURN(const Tensor with_given_bias, Exact(desc, original_a, original_b));
    start_of_total = values(with_given_bias);
    terms.push_back({"bias: cast", {{1, start}, {-1, start_of_total}}});
  }
  // Each operand's stages with the other operand original, then the remainder for both together.
  const float* last_of[2] = {start, start};
  for (int s = 0; s < 2; ++s) {
    const Side& side = s == 0 ? a : b;
    for (size_t v = 1; v < side.versions.size(); ++v) {
      const Tensor& matrix = side.versions[v].matrix;
      QG_ASSIGN_OR_RETURN(const Tensor swapped, Exact(gemm.desc, s == 0 ? matrix : original_a,
                                                      s == 0 ? original_b : matrix));
      const float* now = values(swapped);
      terms.push_back({side.versions[v].stage,
                       {{1, now}, {-1, last_of[s]}},
                       side.versions[v].is_of_scale_rule});
      last_of[s] = now;
    }
  }
  GemmDesc own = gemm.desc;
  own.arithmetic = Arithmetic{ArithmeticFamily::kExact};
  own.use_split_accumulator = false;
  own.in_place = false;
  own.out_dtype = DType::kF32;
  QG_ASSIGN_OR_RETURN(const GemmResult own_exact, engine_.Gemm(own, cancellation_));
  QG_ASSIGN_OR_RETURN(const Tensor own_d, OnHost(own_exact.d));
  const float* both = values(own_d);
  if (a.versions.size() > 1 || b.versions.size() > 1) {
    terms.push_back(
        {"both operands together", {{1, both}, {-1, last_of[0]}, {-1, last_of[1]}, {1, start}}});
  }
  QG_ASSIGN_OR_RETURN(const Tensor accumulated, Accumulated(gemm));
  const float* sum = values(accumulated);
  terms.push_back({"accumulation", {{1, sum}, {-1, both}}});
  QG_ASSIGN_OR_RETURN(const Tensor output,
                      OnHost(engine_.Cast(gemm.result.d, DType::kF32, cancellation_)));
  const float* out = values(output);
  if (gemm.desc.out_dtype != DType::kF32) {
    terms.push_back({"output cast", {{1, out}, {-1, sum}}});
  }
  ErrorBudget budget;
  budget.tensor = gemm.output;
  budget.element_count = output.element_count();
  Summarize(terms, {"total", {{1, out}, {-1, start_of_total}}}, budget);
  return budget;
}

}  // namespace

absl::StatusOr<std::vector<ErrorBudget>> MeasureErrorBudgets(Engine& engine,
                                                             const LayerRequest& request,
                                                             const Recipe& recipe,
                                                             const LayerResult& result,
                                                             const Cancellation* cancellation) {
  Budgets budgets(engine, request, recipe, result, cancellation);
  std::vector<ErrorBudget> measured;
  for (const GemmRecord& gemm : result.gemms) {
    // The products of attention give no output, and the core quantizes nothing.
    if (gemm.matrices > 0) continue;
    QG_ASSIGN_OR_RETURN(ErrorBudget budget, budgets.Measure(gemm));
    measured.push_back(std::move(budget));
  }
  return measured;
}

}  // namespace quantgate

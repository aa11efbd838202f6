#include "kernels/validate/explain/explain_gemm.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/compare/element_values.h"
#include "kernels/gemm/epilogue.h"
#include "kernels/gemm/models/rules.h"
#include "kernels/gemm/models/scalar_dot.h"
#include "kernels/numerics/cast.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

constexpr int64_t kSampleRows = 24;
constexpr int64_t kSampleColumns = 24;
constexpr size_t kCoarseStride = 4;
/// The most outputs on which a rule without a name is measured, after it gives the whole sample.
constexpr int64_t kManyOutputs = 4096;
constexpr size_t kMeasuredMany = 16;
/// The most named arithmetics that are evaluated on every output.
constexpr size_t kEvaluatedWhole = 6;
/// The most rules whose promotion intervals and slices are varied.
constexpr size_t kRefined = 6;

constexpr int kSlices[] = {1, 2, 3, 4, 5, 6, 8, 12, 16};
constexpr int kSteps[] = {1, 2, 4, 8, 16, 32, 64, 128};
constexpr int64_t kPromotions[] = {32, 64, 128, 256, 512, 1024};
constexpr int kAlignBits[] = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                              22, 23, 24, 25, 26, 27, 28, 30, 32, 35, 40};

/// The families that model tensor cores: Hopper and later ones in the order of the table, then
/// earlier ones, the latest first.
std::vector<ArithmeticFamily> TensorCoreFamilies() {
  std::vector<ArithmeticFamily> families;
  size_t earlier = 0;
  for (const ArithmeticRow& row : ArithmeticTable()) {
    if (row.rules.empty()) continue;
    if (row.family == ArithmeticFamily::kSm90) {
      earlier = families.size();
      std::reverse(families.begin(), families.end());
    }
    families.push_back(row.family);
  }
  std::rotate(families.begin(), families.begin() + static_cast<ptrdiff_t>(earlier), families.end());
  return families;
}

std::string RuleText(const FusedRule& rule) {
  std::string text =
      absl::StrCat("L=", rule.step, " F=", rule.align_bits, " out=", rule.out_mantissa);
  if (rule.group > 1) absl::StrAppend(&text, ", groups of ", rule.group, " exact");
  if (rule.f16_accumulator) absl::StrAppend(&text, ", fp16 accumulator");
  if (rule.order == ProductOrder::kPairsOfFour) {
    absl::StrAppend(&text, ", k % 4 in {0, 1} before {2, 3}");
  }
  switch (rule.promotion) {
    case Promotion::kNone:
      break;
    case Promotion::kAdd:
      absl::StrAppend(&text, ", promoted every ", rule.promote_k, " of k");
      break;
    case Promotion::kScaled:
      absl::StrAppend(&text, ", scaled by f32(scale_a * scale_b) every ", rule.promote_k, " of k");
      break;
    case Promotion::kScaledTwice:
      absl::StrAppend(&text, ", scaled by scale_a, then scale_b every ", rule.promote_k, " of k");
      break;
  }
  if (rule.slices > 1) {
    absl::StrAppend(&text, ", ", rule.slices, " slices of k in tiles of ", rule.tile_k);
  }
  return text;
}

bool IsNanCode(DType dtype, uint32_t bits) {
  bool nan = false;
  VisitFormat<AllFormats>(dtype, [&]<class F>() {
    nan = Unpack<F>(static_cast<typename F::Storage>(bits)).kind == FloatClass::kNan;
  });
  return nan;
}

/// At most `count` of [0, size), spread evenly, the first and the last among them.
std::vector<int64_t> Spread(int64_t size, int64_t count) {
  std::vector<int64_t> picked;
  const int64_t n = std::min(size, count);
  for (int64_t i = 0; i < n; ++i) picked.push_back(n == 1 ? 0 : i * (size - 1) / (n - 1));
  return picked;
}

/// A rule and the names it has.
struct Trial {
  FusedRule rule;
  std::vector<Arithmetic> names;
  GemmCandidate candidate;
};

class GemmExplainer {
 public:
  GemmExplainer(const ExplainGemmRequest& request, const ExecutionContext& context)
      : desc_(request.desc), d_(request.d), context_(context) {}

  absl::StatusOr<GemmExplanation> Explain();

 private:
  absl::Status Prepare();
  void Add(const FusedRule& rule, const Arithmetic* name);
  void AddNamed();
  /// Adds rules of one chain that differ from `base` in step, alignment or result.
  void AddChains(const FusedRule& base);
  /// Adds rules that differ from `base` in promotion interval or slices of K.
  void AddPromotions(const FusedRule& base);
  /// Evaluates trials_[first ...) on the sample.
  absl::Status EvaluateFrom(size_t first);
  void Evaluate(Trial& trial) const;
  /// Compares the outputs of every `stride`-th sample row and column.
  void CountSample(const FusedRule& rule, const Epilogue& epilogue, size_t stride,
                   GemmCandidate& candidate) const;
  void Count(float accumulator, const Epilogue& epilogue, int64_t row, int64_t column,
             GemmCandidate& candidate) const;
  GemmDesc DescFor(const FusedRule& rule) const;
  /// Measures a trial on at most about kManyOutputs outputs.
  absl::StatusOr<GemmCandidate> Many(const FusedRule& rule) const;
  absl::Status EvaluateRules();
  absl::StatusOr<std::vector<GemmCandidate>> Candidates();
  absl::StatusOr<GemmCandidate> Whole(const Arithmetic& arithmetic) const;
  uint32_t GivenAt(int64_t row, int64_t column) const {
    return static_cast<uint32_t>(ElementBits(d_, row * shape_.n + column));
  }
  bool Same(uint32_t given, uint32_t expected) const {
    return given == expected || (IsNanCode(d_.dtype(), given) && IsNanCode(d_.dtype(), expected));
  }
  FusedRow RowOf(bool is_a, size_t index, const FusedRule& rule) const {
    const auto& rows = (is_a ? a_rows_ : b_rows_)[ScalesSums(rule) ? 1 : 0];
    return rows[index]->row();
  }

  GemmDesc desc_;
  const Tensor& d_;
  const ExecutionContext& context_;
  GemmShape shape_{};
  std::vector<int64_t> rows_, columns_;
  /// Decoded sample rows of both operands, without and with fp32 scales of sums.
  std::vector<std::unique_ptr<DecodedRow>> a_rows_[2], b_rows_[2];
  std::vector<Trial> trials_;
};

/// fp32 takes every operand that any arithmetic takes.
GemmDesc AsFp32(GemmDesc desc, DType out_dtype) {
  desc.out_dtype = out_dtype;
  desc.arithmetic = Arithmetic{ArithmeticFamily::kFp32};
  return desc;
}

absl::Status GemmExplainer::Prepare() {
  QG_ASSIGN_OR_RETURN(shape_, CheckExplainGemm({desc_, d_}));
  desc_ = AsFp32(std::move(desc_), d_.dtype());
  rows_ = Spread(shape_.m, kSampleRows);
  columns_ = Spread(shape_.n, kSampleColumns);
  QG_ASSIGN_OR_RETURN(const OperandView a, ViewOfA(desc_, shape_));
  QG_ASSIGN_OR_RETURN(const OperandView b, ViewOfB(desc_, shape_));
  for (const bool scales_sums : {false, true}) {
    for (const int64_t row : rows_) {
      a_rows_[scales_sums].push_back(std::make_unique<DecodedRow>(a, row, scales_sums));
    }
    for (const int64_t column : columns_) {
      b_rows_[scales_sums].push_back(std::make_unique<DecodedRow>(b, column, scales_sums));
    }
  }
  return absl::OkStatus();
}

void GemmExplainer::Add(const FusedRule& rule, const Arithmetic* name) {
  const auto known = std::find_if(trials_.begin(), trials_.end(),
                                  [&](const Trial& trial) { return trial.rule == rule; });
  Trial& trial = known != trials_.end() ? *known : trials_.emplace_back(Trial{rule, {}, {}});
  if (name != nullptr) trial.names.push_back(*name);
}

void GemmExplainer::AddNamed() {
  // Only FP8 operands have a choice of accumulation.
  const std::vector<Accumulation> accumulations =
      IsFp8(desc_.a.data.dtype())
          ? std::vector<Accumulation>{Accumulation::kFast, Accumulation::kSplit}
          : std::vector<Accumulation>{Accumulation::kRecipe};
  for (const ArithmeticFamily family : TensorCoreFamilies()) {
    for (const Accumulation accumulation : accumulations) {
      for (const int slices : kSlices) {
        for (const bool f16 : {false, true}) {
          GemmDesc desc = desc_;
          desc.arithmetic = {family, accumulation, slices, f16};
          // What an arithmetic refuses, like scales that its hardware does not take, it did not
          // make.
          if (!CheckGemm(desc).ok()) continue;
          const auto rule = RuleFor(desc);
          if (rule.ok() && rule->f16_accumulator == f16) Add(*rule, &desc.arithmetic);
        }
      }
    }
  }
}

void GemmExplainer::AddChains(const FusedRule& base) {
  for (const int step : kSteps) {
    if (base.group > 1 && step % base.group != 0) continue;
    if (base.promotion != Promotion::kNone && base.promote_k % step != 0) continue;
    for (const int align_bits : kAlignBits) {
      for (const int out_mantissa : {13, 23}) {
        FusedRule rule = base;
        rule.step = step;
        rule.align_bits = align_bits;
        rule.out_mantissa = out_mantissa;
        Add(rule, nullptr);
      }
    }
  }
}

void GemmExplainer::AddPromotions(const FusedRule& base) {
  for (const int slices : kSlices) {
    for (const int64_t tile : {32, 64, 128}) {
      FusedRule sliced = base;
      sliced.slices = slices;
      sliced.tile_k = slices == 1 ? 1 : tile;
      Add(sliced, nullptr);
      const bool is_scaled =
          base.promotion == Promotion::kScaled || base.promotion == Promotion::kScaledTwice;
      if (is_scaled) continue;  // Their interval is the block of the scales.
      for (const int64_t interval : kPromotions) {
        if (interval % base.step != 0) continue;
        FusedRule rule = sliced;
        rule.promotion = Promotion::kAdd;
        rule.promote_k = interval;
        Add(rule, nullptr);
      }
    }
  }
}

void GemmExplainer::Evaluate(Trial& trial) const {
  Tensor unused = d_;
  const Epilogue epilogue(DescFor(trial.rule), shape_, unused);
  GemmCandidate& candidate = trial.candidate;
  candidate.rule = RuleText(trial.rule);
  for (const Arithmetic& name : trial.names) {
    absl::StrAppend(&candidate.arithmetic, candidate.arithmetic.empty() ? "" : ", ",
                    name.ToString());
  }
  // A part of the sample rules out most rules without a name.
  CountSample(trial.rule, epilogue, kCoarseStride, candidate);
  if (trial.names.empty() && !candidate.is_entire()) return;
  candidate.match_count = candidate.output_count = 0;
  candidate.first_difference.reset();
  CountSample(trial.rule, epilogue, 1, candidate);
  candidate.gives_sample = candidate.is_entire();
}

GemmDesc GemmExplainer::DescFor(const FusedRule& rule) const {
  GemmDesc desc = desc_;
  // What the epilogue asks of an arithmetic is whether K was split.
  desc.arithmetic = Arithmetic{ArithmeticFamily::kSm90, Accumulation::kRecipe, rule.slices};
  return desc;
}

void GemmExplainer::Count(float accumulator, const Epilogue& epilogue, int64_t row, int64_t column,
                          GemmCandidate& candidate) const {
  alignas(8) std::byte code[8] = {};
  epilogue.ApplyTo(row, column, 1, &accumulator, code);
  uint32_t expected = 0;
  std::memcpy(&expected, code, DTypeBytes(d_.dtype()));
  const uint32_t given = GivenAt(row, column);
  ++candidate.output_count;
  if (Same(given, expected)) {
    ++candidate.match_count;
  } else if (!candidate.first_difference.has_value()) {
    candidate.first_difference = OutputAt{row, column, given, expected};
  }
}

void GemmExplainer::CountSample(const FusedRule& rule, const Epilogue& epilogue, size_t stride,
                                GemmCandidate& candidate) const {
  for (size_t i = 0; i < rows_.size(); i += stride) {
    const FusedRow a = RowOf(true, i, rule);
    for (size_t j = 0; j < columns_.size(); j += stride) {
      Count(DotUnder(rule, a, RowOf(false, j, rule), shape_.k), epilogue, rows_[i], columns_[j],
            candidate);
    }
  }
}

absl::Status GemmExplainer::EvaluateFrom(size_t first) {
  ParallelFor(context_, static_cast<int64_t>(trials_.size() - first), 1,
              [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) Evaluate(trials_[first + i]);
              });
  return context_.CheckCancelled();
}

absl::StatusOr<GemmCandidate> GemmExplainer::Many(const FusedRule& rule) const {
  QG_ASSIGN_OR_RETURN(const OperandView a, ViewOfA(desc_, shape_));
  QG_ASSIGN_OR_RETURN(const OperandView b, ViewOfB(desc_, shape_));
  Tensor unused = d_;
  const Epilogue epilogue(DescFor(rule), shape_, unused);
  // Whole rows of outputs, as many as the bound allows, spread over d.
  const std::vector<int64_t> rows = Spread(shape_.m, std::max<int64_t>(1, kManyOutputs / shape_.n));
  const std::vector<int64_t> columns = Spread(shape_.n, kManyOutputs);
  // The fewer side is decoded once: at most the square root of kManyOutputs.
  const bool fewer_rows = rows.size() <= columns.size();
  const std::vector<int64_t>& few = fewer_rows ? rows : columns;
  const std::vector<int64_t>& many = fewer_rows ? columns : rows;
  std::vector<std::unique_ptr<DecodedRow>> decoded;
  for (const int64_t index : few) {
    decoded.push_back(std::make_unique<DecodedRow>(fewer_rows ? a : b, index, ScalesSums(rule)));
  }
  std::vector<GemmCandidate> parts(many.size());
  ParallelFor(context_, static_cast<int64_t>(many.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const DecodedRow one(fewer_rows ? b : a, many[i], ScalesSums(rule));
      for (size_t j = 0; j < few.size(); ++j) {
        const FusedRow row_a = fewer_rows ? decoded[j]->row() : one.row();
        const FusedRow row_b = fewer_rows ? one.row() : decoded[j]->row();
        Count(DotUnder(rule, row_a, row_b, shape_.k), epilogue, fewer_rows ? few[j] : many[i],
              fewer_rows ? many[i] : few[j], parts[i]);
      }
    }
  });
  QG_RETURN_IF_ERROR(context_.CheckCancelled());
  GemmCandidate sum;
  for (const GemmCandidate& part : parts) {
    sum.match_count += part.match_count;
    sum.output_count += part.output_count;
    if (!sum.first_difference.has_value()) sum.first_difference = part.first_difference;
  }
  return sum;
}

absl::StatusOr<GemmCandidate> GemmExplainer::Whole(const Arithmetic& arithmetic) const {
  GemmDesc desc = desc_;
  desc.arithmetic = arithmetic;
  // The caller says whether d is in place; a rule with one rounding does not depend on it.
  if (arithmetic.family == ArithmeticFamily::kExact) desc.in_place = false;
  QG_ASSIGN_OR_RETURN(const GemmResult result, GemmCpu(desc, context_));
  GemmCandidate candidate;
  candidate.output_count = d_.element_count();
  for (int64_t i = 0; i < candidate.output_count; ++i) {
    const auto given = static_cast<uint32_t>(ElementBits(d_, i));
    const auto expected = static_cast<uint32_t>(ElementBits(result.d, i));
    if (Same(given, expected)) {
      ++candidate.match_count;
    } else if (!candidate.first_difference.has_value()) {
      candidate.first_difference = OutputAt{i / shape_.n, i % shape_.n, given, expected};
    }
  }
  return candidate;
}

/// Best first: rules that give the whole sample, then named rules, then by the share of outputs.
bool IsBetter(const GemmCandidate& left, const GemmCandidate& right) {
  const auto key = [](const GemmCandidate& c) {
    return std::tuple(c.gives_sample, !c.arithmetic.empty(),
                      double(c.match_count) / double(c.output_count), c.output_count);
  };
  return key(left) > key(right);
}

absl::Status GemmExplainer::EvaluateRules() {
  AddNamed();
  QG_RETURN_IF_ERROR(EvaluateFrom(0));
  if (trials_.empty()) return absl::OkStatus();  // No tensor core takes the operands.
  // Chains around the first rule of the operands.
  size_t first = trials_.size();
  FusedRule base = trials_.front().rule;
  base.slices = 1;
  base.tile_k = 1;
  if (base.promotion == Promotion::kAdd) {
    base.promotion = Promotion::kNone;
    base.promote_k = 0;
  }
  AddChains(base);
  QG_RETURN_IF_ERROR(EvaluateFrom(first));
  // Promotions and slices around the best so far.
  first = trials_.size();
  std::vector<std::pair<double, FusedRule>> best;
  for (const Trial& trial : trials_) {
    best.emplace_back(double(trial.candidate.match_count) / double(trial.candidate.output_count),
                      trial.rule);
  }
  std::stable_sort(best.begin(), best.end(),
                   [](const auto& left, const auto& right) { return left.first > right.first; });
  for (size_t i = 0; i < std::min(best.size(), kRefined); ++i) {
    FusedRule rule = best[i].second;
    rule.slices = 1;
    rule.tile_k = 1;
    AddPromotions(rule);
  }
  return EvaluateFrom(first);
}

/// The best trials as candidates, the named ones measured on every output and the others on many.
absl::StatusOr<std::vector<GemmCandidate>> GemmExplainer::Candidates() {
  std::stable_sort(trials_.begin(), trials_.end(), [](const Trial& left, const Trial& right) {
    return IsBetter(left.candidate, right.candidate);
  });
  std::vector<GemmCandidate> candidates;
  size_t whole = 0, many = 0;
  for (const Trial& trial : trials_) {
    GemmCandidate candidate = trial.candidate;
    if (!trial.names.empty() && whole < kEvaluatedWhole) {
      ++whole;
      QG_ASSIGN_OR_RETURN(candidate, Whole(trial.names.front()));
    } else if (candidate.gives_sample) {
      // Rules that are not measured cannot be ranked beside measured ones.
      if (++many > kMeasuredMany) continue;
      QG_ASSIGN_OR_RETURN(candidate, Many(trial.rule));
    }
    candidate.rule = trial.candidate.rule;
    candidate.arithmetic = trial.candidate.arithmetic;
    candidate.gives_sample = trial.candidate.gives_sample;
    candidates.push_back(std::move(candidate));
  }
  for (const auto& [family, rule] :
       {std::pair(ArithmeticFamily::kFp32, "sequential fp32 fused multiply-add over k"),
        {ArithmeticFamily::kExact, "the real-number result, rounded once"}}) {
    QG_ASSIGN_OR_RETURN(GemmCandidate candidate, Whole(Arithmetic{family}));
    candidate.arithmetic = Arithmetic{family}.ToString();
    candidate.rule = rule;
    candidate.gives_sample = candidate.is_entire();
    candidates.push_back(std::move(candidate));
  }
  std::stable_sort(candidates.begin(), candidates.end(), IsBetter);
  return candidates;
}

absl::StatusOr<GemmExplanation> GemmExplainer::Explain() {
  QG_RETURN_IF_ERROR(Prepare());
  const ScopedIeeeEnvironment ieee;
  QG_RETURN_IF_ERROR(EvaluateRules());
  GemmExplanation explanation;
  explanation.sample_count = static_cast<int64_t>(rows_.size() * columns_.size());
  QG_ASSIGN_OR_RETURN(explanation.candidates, Candidates());
  const std::vector<GemmCandidate>& all = explanation.candidates;
  explanation.is_established =
      std::any_of(all.begin(), all.end(), [](const auto& one) { return one.is_entire(); }) &&
      std::any_of(all.begin(), all.end(),
                  [](const auto& one) { return !one.arithmetic.empty() && !one.is_entire(); });
  explanation.tried = static_cast<int64_t>(trials_.size()) + 2;  // fp32 and exact.
  if (explanation.candidates.size() > kGemmCandidatesKept) {
    explanation.candidates.resize(kGemmCandidatesKept);
  }
  return explanation;
}

}  // namespace

absl::StatusOr<GemmShape> CheckExplainGemm(const ExplainGemmRequest& request) {
  const Tensor& d = request.d;
  if (!d.has_value() || !(IsHighPrecision(d.dtype()) || IsFp8(d.dtype()))) {
    return Refuse("d", d.has_value() ? TensorText(d) : "absent",
                  "must be given, of f32, bf16, f16, f8_e4m3 or f8_e5m2");
  }
  QG_ASSIGN_OR_RETURN(const GemmShape shape, CheckGemm(AsFp32(request.desc, d.dtype())));
  if (d.shape() != Shape{shape.m, shape.n}) {
    return Refuse("d", TensorText(d), absl::StrCat("the GEMM's output is ", shape.m, "x", shape.n));
  }
  if (d.element_count() == 0) return Refuse("d", TensorText(d), "there are no outputs to explain");
  return shape;
}

absl::StatusOr<GemmExplanation> ExplainGemm(const ExplainGemmRequest& request,
                                            const ExecutionContext& context) {
  return GemmExplainer(request, context).Explain();
}

}  // namespace quantgate

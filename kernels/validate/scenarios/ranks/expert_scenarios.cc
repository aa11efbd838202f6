// Experts on several ranks: rows, sums and gradients are those of all experts on one.
#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/experts/expert_parallel.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/numerics/cast.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"
#include "kernels/validate/scenarios/ranks/virtual_ranks.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

constexpr int64_t kIn = 64, kOut = 64, kExperts = 4, kChoices = 3, kTokens = 40;
constexpr int64_t kIdle = 2;        ///< An expert to which no token is routed.
constexpr int64_t kWholeRows = 32;  ///< Rows of an expert are padded to this multiple.

/// The tokens of all ranks, their routing, and the weights of the experts.
struct Mixture {
  Tensor x, grad_output, weights;
  std::vector<int64_t> experts;
  std::vector<Tensor> expert_weights;
};

absl::StatusOr<Mixture> MakeMixture(ScenarioContext& context) {
  Mixture mixture;
  const auto normal = [&](uint64_t seed, DType dtype, Shape shape) {
    return context.Generate(Distribution::kNormal, seed, dtype, std::move(shape));
  };
  QG_ASSIGN_OR_RETURN(mixture.x, normal(500, DType::kBF16, {kTokens, kIn}));
  // The first token is far larger than the others, so that an amax that wrongly includes it shows.
  for (int64_t k = 0; k < kIn; ++k) SetValue(mixture.x, k, 64.0f * ValueAt(mixture.x, k));
  QG_ASSIGN_OR_RETURN(mixture.grad_output, normal(501, DType::kBF16, {kTokens, kOut}));
  QG_ASSIGN_OR_RETURN(mixture.weights, normal(502, DType::kF32, {kTokens, kChoices}));
  for (int64_t i = 0; i < kTokens * kChoices; ++i) {
    const int64_t expert = (i / kChoices + (i / kChoices % 3 + 1) * (i % kChoices)) % kExperts;
    mixture.experts.push_back(i < kChoices ? 0 : expert == kIdle ? kIdle + 1 : expert);
  }
  for (int64_t expert = 0; expert < kExperts; ++expert) {
    QG_ASSIGN_OR_RETURN(Tensor weight, normal(510 + expert, DType::kBF16, {kOut, kIn}));
    mixture.expert_weights.push_back(std::move(weight));
  }
  return mixture;
}

/// Positions in Mixture::experts of the choices of an expert, in the order of tokens.
std::vector<int64_t> ChoicesOf(const Mixture& mixture, int64_t expert) {
  std::vector<int64_t> choices;
  for (size_t i = 0; i < mixture.experts.size(); ++i) {
    if (mixture.experts[i] == expert) choices.push_back(static_cast<int64_t>(i));
  }
  return choices;
}

/// For each choice the row of its token, times its factor if there are factors; then rows of zeros
/// up to a multiple of kWholeRows.
absl::StatusOr<Tensor> RowsFor(const std::vector<int64_t>& choices, const Tensor& tokens,
                               const Tensor& factors) {
  const int64_t columns = tokens.columns();
  const int64_t count = static_cast<int64_t>(choices.size());
  QG_ASSIGN_OR_RETURN(
      Tensor rows, Tensor::Allocate(DType::kBF16,
                                    {(count + kWholeRows - 1) / kWholeRows * kWholeRows, columns}));
  for (int64_t i = 0; i < rows.element_count(); ++i) {
    const int64_t row = i / columns;
    float value = 0;
    if (row < count) {
      value = ValueAt(tokens, choices[row] / kChoices * columns + i % columns);
      if (factors.has_value()) value *= factors.as<float>()[choices[row]];
    }
    SetValue(rows, i, value);
  }
  return rows;
}

/// Rounds to bf16 (RNE) if `accumulation` rounds each partial sum.
float Rounded(float value, SumAccumulation accumulation) {
  if (accumulation == SumAccumulation::kF32) return value;
  return DecodeFloat<BFloat16>(EncodeFloat<BFloat16>(value));
}

/// Collects the rows of all choices, and sums those of each token in the order of its choices.
class ChoiceSums {
 public:
  ChoiceSums(int64_t columns, SumAccumulation accumulation)
      : columns_(columns),
        accumulation_(accumulation),
        terms_(static_cast<size_t>(kTokens * kChoices * columns)) {}
  void Take(const std::vector<int64_t>& choices, const Tensor& rows) {
    for (size_t i = 0; i < choices.size(); ++i) {
      for (int64_t k = 0; k < columns_; ++k) {
        terms_[static_cast<size_t>(choices[i] * columns_ + k)] =
            ValueAt(rows, static_cast<int64_t>(i) * columns_ + k);
      }
    }
  }
  absl::StatusOr<Tensor> Total(const Tensor& factors) const {
    QG_ASSIGN_OR_RETURN(Tensor total, Tensor::Allocate(DType::kBF16, {kTokens, columns_}));
    for (int64_t i = 0; i < total.element_count(); ++i) {
      float sum = 0;
      for (int64_t choice = 0; choice < kChoices; ++choice) {
        const int64_t at = i / columns_ * kChoices + choice;
        float term = terms_[static_cast<size_t>(at * columns_ + i % columns_)];
        if (factors.has_value()) term *= factors.as<float>()[at];
        term = Rounded(term, accumulation_);
        sum = choice == 0 ? term : Rounded(sum + term, accumulation_);
      }
      SetValue(total, i, sum);
    }
    return total;
  }

 private:
  const int64_t columns_;
  const SumAccumulation accumulation_;
  std::vector<float> terms_;
};

struct Outcome {
  Tensor y, dx;
  std::vector<Tensor> dw;
};

/// Computes the layer expert by expert on the reference engine.
absl::StatusOr<Outcome> ExpectedOutcome(ScenarioContext& context, const Mixture& mixture,
                                        SumAccumulation accumulation) {
  Outcome outcome;
  ChoiceSums y(kOut, accumulation), dx(kIn, accumulation);
  for (int64_t expert = 0; expert < kExperts; ++expert) {
    const std::vector<int64_t> choices = ChoicesOf(mixture, expert);
    LayerRequest request;
    QG_ASSIGN_OR_RETURN(request.x, RowsFor(choices, mixture.x, Tensor()));
    QG_ASSIGN_OR_RETURN(request.grad_output,
                        RowsFor(choices, mixture.grad_output, mixture.weights));
    request.parameters["weight"] = mixture.expert_weights[static_cast<size_t>(expert)];
    QG_ASSIGN_OR_RETURN(const LayerResult result,
                        RunLayer(context.reference(), request, context.recipe(), Arithmetic(),
                                 context.cancellation()));
    for (const NamedTensor& output : result.outputs) {
      if (output.name == "y") y.Take(choices, output.tensor);
      if (output.name == "dx") dx.Take(choices, output.tensor);
      if (output.name == "dw") outcome.dw.push_back(output.tensor);
    }
  }
  QG_ASSIGN_OR_RETURN(outcome.y, y.Total(mixture.weights));
  QG_ASSIGN_OR_RETURN(outcome.dx, dx.Total(Tensor()));
  return outcome;
}

/// Bounds of the tokens of each rank: uneven, and of four ranks one has no tokens.
std::vector<int64_t> TokenBounds(int ranks) {
  if (ranks == 2) return {0, 23, kTokens};
  if (ranks == 4) return {0, 9, 9, 31, kTokens};
  return {0, kTokens};
}

struct MixtureStep {
  int ranks = 1;
  ExpertPayload payload = ExpertPayload::kSource;
  SumAccumulation combine = SumAccumulation::kF32;
  uint64_t seed = 0;
};

absl::Status StepOfRank(const GatherContext& rank, const Recipe& recipe, const Mixture& mixture,
                        const MixtureStep& how, std::vector<Tensor>& y, std::vector<Tensor>& dx,
                        std::vector<Tensor>& dw) {
  const int index = rank.group.rank();
  const std::vector<int64_t> bounds = TokenBounds(how.ranks);
  const int64_t first = bounds[index], count = bounds[index + 1] - first;
  ExpertOptions options;
  for (int i = 0; i <= how.ranks; ++i) options.first_expert.push_back(i * kExperts / how.ranks);
  options.row_multiple = kWholeRows;
  options.payload = how.payload;
  options.combine = how.combine;
  LayerState state;
  const int64_t first_expert = options.first_expert[index];
  for (int64_t expert = first_expert; expert < options.first_expert[index + 1]; ++expert) {
    state.parameters[absl::StrCat("weight.", expert - first_expert)].value =
        mixture.expert_weights[static_cast<size_t>(expert)];
  }
  ExpertRouting routing;
  routing.choices = kChoices;
  routing.experts = {mixture.experts.begin() + first * kChoices,
                     mixture.experts.begin() + (first + count) * kChoices};
  QG_ASSIGN_OR_RETURN(routing.weights, TakeRows(mixture.weights, first, count));
  QG_ASSIGN_OR_RETURN(const Tensor x, TakeRows(mixture.x, first, count));
  QG_ASSIGN_OR_RETURN(const Tensor grad_output, TakeRows(mixture.grad_output, first, count));
  StepRecorder recorder(rank.engine, Arithmetic(), rank.cancellation);
  LayerSpec layer;
  layer.kind = LayerKind::kGroupedLinear;
  StepOptions step = {.recipe = recipe, .seed = how.seed};
  QG_ASSIGN_OR_RETURN(ExpertForward forward, ForwardExperts(recorder, rank.group, options, layer,
                                                            state, x, routing, step));
  QG_ASSIGN_OR_RETURN(
      BackwardResult backward,
      BackwardExperts(recorder, rank.group, std::move(forward.saved), state, grad_output));
  const auto to_host = [&](const Tensor& tensor) {
    return rank.engine.ToHost(tensor, rank.cancellation);
  };
  QG_ASSIGN_OR_RETURN(y[index], to_host(forward.y));
  QG_ASSIGN_OR_RETURN(dx[index], to_host(backward.dx));
  for (const NamedTensor& gradient : backward.gradients) {
    const int64_t expert = first_expert + gradient.name.back() - '0';
    QG_ASSIGN_OR_RETURN(dw[static_cast<size_t>(expert)], to_host(gradient.tensor));
  }
  return absl::OkStatus();
}

/// Runs the step on ranks. The tensors of the result are absent if a rank failed.
absl::StatusOr<Outcome> OutcomeOnRanks(ScenarioContext& context, const Mixture& mixture,
                                       const MixtureStep& how) {
  std::vector<Tensor> y(static_cast<size_t>(how.ranks)), dx(y.size());
  std::vector<Tensor> dw(static_cast<size_t>(kExperts));
  const bool is_done =
      RunOnRanks(context, how.ranks, absl::StrCat("step of ", how.ranks, " ranks"),
                 [&](const GatherContext& rank) {
                   return StepOfRank(rank, context.recipe(), mixture, how, y, dx, dw);
                 });
  Outcome outcome;
  if (!is_done) return outcome;
  Engine& reference = context.reference();
  QG_ASSIGN_OR_RETURN(outcome.y, reference.ConcatenateRows(y, context.cancellation()));
  QG_ASSIGN_OR_RETURN(outcome.dx, reference.ConcatenateRows(dx, context.cancellation()));
  outcome.dw = std::move(dw);
  return outcome;
}

absl::Status ExpectOutcome(ScenarioContext& context, const std::string& where,
                           const Outcome& subject, const Outcome& expected) {
  if (!subject.y.has_value()) return absl::OkStatus();
  QG_RETURN_IF_ERROR(context.ExpectSameBits(where + "y", subject.y, expected.y));
  QG_RETURN_IF_ERROR(context.ExpectSameBits(where + "dx", subject.dx, expected.dx));
  for (size_t expert = 0; expert < subject.dw.size(); ++expert) {
    QG_RETURN_IF_ERROR(context.ExpectSameBits(absl::StrCat(where, "dw.", expert),
                                              subject.dw[expert], expected.dw[expert]));
  }
  return absl::OkStatus();
}

absl::Status CheckExperts(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const Mixture mixture, MakeMixture(context));
  for (const SumAccumulation combine : {SumAccumulation::kF32, SumAccumulation::kElement}) {
    QG_ASSIGN_OR_RETURN(const Outcome expected, ExpectedOutcome(context, mixture, combine));
    for (const int ranks : {1, 2, 4}) {
      QG_ASSIGN_OR_RETURN(const Outcome outcome,
                          OutcomeOnRanks(context, mixture, {.ranks = ranks, .combine = combine}));
      QG_RETURN_IF_ERROR(
          ExpectOutcome(context, absl::StrCat("on ", ranks, " ranks: "), outcome, expected));
    }
  }
  return absl::OkStatus();
}

/// Gradients are rounded stochastically: each expert draws by its number in the whole group, so
/// that the number of ranks does not matter.
absl::Status CheckExpertNumbers(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const Mixture mixture, MakeMixture(context));
  QG_ASSIGN_OR_RETURN(const Outcome alone,
                      OutcomeOnRanks(context, mixture, {.ranks = 1, .seed = 520}));
  if (!alone.y.has_value()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(const Outcome outcome,
                      OutcomeOnRanks(context, mixture, {.ranks = 4, .seed = 520}));
  return ExpectOutcome(context, "on 4 ranks: ", outcome, alone);
}

/// Rows that travel as codes must give the same y as rows that travel unquantized.
absl::Status CheckCodesTravel(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const Mixture mixture, MakeMixture(context));
  QG_ASSIGN_OR_RETURN(const Outcome expected,
                      ExpectedOutcome(context, mixture, SumAccumulation::kF32));
  for (const int ranks : {1, 2, 4}) {
    QG_ASSIGN_OR_RETURN(
        const Outcome outcome,
        OutcomeOnRanks(context, mixture, {.ranks = ranks, .payload = ExpertPayload::kMxfp8}));
    if (!outcome.y.has_value()) continue;
    QG_RETURN_IF_ERROR(
        context.ExpectSameBits(absl::StrCat("y on ", ranks, " ranks"), outcome.y, expected.y));
  }
  return absl::OkStatus();
}

// ---- Faults

EngineAlterations LastChoiceFirst() {
  EngineAlterations alterations;
  alterations.sum_rows = [](Engine& engine, RowSums sums,
                            const Cancellation* cancellation) -> absl::StatusOr<Tensor> {
    std::vector<int64_t> order(sums.positions.size()), positions;
    std::iota(order.begin(), order.end(), int64_t{0});
    for (auto token = order.begin(); token != order.end(); token += sums.choices) {
      std::reverse(token, token + sums.choices);
    }
    for (const int64_t at : order) positions.push_back(sums.positions[static_cast<size_t>(at)]);
    sums.positions = positions;
    if (sums.weights.has_value()) {
      const auto count = static_cast<int64_t>(order.size());
      QG_ASSIGN_OR_RETURN(const Tensor weights, sums.weights.Reinterpret(DType::kF32, {count}));
      QG_ASSIGN_OR_RETURN(sums.weights, engine.GatherRows(weights, order, cancellation));
    }
    return engine.SumRows(sums, cancellation);
  };
  return alterations;
}

EngineAlterations PadWithRows() {
  EngineAlterations alterations;
  alterations.gather_rows = [](Engine& engine, const Tensor& source, std::vector<int64_t> rows,
                               const Cancellation* cancellation) {
    if (source.shape()[0] > 0) std::replace(rows.begin(), rows.end(), kNoRow, int64_t{0});
    return engine.GatherRows(source, rows, cancellation);
  };
  return alterations;
}

EngineAlterations ScalesOneRowOff() {
  EngineAlterations alterations;
  alterations.gather_rows = [](Engine& engine, const Tensor& source, std::vector<int64_t> rows,
                               const Cancellation* cancellation) {
    const bool is_of_scales = source.dtype() == DType::kF8E8M0 && !rows.empty();
    if (is_of_scales) std::rotate(rows.begin(), rows.begin() + 1, rows.end());
    return engine.GatherRows(source, rows, cancellation);
  };
  return alterations;
}

}  // namespace

ScenarioGroup ExpertScenarios() {
  return {
      {{"experts-on-ranks-equal-experts-on-one",
        "Experts divided over ranks give the outputs and gradients of linear layers, one for each "
        "expert, with tokens in order and their rows added in the order of their choices.",
        "Bit-equal to linear layers on the reference engine and sums in fp32 or in bf16, on 1, 2 "
        "and 4 ranks, with uneven counts, a rank without tokens and an expert without rows.",
        {},
        {"combine-order-reversed", kFaultSourcesReversed, "expert-pad-not-zero"},
        {"bf16", "fp8_current", "fp8_block", "mxfp8", "nvfp4:disable_stochastic_rounding=true",
         "fp8_rowwise"},
        CheckExperts},
       {"experts-draw-their-own-random-numbers",
        "Gradients that are rounded stochastically do not depend on where their expert is.",
        "Bit-equal on 1 and 4 ranks.",
        {},
        {kFaultExpertCallsAlone},
        {"nvfp4"},
        CheckExpertNumbers},
       {"expert-codes-travel-with-scales",
        "Tokens that travel to their experts as mxfp8 codes and scales give the same output.",
        "Bit-equal to linear layers on the reference engine, on 1, 2 and 4 ranks.",
        {},
        {"scales-not-moved-with-codes"},
        {"mxfp8"},
        CheckCodesTravel}},
      {{"combine-order-reversed", "Adds up a token's rows from its last choice to its first.", 0,
        &LastChoiceFirst},
       InCode(kFaultSourcesReversed, "Gives experts the rows of the last rank first."),
       {"expert-pad-not-zero", "Pads an expert's rows with another expert's.", 0, &PadWithRows},
       {"scales-not-moved-with-codes", "Moves codes and leaves their scales in another order.", 0,
        &ScalesOneRowOff},
       InCode(kFaultExpertCallsAlone,
              "Draws the random numbers of the first experts on every rank.")}};
}

}  // namespace quantgate

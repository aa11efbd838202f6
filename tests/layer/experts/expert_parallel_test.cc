// Experts on several ranks against experts on one, and those against linear layers, loops and a
// few lines of arithmetic.
#include "kernels/layer/experts/expert_parallel.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/comm/group/world.h"
#include "kernels/layer/layer.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr int64_t kIn = 64, kOut = 96, kExperts = 6, kChoices = 3, kTokens = 37;
constexpr int64_t kIdle = 3;  ///< An expert to which nobody is routed.

Tensor Normal(uint64_t seed, DType dtype, Shape shape) {
  return Generated(Distribution::kNormal, seed, dtype, std::move(shape));
}

Tensor RowsOf(const Tensor& tensor, int64_t begin, int64_t count) {
  const size_t row = static_cast<size_t>(tensor.columns() * DTypeBytes(tensor.dtype()));
  return *Tensor::FromBytes(
      tensor.dtype(), {count, tensor.columns()},
      tensor.bytes().subspan(static_cast<size_t>(begin) * row, static_cast<size_t>(count) * row));
}

/// Tokens of the whole group and where they go.
struct Batch {
  Tensor x = Normal(1, DType::kBF16, {kTokens, kIn});
  Tensor dy = Normal(2, DType::kBF16, {kTokens, kOut});
  Tensor weights = Normal(3, DType::kF32, {kTokens, kChoices});
  std::vector<int64_t> experts;

  Batch() {
    for (int64_t token = 0; token < kTokens; ++token) {
      for (int64_t choice = 0; choice < kChoices; ++choice) {
        // Some choices of some tokens are the same expert.
        const int64_t expert = (token * token + 5 * token * choice) % kExperts;
        experts.push_back(expert == kIdle ? 0 : expert);
      }
    }
  }
};

Tensor WeightOf(int64_t expert) { return Normal(100 + expert, DType::kBF16, {kOut, kIn}); }
Tensor BiasOf(int64_t expert) { return Normal(200 + expert, DType::kBF16, {kOut}); }

/// What one run gives: tokens' tensors whole, and gradients by the expert's number.
struct Outcome {
  Tensor y, dx;
  std::vector<Tensor> dw, db;
};

struct Division {
  std::vector<int64_t> tokens;  ///< Of each rank.
  std::vector<int64_t> first_expert = {};
};

class ExpertRun {
 public:
  ExpertRun(const std::string& recipe, Division division, ExpertOptions options)
      : recipe_(*Recipe::Parse(recipe)), division_(std::move(division)), options_(options) {
    options_.first_expert = division_.first_expert;
    first_token_.push_back(0);
    for (const int64_t count : division_.tokens) {
      first_token_.push_back(first_token_.back() + count);
    }
    outcome_.dw.resize(kExperts);
    outcome_.db.resize(kExperts);
    y_.resize(division_.tokens.size());
    dx_.resize(division_.tokens.size());
  }

  Outcome Run() {
    const absl::Status status = TryRun();
    EXPECT_TRUE(status.ok()) << status;
    outcome_.y = *ConcatenateRowsCpu(y_, {});
    outcome_.dx = *ConcatenateRowsCpu(dx_, {});
    return outcome_;
  }

  absl::Status TryRun() {
    std::vector<std::unique_ptr<Engine>> engines;
    WorldOptions options;
    for (size_t rank = 0; rank < division_.tokens.size(); ++rank) {
      engines.push_back(MakeCpuEngine({.threads = 1}));
      options.engines.push_back(engines.back().get());
    }
    auto world = World::Create(options);
    EXPECT_TRUE(world.ok()) << world.status();
    return (*world)->Run([&](Rank& rank) { return RunRank(rank); }, nullptr);
  }

 private:
  absl::Status RunRank(Rank& rank) {
    const auto index = static_cast<size_t>(rank.index());
    const int64_t first = first_token_[index], count = division_.tokens[index];
    LayerState state;
    for (int64_t e = options_.first_expert[index]; e < options_.first_expert[index + 1]; ++e) {
      const std::string suffix = absl::StrCat(".", e - options_.first_expert[index]);
      state.parameters["weight" + suffix].value = WeightOf(e);
      state.parameters["bias" + suffix].value = BiasOf(e);
    }
    ExpertRouting routing;
    routing.choices = kChoices;
    routing.experts = {batch_.experts.begin() + first * kChoices,
                       batch_.experts.begin() + (first + count) * kChoices};
    routing.weights = RowsOf(batch_.weights, first, count);
    LayerSpec layer;
    layer.kind = LayerKind::kGroupedLinear;
    StepRecorder recorder(rank.engine(), Arithmetic{}, nullptr);
    ProcessGroup& group = rank.group(kWorldGroup);
    const StepOptions step = {.recipe = recipe_, .seed = 7, .first_call_id = 11};
    QG_ASSIGN_OR_RETURN(ExpertForward forward,
                        ForwardExperts(recorder, group, options_, layer, state,
                                       RowsOf(batch_.x, first, count), routing, step));
    QG_ASSIGN_OR_RETURN(BackwardResult backward,
                        BackwardExperts(recorder, group, std::move(forward.saved), state,
                                        RowsOf(batch_.dy, first, count)));
    y_[index] = forward.y;
    dx_[index] = backward.dx;
    for (const NamedTensor& gradient : backward.gradients) {
      const size_t dot = gradient.name.find('.');
      const auto expert = static_cast<size_t>(std::stoi(gradient.name.substr(dot + 1)) +
                                              options_.first_expert[index]);
      (gradient.name[1] == 'w' ? outcome_.dw : outcome_.db)[expert] = gradient.tensor;
    }
    return recorder.Finish().status();
  }

  const Batch batch_;
  const Recipe recipe_;
  const Division division_;
  ExpertOptions options_;
  std::vector<int64_t> first_token_;
  std::vector<Tensor> y_, dx_;
  Outcome outcome_;
};

const Division kOneRank = {{kTokens}, {0, kExperts}};
/// Uneven, and with ranks that have no tokens.
const Division kDivisions[] = {
    {{20, 17}, {0, 2, 6}}, {{0, 30, 7}, {0, 3, 4, 6}}, {{9, 9, 0, 19}, {0, 1, 2, 4, 6}}};

void ExpectSame(const Outcome& subject, const Outcome& reference) {
  EXPECT_TRUE(SameBits(subject.y, reference.y));
  EXPECT_TRUE(SameBits(subject.dx, reference.dx));
  for (int64_t expert = 0; expert < kExperts; ++expert) {
    SCOPED_TRACE(absl::StrCat("expert ", expert));
    EXPECT_TRUE(SameBits(subject.dw[expert], reference.dw[expert]));
    EXPECT_TRUE(SameBits(subject.db[expert], reference.db[expert]));
  }
}

struct RecipeCase {
  const char* recipe;
  int64_t row_multiple;
};
const RecipeCase kRecipeCasesOfExperts[] = {
    {"bf16", 1},         {"fp8_current", 16}, {"fp8_delayed", 16},       {"fp8_block", 16},
    {"fp8_rowwise", 16}, {"mxfp8", 32},       {"mxfp6_e2m3", 32},        {"mxfp6_e3m2", 32},
    {"mxfp4", 32},       {"nvfp4", 16},       {"hybrid:fprop=mxfp8", 32}};

TEST(ExpertParallel, RanksGiveTheBitsOfOne) {
  for (const RecipeCase& of : kRecipeCasesOfExperts) {
    const ExpertOptions options = {.row_multiple = of.row_multiple};
    const Outcome reference = ExpertRun(of.recipe, kOneRank, options).Run();
    for (const Division& division : kDivisions) {
      SCOPED_TRACE(absl::StrCat(of.recipe, " on ", division.tokens.size(), " ranks"));
      ExpectSame(ExpertRun(of.recipe, division, options).Run(), reference);
    }
  }
}

TEST(ExpertParallel, CodesTravelWithTheirScales) {
  const ExpertOptions options = {.row_multiple = 32, .payload = ExpertPayload::kMxfp8};
  const Outcome reference = ExpertRun("mxfp8", kOneRank, options).Run();
  for (const Division& division : kDivisions) {
    SCOPED_TRACE(division.tokens.size());
    ExpectSame(ExpertRun("mxfp8", division, options).Run(), reference);
  }
  // Quantized before they travel and after is quantized once more, and y is still that of its
  // values.
  EXPECT_TRUE(SameBits(reference.y, ExpertRun("mxfp8", kOneRank, {.row_multiple = 32}).Run().y));
}

// ---- one rank against linear layers

/// The rows that an expert has: token and choice, in order.
std::vector<int64_t> ChoicesOf(const Batch& batch, int64_t expert) {
  std::vector<int64_t> choices;
  for (size_t i = 0; i < batch.experts.size(); ++i) {
    if (batch.experts[i] == expert) choices.push_back(static_cast<int64_t>(i));
  }
  return choices;
}

/// A row of the source for each choice, times the choice's weight where asked for, in bf16; zeros
/// up to a multiple of 16 rows.
Tensor TokenRows(const Batch& batch, const std::vector<int64_t>& choices, const Tensor& source,
                 bool is_weighted) {
  const std::vector<float> values = ToValues(source), weights = ToValues(batch.weights);
  const int64_t columns = source.columns();
  std::vector<float> rows;
  for (const int64_t choice : choices) {
    for (int64_t k = 0; k < columns; ++k) {
      const float value = values[static_cast<size_t>(choice / kChoices * columns + k)];
      rows.push_back(is_weighted ? value * weights[static_cast<size_t>(choice)] : value);
    }
  }
  const int64_t count = (static_cast<int64_t>(choices.size()) + 15) / 16 * 16;
  rows.resize(static_cast<size_t>(count * columns));
  return FromValues(DType::kBF16, {count, columns}, rows);
}

/// Adds up the rows of all choices of every token in fp32, the first one first.
class TokenSums {
 public:
  explicit TokenSums(int64_t columns) : columns_(columns), terms_(kTokens * kChoices) {}
  void Take(const std::vector<int64_t>& choices, const Tensor& rows) {
    const std::vector<float> values = ToValues(rows);
    for (size_t i = 0; i < choices.size(); ++i) {
      const auto begin = values.begin() + static_cast<int64_t>(i) * columns_;
      terms_[static_cast<size_t>(choices[i])] = {begin, begin + columns_};
    }
  }
  Tensor Total(const std::vector<float>& weights) const {
    std::vector<float> sums;
    for (size_t token = 0; token < kTokens; ++token) {
      for (size_t k = 0; k < static_cast<size_t>(columns_); ++k) {
        float sum = 0;
        for (size_t choice = kChoices * token; choice < kChoices * (token + 1); ++choice) {
          const float term = terms_[choice][k] * weights[choice];
          sum = choice == kChoices * token ? term : sum + term;
        }
        sums.push_back(sum);
      }
    }
    return FromValues(DType::kBF16, {kTokens, columns_}, sums);
  }

 private:
  const int64_t columns_;
  std::vector<std::vector<float>> terms_;
};

const Tensor& Named(const LayerResult& result, const std::string& name) {
  for (const NamedTensor& output : result.outputs) {
    if (output.name == name) return output.tensor;
  }
  ADD_FAILURE() << "no " << name;
  static const Tensor kAbsent;
  return kAbsent;
}

Outcome ByLinearLayers(const std::string& recipe) {
  const Batch batch;
  const auto engine = MakeCpuEngine({.threads = 1});
  Outcome outcome;
  TokenSums y(kOut), dx(kIn);
  for (int64_t expert = 0; expert < kExperts; ++expert) {
    const std::vector<int64_t> choices = ChoicesOf(batch, expert);
    LayerRequest request;
    request.x = TokenRows(batch, choices, batch.x, false);
    request.grad_output = TokenRows(batch, choices, batch.dy, true);
    request.parameters = {{"weight", WeightOf(expert)}, {"bias", BiasOf(expert)}};
    const auto result = RunLayer(*engine, request, *Recipe::Parse(recipe), {}, nullptr);
    EXPECT_TRUE(result.ok()) << result.status();
    y.Take(choices, Named(*result, "y"));
    dx.Take(choices, Named(*result, "dx"));
    outcome.dw.push_back(Named(*result, "dw"));
    outcome.db.push_back(Named(*result, "db"));
  }
  outcome.y = y.Total(ToValues(batch.weights));
  outcome.dx = dx.Total(std::vector<float>(kTokens * kChoices, 1.0f));
  return outcome;
}

TEST(ExpertParallel, IsALinearLayerForEachExpert) {
  for (const char* recipe : {"bf16", "fp8_current", "fp8_block"}) {
    SCOPED_TRACE(recipe);
    ExpectSame(ExpertRun(recipe, kDivisions[1], {.row_multiple = 16}).Run(),
               ByLinearLayers(recipe));
  }
}

// ---- order, padding, refusals

/// Every element says which token it is of.
TEST(ExpertParallel, ExpertsHaveRowsBySourceThenTokenThenChoice) {
  std::vector<std::unique_ptr<Engine>> engines;
  WorldOptions options;
  for (int rank = 0; rank < 2; ++rank) {
    engines.push_back(MakeCpuEngine({.threads = 1}));
    options.engines.push_back(engines.back().get());
  }
  auto world = *World::Create(options);
  std::vector<std::vector<float>> rows(2), back(2);
  std::vector<std::vector<int64_t>> splits(2);
  const absl::Status status = world->Run(
      [&](Rank& rank) -> absl::Status {
        const int index = rank.index();
        ExpertRouting routing;
        routing.choices = 2;
        // Rank 0: tokens 0, 1; rank 1: token 2. Experts 0 and 1 | 2.
        routing.experts =
            index == 0 ? std::vector<int64_t>{2, 0, 0, 2} : std::vector<int64_t>{0, 0};
        routing.weights = index == 0 ? FromValues(DType::kF32, {2, 2}, {1, 10, 100, 1000})
                                     : FromValues(DType::kF32, {1, 2}, {0.5f, 0.25f});
        const Tensor x = index == 0 ? FromValues(DType::kF32, {2, 1}, {1, 2})
                                    : FromValues(DType::kF32, {1, 1}, {4});
        ProcessGroup& group = rank.group(kWorldGroup);
        QG_ASSIGN_OR_RETURN(
            const ExpertPlan plan,
            ExpertPlan::Create(group, {.first_expert = {0, 2, 3}, .row_multiple = 3}, routing,
                               nullptr));
        QG_ASSIGN_OR_RETURN(const Tensor moved, plan.Dispatch(group, x));
        QG_ASSIGN_OR_RETURN(const Tensor y, plan.Combine(group, moved, true));
        rows[index] = ToValues(moved);
        back[index] = ToValues(y);
        splits[index] = plan.m_splits();
        return absl::OkStatus();
      },
      nullptr);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(splits[0], (std::vector<int64_t>{6, 0}));
  EXPECT_EQ(splits[1], (std::vector<int64_t>{3}));
  EXPECT_EQ(rows[0], (std::vector<float>{1, 2, 4, 4, 0, 0}));
  EXPECT_EQ(rows[1], (std::vector<float>{1, 2, 0}));
  EXPECT_EQ(back[0], (std::vector<float>{11, 2200}));
  EXPECT_EQ(back[1], (std::vector<float>{3}));
}

TEST(ExpertParallel, RefusesWhatDoesNotFit) {
  const auto engine = MakeCpuEngine({.threads = 1});
  ExpertRouting routing;
  routing.experts = {0, 1};
  routing.weights = FromValues(DType::kF32, {2, 1}, {1, 1});
  const auto refusal = [&](const ExpertOptions& options, const ExpertRouting& of) {
    auto world = *World::Create({.engines = {engine.get()}});
    std::string message;
    (void)world->Run(
        [&](Rank& rank) {
          const auto plan = ExpertPlan::Create(rank.group(kWorldGroup), options, of, nullptr);
          message = std::string(plan.status().message());
          return absl::OkStatus();
        },
        nullptr);
    return message;
  };
  EXPECT_EQ(
      refusal({.first_expert = {0, 0}}, routing),
      "first_expert is 0, 0: must ascend from 0, with an expert at least for each of 1 ranks, "
      "and end with their number");
  EXPECT_EQ(refusal({.first_expert = {0, 1}}, routing), "experts[1] is 1: must be one of 1");
  EXPECT_EQ(refusal({.first_expert = {0, 2}, .row_multiple = 0}, routing),
            "row_multiple is 0: must be at least 1");
  routing.choices = 2;
  EXPECT_EQ(refusal({.first_expert = {0, 2}}, routing), "weights is f32[2x1]: must be f32[1x2]");
}

// How many rows an expert has is known only when they have come.
TEST(ExpertParallel, RefusesRowsThatTheRecipeDoesNotTake) {
  const absl::Status status = ExpertRun("mxfp8", kDivisions[0], {.row_multiple = 1}).TryRun();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_NE(status.message().find("and must be a multiple of 32 under mxfp8"), std::string::npos)
      << status;
  EXPECT_NE(status.message().find("layer.m_splits[0] is bf16["), std::string::npos) << status;
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

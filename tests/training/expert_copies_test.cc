// Sessions with copies of their experts, each copy's divided over ranks: the bits of all experts of
// a copy on one rank, of one rank where sums are exact, and of sums in the order of their profile;
// checkpoints on other ranks; what is refused.
#include <gmock/gmock.h>

#include <bit>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/layer/experts/expert_run.h"
#include "tests/training/divided_sessions.h"
#include "tests/training/expert_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Lists = std::vector<std::vector<int64_t>>;

TEST(ExpertCopies, HaveEvenPartsOfEveryExpertsRowsAndTheirRanksEvenPartsOfThose) {
  LayerSpec layer;
  layer.kind = LayerKind::kGroupedLinear;
  layer.m_splits = {5, 0, 3};
  EXPECT_THAT(LayerOfCopy(layer, 2, 0).m_splits, ElementsAre(3, 0, 2));
  EXPECT_THAT(LayerOfCopy(layer, 2, 1).m_splits, ElementsAre(2, 0, 1));
  EXPECT_THAT(RowsOfCopy(layer, 2, 1), ElementsAre(3, 4, 7));
  const Lists tokens = TokensOfCopies(layer, 2, 2);
  EXPECT_EQ(tokens, Lists({{0, 1, 5}, {2, 6}, {3, 7}, {4}}));
  EXPECT_THAT(PlacesOf(tokens), ElementsAre(0, 1, 3, 5, 7, 2, 4, 6));
}

std::map<std::string, Tensor> ExactParameters() {
  constexpr uint16_t kHalf = 0x3f00;
  std::map<std::string, Tensor> parameters = ExactExperts();
  parameters["fc.weight"] = Permutation(37, kHalf);
  return parameters;
}

class ExpertCopies : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
};

TEST_P(ExpertCopies, HaveTheBitsOfOneRankWhereSumsAreExact) {
  SessionSpec spec = MixedLayers(GetParam());
  spec.main_grads = true;  // In fp32, which no sum of these tests leaves.
  for (const WeightStorage weights : ExactStorages(spec.recipe)) {
    spec.weights = weights;
    for (const ParallelSpec& parallel :
         {Experts(1, 2), Experts(2, 2), Experts(4, 2), Experts(2, 4)}) {
      SCOPED_TRACE(parallel.Label() + " " + std::string(WeightStorageName(weights)));
      SessionSpec on_ranks = spec;
      on_ranks.parallel = parallel;
      ExpectExactlyAsOne(*engine_, spec, on_ranks, ExactParameters());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, ExpertCopies,
                         ::testing::Values("bf16", "fp8_delayed", "fp8_current:power_2_scales=true",
                                           "mxfp8"));

// Whatever the rows and roundings: where an expert is changes nothing of its copy.
class ExpertPlaces : public ::testing::TestWithParam<SessionCase> {
 protected:
  static SessionSpec Spec(int ranks, int copies) {
    SessionSpec spec = ExpertLayers(GetParam().recipe);
    GetParam().Set(spec);
    if (ranks * copies > 1) spec.parallel = Experts(ranks, copies);
    return spec;
  }
  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
};

TEST_P(ExpertPlaces, ChangeNoBitOfACopy) {
  for (const int ranks : {2, 3}) {
    SCOPED_TRACE(ranks);
    const auto whole = OpenRanks(*engine_, Spec(1, 2), ExpertParameters());
    const auto divided = OpenRanks(*engine_, Spec(ranks, 2), ExpertParameters());
    ASSERT_TRUE(whole != nullptr && divided != nullptr);
    TrainExperts(*whole, *divided, 100);
    ExpectSameParameters(*whole, *divided, ExpertParameters());
    ExpectSameFiles(*whole, *divided);
  }
}

TEST_P(ExpertPlaces, CheckpointsAreTheSameBytesOnOtherRanks) {
  const auto train = [](Session& session, uint64_t seed) {
    PassExperts(session, seed);
    ASSERT_TRUE(session.Optimize({}, nullptr).ok());
  };
  ExpectSameCheckpointsElsewhere(*engine_,
                                 {Spec(2, 2), Spec(1, 1), Spec(4, 1), Spec(1, 2), Spec(2, 1),
                                  Spec(1, 4), Spec(2, 4), Spec(4, 2), Spec(2, 2)},
                                 ExpertParameters(), train);
}

INSTANTIATE_TEST_SUITE_P(Sessions, ExpertPlaces,
                         ::testing::Values(SessionCase{.name = "Bf16", .recipe = "bf16"},
                                           SessionCase{.name = "Current", .recipe = "fp8_current"},
                                           SessionCase{.name = "QuantizedDelayed",
                                                       .recipe = "fp8_delayed",
                                                       .weights = WeightStorage::kQuantized,
                                                       .main_grads = true},
                                           SessionCase{.name = "QuantizedMxfp8Remainder",
                                                       .recipe = "mxfp8",
                                                       .weights = WeightStorage::kQuantized,
                                                       .masters = Masters::kBf16Remainder},
                                           SessionCase{.name = "Nvfp4Stochastic",
                                                       .recipe = "nvfp4"}),
                         [](const auto& info) { return info.param.name; });

float FloatOf(uint16_t bf16) { return std::bit_cast<float>(uint32_t{bf16} << 16); }
/// To nearest, ties to even; of numbers.
uint16_t Bf16Of(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/// In fp32, from `first` on around, rounded after every addition or once.
Tensor SumOf(const std::vector<Tensor>& parts, const std::function<size_t(int64_t row)>& first,
             bool rounds_each) {
  Tensor sum = *Tensor::Allocate(DType::kBF16, parts[0].shape());
  for (int64_t i = 0; i < sum.element_count(); ++i) {
    const size_t begin = first(i / sum.columns());
    float total = FloatOf(parts[begin].as<uint16_t>()[i]);
    for (size_t k = 1; k < parts.size(); ++k) {
      total += FloatOf(parts[(begin + k) % parts.size()].as<uint16_t>()[i]);
      if (rounds_each) total = FloatOf(Bf16Of(total));
    }
    sum.as<uint16_t>()[i] = Bf16Of(total);
  }
  return sum;
}

Tensor RowsOf(const Tensor& whole, const std::vector<int64_t>& rows) {
  Tensor part =
      *Tensor::Allocate(whole.dtype(), {static_cast<int64_t>(rows.size()), whole.columns()});
  for (size_t i = 0; i < rows.size(); ++i) {
    std::copy_n(whole.as<uint16_t>() + rows[i] * whole.columns(), whole.columns(),
                part.as<uint16_t>() + static_cast<int64_t>(i) * whole.columns());
  }
  return part;
}

class ExpertSums : public ::testing::Test {
 protected:
  /// dx and the gradients of one step of the layers on one rank.
  absl::StatusOr<SessionStepResult> OnOneRank(SessionSpec spec, const Tensor& x, const Tensor& dy,
                                              Tensor* y = nullptr) {
    std::map<std::string, Tensor> own;
    for (const auto& [name, tensor] : parameters_) {
      for (const SessionLayer& layer : spec.layers) {
        if (absl::StartsWith(name, layer.name + ".")) own[name] = tensor;
      }
    }
    const auto session = OpenRanks(*engine_, spec, own);
    if (session == nullptr) return absl::InternalError("not opened");
    ForwardStep forward;
    forward.x = x;
    QG_ASSIGN_OR_RETURN(const SessionStepResult result, session->Forward(forward, nullptr));
    if (y != nullptr) *y = result.outputs[0].tensor;
    return session->Backward({"0", dy}, nullptr);
  }

  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
  std::map<std::string, Tensor> parameters_ = {
      {"fc.weight", Normal(40, {kExpertColumns, kExpertColumns})},
      {"fc1.weight.0", Normal(41, {kExpertColumns, kExpertColumns})},
      {"fc1.weight.1", Normal(42, {kExpertColumns, kExpertColumns})}};
};

// A linear layer and two experts, whose rows are [0, 256) and [256, 512): a gradient is the sum of
// what one rank gives for each copy's rows, or for each rank's.
TEST_F(ExpertSums, AreOfCopiesForExpertsAndOfAllRanksForOtherLayers) {
  SessionSpec spec = ExpertLayers("bf16");
  spec.layers = {{"fc", {}}, spec.layers[0]};
  spec.layers[1].spec.m_splits = {256, 256};
  SessionSpec linear = spec, experts = spec;
  linear.layers = {spec.layers[0]};
  experts.layers = {spec.layers[1]};
  const Tensor x = ExpertBatch(1), dy = ExpertBatch(2);
  Tensor between;
  ASSERT_TRUE(OnOneRank(linear, x, dy, &between).ok());
  const Tensor gradient = OutputOf(OnOneRank(experts, between, dy), "dx");

  const auto range = [](int64_t begin, int64_t count) {
    std::vector<int64_t> rows;
    for (int64_t row = begin; row < begin + count; ++row) rows.push_back(row);
    return rows;
  };
  const auto both = [&](int64_t begin, int64_t count) {
    std::vector<int64_t> rows = range(begin, count);
    for (const int64_t row : range(256 + begin, count)) rows.push_back(row);
    return rows;
  };
  for (const int copies : {2, 4}) {
    SCOPED_TRACE(copies);
    const int64_t of_copy = 256 / copies, of_rank = of_copy / 2;
    std::vector<Tensor> linear_parts, expert_parts[2];
    experts.layers[0].spec.m_splits = {of_copy, of_copy};
    for (int copy = 0; copy < copies; ++copy) {
      const std::vector<int64_t> rows = both(copy * of_copy, of_copy);
      const auto part = OnOneRank(experts, RowsOf(between, rows), RowsOf(dy, rows));
      for (const int expert : {0, 1}) {
        expert_parts[expert].push_back(OutputOf(part, absl::StrCat("fc1.dw.", expert)));
      }
    }
    for (int rank = 0; rank < 2 * copies; ++rank) {
      const std::vector<int64_t> rows = both(rank * of_rank, of_rank);
      const auto part = OnOneRank(linear, RowsOf(x, rows), RowsOf(gradient, rows));
      linear_parts.push_back(OutputOf(part, "fc.dw"));
    }
    for (const bool is_ring : {false, true}) {
      spec.parallel = Experts(2, copies);
      if (is_ring) spec.parallel->profile = {ReductionKind::kNcclRing};
      // A ring begins behind the owner of the row, of which all have equally many.
      const auto first_of = [&](size_t members) {
        return [=](int64_t row) {
          const auto owner = static_cast<size_t>(row) * members / kExpertColumns;
          return is_ring ? (owner + 1) % members : size_t{0};
        };
      };
      const auto given = OnOneRank(spec, x, dy);
      EXPECT_THAT(given->rank_differences, IsEmpty());
      for (const int expert : {0, 1}) {
        const std::string name = absl::StrCat("fc1.dw.", expert);
        const std::vector<Tensor>& parts = expert_parts[expert];
        EXPECT_TRUE(SameBits(OutputOf(given, name), SumOf(parts, first_of(parts.size()), is_ring)))
            << name << " " << spec.parallel->Label();
      }
      EXPECT_TRUE(SameBits(OutputOf(given, "fc.dw"),
                           SumOf(linear_parts, first_of(linear_parts.size()), is_ring)))
          << spec.parallel->Label();
    }
  }
}

class ExpertCopyStates : public ::testing::Test {
 protected:
  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
};

// Of gradients that the optimizer has not summed yet a file has each rank's own, by its own experts
// alone, and goes on where the ranks are alike.
TEST_F(ExpertCopyStates, GradientsBeforeAnUpdateAreTheRanksOwn) {
  SessionSpec spec = ExpertLayers("fp8_delayed");
  spec.parallel = Experts(2, 2);
  const auto session = OpenRanks(*engine_, spec, ExpertParameters());
  ASSERT_NE(session, nullptr);
  ForwardStep forward;
  forward.x = ExpertBatch(1);
  ASSERT_TRUE(session->Forward(forward, nullptr).ok());
  const auto backward = session->Backward({"0", ExpertBatch(2)}, nullptr);
  ASSERT_TRUE(backward.ok()) << backward.status();
  EXPECT_THAT(backward->rank_differences, IsEmpty());
  const TensorFile file = *session->Checkpoint(nullptr);
  std::set<std::string> names;
  for (const NamedTensor& tensor : file.tensors) names.insert(tensor.name);
  for (const char* name : {"rank0.fc1.dw.0", "rank1.fc1.dw.2", "rank2.fc2.dw.1", "rank3.fc1.db.3",
                           "fc1.weight.0", "fc1.input.2.amax_history"}) {
    EXPECT_EQ(names.count(name), 1u) << name;
  }
  for (const char* name : {"fc1.dw.0", "rank1.fc1.dw.0", "rank2.fc2.dw.3", "rank0.fc1.weight.0"}) {
    EXPECT_EQ(names.count(name), 0u) << name;
  }
  auto again = RestoreSession(*engine_, spec, file, nullptr, nullptr);
  ASSERT_TRUE(again.ok()) << again.status();
  ExpectSameFiles(*session, **again);
  ExpectSameStep(*session, **again, [](Session& each) { return each.Optimize({}, nullptr); });
  ExpectSameFiles(*session, **again);
  spec.parallel = Experts(4);
  const absl::Status other = RestoreSession(*engine_, spec, file, nullptr, nullptr).status();
  EXPECT_THAT(std::string(other.message()),
              HasSubstr("checkpoint is of ranks tp1 dp2 ep2: none, none none, none: each of them "
                        "has its own"));
}

TEST_F(ExpertCopyStates, AmaxesThatAreNotReducedAreEachCopysOwn) {
  SessionSpec spec = ExpertLayers("fp8_delayed:reduce_amax=false");
  spec.optimizer.kind = OptimizerSpec::Kind::kNone;
  spec.parallel = Experts(2, 2);
  const auto session = OpenRanks(*engine_, spec, ExpertParameters());
  spec.recipe = *Recipe::Parse("fp8_delayed");
  const auto reduced = OpenRanks(*engine_, spec, ExpertParameters());
  ASSERT_TRUE(session != nullptr && reduced != nullptr);
  for (Session* each : {session.get(), reduced.get()}) {
    ForwardStep forward;
    forward.x = ExpertBatch(1);
    ASSERT_TRUE(each->Forward(forward, nullptr).ok());
  }
  const std::string first = "rank0.fc1.input.0.amax_history";
  const std::string second = "rank2.fc1.input.0.amax_history";
  auto digests = DigestsOf(*session);
  EXPECT_NE(digests.at(first), digests.at(second));
  digests = DigestsOf(*reduced);
  EXPECT_EQ(digests.at(first), digests.at(second));
}

TEST_F(ExpertCopyStates, Refusals) {
  const auto refusal = [&](const std::function<void(SessionSpec&)>& change) {
    SessionSpec spec = ExpertLayers("bf16");
    spec.parallel = Experts(2, 2);
    change(spec);
    const auto session = OpenSession(*engine_, spec, ExpertParameters(), nullptr, nullptr);
    EXPECT_FALSE(session.ok());
    return std::string(session.status().message());
  };
  EXPECT_THAT(refusal([](SessionSpec& spec) { spec.parallel = Experts(4, 4); }),
              HasSubstr("parallel is ep4 dp4: tensor_parallel or expert_parallel, times "
                        "data_parallel, is the number of ranks, 2 to 8"));
  EXPECT_THAT(refusal([](SessionSpec& spec) { spec.parallel->tensor_parallel = 2; }),
              HasSubstr("parallel.tensor_parallel is 2: with expert_parallel the ranks of a copy"));
  // 128 rows of an expert are 32 of each of 4 copies, and 65 are 33 of the first of two.
  SessionSpec spec = ExpertLayers("mxfp8");
  for (const size_t layer : {0, 2}) spec.layers[layer].spec.m_splits = {127, 0, 257, 128};
  spec.parallel = Experts(2, 2);
  const auto session = OpenSession(*engine_, spec, ExpertParameters(), nullptr, nullptr);
  const std::string message(session.status().message());
  EXPECT_THAT(message, HasSubstr("(of copy 0 of 2, data_parallel)"));
  EXPECT_THAT(message, HasSubstr("layers[fc1].layer.m_splits[2] is bf16[129x128]: M is 129"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

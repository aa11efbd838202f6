// The digest of what a scenario compared: against hashlib on the bytes of docs/reports.md
// section 8, what changes it, and what has no part in it.
#include "kernels/validate/scenarios/oracles/check_digest.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kernels/validate/scenarios/run_scenarios.h"

namespace quantgate {
namespace QG_TEST_FILE {

Tensor Floats(std::vector<float> values, Shape shape) {
  return *Tensor::FromBytes(DType::kF32, std::move(shape), std::as_bytes(std::span(values)));
}

TEST(CheckDigest, IsSha256OfTheChecksInOrder) {
  CheckDigest digest;
  EXPECT_EQ(digest.Hex(), "");
  digest.AddTensor(3, "y", Floats({1.5f, -2.0f}, {2, 1}));
  EXPECT_EQ(digest.Hex(), "652768072acc6226fbd0e1a05801a29ec90344595a55ae240bf1670c4f3b0f98");
  digest.AddFact(4, "status", "OK");
  EXPECT_EQ(digest.Hex(), "950e2a5ca6bab66438c63c11788261b0ab3ca269c8c35c71c337071bad6d2b97");
  CheckDigest whole;
  whole.AddAll("fp8_current", digest);
  EXPECT_EQ(whole.Hex(), "ddecd6fe22755ef22799385079e4a4c1790adce1efe96fe48801f3e51fd4e763");
  whole.AddAll("bf16", CheckDigest());
  EXPECT_EQ(whole.Hex(), "ddecd6fe22755ef22799385079e4a4c1790adce1efe96fe48801f3e51fd4e763");
}

TEST(CheckDigest, EverythingAboutATensorCounts) {
  const auto of = [](int64_t step, const char* name, const Tensor& tensor) {
    CheckDigest digest;
    digest.AddTensor(step, name, tensor);
    return digest.Hex();
  };
  const Tensor floats = Floats({1, 2, 3, 4}, {2, 2});
  const std::set<std::string> digests = {
      of(0, "y", floats),
      of(1, "y", floats),
      of(0, "dx", floats),
      of(0, "y", Floats({1, 2, 3, -4}, {2, 2})),
      of(0, "y", *floats.Reinterpret(DType::kF32, {4, 1})),
      of(0, "y", *floats.Reinterpret(DType::kI32, {2, 2})),
  };
  EXPECT_EQ(digests.size(), 6u);
}

TEST(CheckDigest, OrderCounts) {
  CheckDigest forward, backward;
  forward.AddFact(0, "a", "1");
  forward.AddFact(0, "b", "2");
  backward.AddFact(0, "b", "2");
  backward.AddFact(0, "a", "1");
  EXPECT_NE(forward.Hex(), backward.Hex());
}

// ---- Of a context

Engine& PlainEngine() {
  static Engine& engine = *MakeCpuEngine({Isa::kScalar, 1}).release();
  return engine;
}

std::string DigestOf(const std::function<void(ScenarioContext&)>& checks) {
  static const SeededFaults& none = *new SeededFaults;
  ScenarioContext context({PlainEngine(), PlainEngine(), none}, *Recipe::Parse("bf16"));
  checks(context);
  return context.digest().Hex();
}

TEST(CheckDigest, OfAContextIsOfSubjectsAndNotOfExpectations) {
  const Tensor one = Floats({1}, {1}), two = Floats({2}, {1});
  const auto compare = [](const Tensor& subject, const Tensor& expected) {
    return DigestOf([&](ScenarioContext& context) {
      EXPECT_TRUE(context.ExpectSameBits("y", subject, expected).ok());
    });
  };
  EXPECT_EQ(compare(one, one), compare(one, two));
  EXPECT_NE(compare(one, one), compare(two, two));
  EXPECT_NE(compare(one, one), compare(Tensor(), Tensor()));
}

TEST(CheckDigest, OfAContextHasNumbersTextsAndCodes) {
  const std::set<std::string> digests = {
      DigestOf([](ScenarioContext& context) { context.ExpectEqual("rows", 1, 1); }),
      DigestOf([](ScenarioContext& context) { context.ExpectEqual("rows", 2, 2); }),
      DigestOf([](ScenarioContext& context) { context.ExpectSameFloat("rows", 2, 2); }),
      DigestOf([](ScenarioContext& context) { context.ExpectSameText("rows", "two", "two"); }),
      DigestOf([](ScenarioContext& context) { context.Expect(true, "rows", "2", "2"); }),
      DigestOf([](ScenarioContext& context) { context.Expect(false, "rows", "2", "2"); }),
      DigestOf([](ScenarioContext& context) {
        context.ExpectCode("rows", absl::OkStatus(), absl::StatusCode::kOk);
      }),
      DigestOf([](ScenarioContext& context) {
        context.ExpectCode("rows", absl::InternalError(""), absl::StatusCode::kOk);
      }),
  };
  EXPECT_EQ(digests.size(), 8u);
}

// Messages and measurements may name a device, a time or a version.
TEST(CheckDigest, OfAContextLeavesOutWhatMayBeOfOneMachine) {
  const auto code = [](const std::string& message) {
    return DigestOf([&](ScenarioContext& context) {
      context.ExpectCode("call", absl::InternalError(message), absl::StatusCode::kInternal);
    });
  };
  EXPECT_EQ(code("on cpu"), code("on cuda:0"));
  const auto condition = [](const std::string& found) {
    return DigestOf([&](ScenarioContext& context) {
      context.Expect(true, "bound", found, "at most 1");
      context.AddNote(found);
    });
  };
  EXPECT_EQ(condition("0.25"), condition("0.5"));
}

TEST(CheckDigest, OfAbsorbedChecksCounts) {
  const auto absorb = [](int64_t number) {
    return DigestOf([&](ScenarioContext& context) {
      static const SeededFaults& none = *new SeededFaults;
      ScenarioContext inner({PlainEngine(), PlainEngine(), none}, context.recipe());
      inner.ExpectEqual("rows", number, number);
      context.Absorb(inner);
    });
  };
  EXPECT_NE(absorb(1), absorb(2));
}

// ---- Of scenarios

ScenarioResult ResultOn(const CpuEngineOptions& options, const std::string& name) {
  const auto engine = MakeCpuEngine(options);
  const auto found = FindScenarios(BuiltInScenarios(), {name});
  return RunScenario(*engine, *found->front(), nullptr, nullptr);
}

TEST(CheckDigest, OfScenariosIsTheSameOnEveryCpuPath) {
  for (const char* name :
       {"one-direction-equals-both", "amax-after-hadamard", "two-ranks-sum-alike",
        "group-amax-over-named-group", "ranks-that-differ-are-told", "row-parallel-bias-once"}) {
    const ScenarioResult plain = ResultOn({Isa::kScalar, 1}, name);
    EXPECT_EQ(plain.outcome, ScenarioOutcome::kPassed) << name;
    EXPECT_EQ(plain.digest.Hex().size(), 64u) << name;
    for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
      if (isa > BestIsa()) continue;
      for (const int threads : {1, 3}) {
        EXPECT_EQ(ResultOn({isa, threads}, name).digest.Hex(), plain.digest.Hex())
            << name << " by " << IsaName(isa) << " on " << threads << " threads";
      }
    }
  }
}

/// A scenario that looks at one tensor under these recipes.
Scenario Looking(std::vector<std::string> recipes, const Tensor& tensor) {
  Scenario scenario;
  scenario.name = "looks";
  scenario.recipes = std::move(recipes);
  scenario.run = [tensor](ScenarioContext& context) {
    return context.ExpectSameBits("y", tensor, tensor);
  };
  return scenario;
}

TEST(CheckDigest, OfAScenarioIsOfAllItsRecipes) {
  const Tensor one = Floats({1}, {1});
  const auto of = [&](std::vector<std::string> recipes, const Tensor& tensor) {
    return RunScenario(PlainEngine(), Looking(std::move(recipes), tensor), nullptr, nullptr)
        .digest.Hex();
  };
  EXPECT_EQ(of({"bf16", "mxfp8"}, one), of({"bf16", "mxfp8"}, one));
  const std::set<std::string> digests = {of({"bf16"}, one), of({"mxfp8"}, one),
                                         of({"bf16", "mxfp8"}, one), of({"mxfp8", "bf16"}, one),
                                         of({"bf16", "mxfp8"}, Floats({2}, {1}))};
  EXPECT_EQ(digests.size(), 5u);
}

TEST(CheckDigest, OfNothingIsEmpty) {
  Scenario idle;
  idle.name = "idle";
  idle.recipes = {"bf16"};
  idle.run = [](ScenarioContext& context) {
    context.LeaveOut("needs a device");
    return absl::OkStatus();
  };
  EXPECT_EQ(RunScenario(PlainEngine(), idle, nullptr, nullptr).digest.Hex(), "");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

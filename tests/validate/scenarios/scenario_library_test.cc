// The library of scenarios as data: names, bug classes, faults, and where faults can be reached.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <utility>

#include "kernels/quantize/recipe/recipe.h"
#include "kernels/validate/scenarios/run_scenarios.h"
#include "tests/structure/source_tree.h"

namespace quantgate {
namespace QG_TEST_FILE {

bool IsKebabCase(const std::string& name) {
  return std::regex_match(name, std::regex("[a-z0-9]+(-[a-z0-9]+)*"));
}

TEST(ScenarioLibraryTest, EveryScenarioSaysWhatItIs) {
  std::set<std::string> names;
  for (const Scenario& scenario : AllScenarios()) {
    EXPECT_TRUE(IsKebabCase(scenario.name)) << scenario.name;
    EXPECT_TRUE(names.insert(scenario.name).second) << scenario.name;
    EXPECT_TRUE(scenario.invariant.ends_with(".")) << scenario.name;
    EXPECT_TRUE(scenario.criterion.ends_with(".")) << scenario.name;
    EXPECT_FALSE(scenario.faults.empty()) << scenario.name << " proves nothing";
    EXPECT_FALSE(scenario.recipes.empty()) << scenario.name;
    for (const std::string& recipe : scenario.recipes) {
      EXPECT_TRUE(Recipe::Parse(recipe).ok()) << scenario.name << ": " << recipe;
    }
  }
}

TEST(ScenarioLibraryTest, EveryFaultIsClaimedAndKnown) {
  std::set<std::string> claimed, names;
  for (const Scenario& scenario : AllScenarios()) {
    claimed.insert(scenario.faults.begin(), scenario.faults.end());
  }
  for (const Fault& fault : AllFaults()) {
    EXPECT_TRUE(IsKebabCase(fault.name)) << fault.name;
    EXPECT_TRUE(names.insert(fault.name).second) << fault.name;
    EXPECT_TRUE(fault.description.ends_with(".")) << fault.name;
  }
  EXPECT_EQ(claimed, names);
}

TEST(ScenarioLibraryTest, FaultsAreOfTheirScenariosClasses) {
  std::map<std::string, int> class_of;
  for (const Fault& fault : AllFaults()) class_of[fault.name] = fault.bug_class;
  std::set<int> numbers;
  for (const BugClass& bug_class : AllBugClasses()) numbers.insert(bug_class.number);
  for (const Scenario& scenario : AllScenarios()) {
    std::set<int> shown;
    for (const std::string& fault : scenario.faults) shown.insert(class_of[fault]);
    for (const int number : scenario.bug_classes) {
      EXPECT_EQ(numbers.count(number), 1u) << scenario.name << ": " << number;
      EXPECT_EQ(shown.count(number), 1u)
          << scenario.name << " has no fault of bug class " << number;
    }
  }
}

/// Every line of the code that training runs through, in the given folders.
std::vector<std::string> LinesOf(const std::vector<std::string>& folders) {
  std::vector<std::string> lines;
  for (const SourceFile& file : ReadSources({".h", ".cc"})) {
    if (std::none_of(folders.begin(), folders.end(),
                     [&](const std::string& folder) { return file.path.starts_with(folder); })) {
      continue;
    }
    lines.insert(lines.end(), file.lines.begin(), file.lines.end());
  }
  return lines;
}
std::vector<std::string> ProductionLines() {
  return LinesOf({"kernels/comm/", "kernels/layer/", "kernels/training/"});
}

std::vector<std::string> LinesAroundCommunication() {
  return LinesOf({"kernels/validate/scenarios/faults/comm_faults.h",
                  "kernels/validate/scenarios/faults/faulty_communication"});
}

/// The constants of that code that hold the names of faults, by name.
std::map<std::string, std::string> FaultConstants(const std::vector<std::string>& lines) {
  std::map<std::string, std::string> constants;
  const std::regex constant(R"(char (kFault\w+)\[\])"), name(R"re("([a-z0-9-]+)")re");
  std::string waiting;  // For its value, which may stand on the next line.
  for (const std::string& line : lines) {
    std::smatch match;
    const bool may_be = line.find("kFault") != std::string::npos;  // A regex takes its time.
    if (may_be && std::regex_search(line, match, constant)) waiting = match[1];
    if (waiting.empty() || !std::regex_search(line, match, name)) continue;
    constants[match[1]] = waiting;
    waiting.clear();
  }
  return constants;
}

// Faults in layer and session code are asked for at the place of the bug, those of communication by
// what stands around it.
TEST(ScenarioLibraryTest, SeededFaultsAreAskedFor) {
  for (const bool is_around_communication : {false, true}) {
    const std::vector<std::string> lines =
        is_around_communication ? LinesAroundCommunication() : ProductionLines();
    const std::map<std::string, std::string> constants = FaultConstants(lines);
    for (const Fault& fault : AllFaults()) {
      if (fault.alter_engine || fault.is_around_communication != is_around_communication) continue;
      const auto constant = constants.find(fault.name);
      ASSERT_NE(constant, constants.end())
          << fault.name << " is no constant of communication, layers or training";
      const std::string use = "Has(" + constant->second + ")";
      const bool is_used = std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
        return line.find(use) != std::string::npos;
      });
      EXPECT_TRUE(is_used) << fault.name << " is asked for nowhere";
    }
  }
}

// And every fault that the code can have is one that some scenario catches.
TEST(ScenarioLibraryTest, FaultsOfTheCodeAreInTheLibrary) {
  std::set<std::string> names;
  for (const Fault& fault : AllFaults()) names.insert(fault.name);
  for (const auto& lines : {ProductionLines(), LinesAroundCommunication()}) {
    for (const auto& [name, constant] : FaultConstants(lines)) {
      EXPECT_EQ(names.count(name), 1u) << constant;
    }
  }
}

TEST(ScenarioLibraryTest, CommunicationItselfHasNoFaults) {
  for (const std::string& line : LinesOf({"kernels/comm/"})) {
    EXPECT_EQ(line.find("Has(kFault"), std::string::npos) << line;
  }
}

TEST(ScenarioLibraryTest, EveryBugClassHasAScenarioOrAReason) {
  std::set<int> shown;
  for (const Scenario& scenario : AllScenarios()) {
    shown.insert(scenario.bug_classes.begin(), scenario.bug_classes.end());
  }
  EXPECT_GE(AllScenarios().size(), 35u);
  for (const BugClass& bug_class : AllBugClasses()) {
    EXPECT_NE(bug_class.left_out.empty(), shown.count(bug_class.number) == 0)
        << bug_class.number << ": " << bug_class.title;
  }
}

TEST(ScenarioLibraryTest, FaultsAreReachedByTheRunnerAlone) {
  const std::set<std::string> seeders = {"kernels/base/seeded_fault.h",
                                         "kernels/validate/scenarios/run_scenarios.cc"};
  for (const SourceFile& file : ReadSources({".h", ".cc", ".cu"})) {
    if (file.path.starts_with("tests/")) continue;
    for (const std::string& line : file.lines) {
      if (line.find("FaultSeeder") != std::string::npos) {
        EXPECT_EQ(seeders.count(file.path), 1u) << file.path;
      }
      if (line.find("FaultyEngine") != std::string::npos) {
        EXPECT_TRUE(file.path.starts_with("kernels/validate/scenarios/")) << file.path;
      }
    }
  }
}

/// A mutation of code for ranks, and the faults that are it.
struct RankMutation {
  std::string what;
  std::vector<std::string> faults;
};

const std::vector<RankMutation>& RankMutations() {
  static const auto& mutations = *new std::vector<RankMutation>{
      {"the group of another call",
       {"group-swapped", "backward-uses-last-group", "gradient-summed-over-other-group",
        "expert-gradients-summed-in-copy", "expert-rows-gathered-in-copy"}},
      {"an amax that is not reduced",
       {"amax-not-reduced", "shard-amax-not-reduced", "amax-group-forgotten-by-update"}},
      {"an amax reduced over the world", {"amax-reduced-over-world"}},
      {"the first rank's scale for all", {"rank0-scale-broadcast"}},
      {"interleaved lines left as they came", {"gather-interleave-left"}},
      {"shards one row off",
       {"shard-offset-by-one", "expert-rows-one-off", "fragments-one-element-off"}},
      {"chunks in reverse order", {"chunk-order-reversed"}},
      {"a slot overwritten by the next layer", {"slot-overwritten-by-next-layer"}},
      {"the quantizer's scale at backward", {"scale-from-quantizer-at-backward"}},
      {"a bias on all ranks", {"bias-on-all-ranks"}},
      {"sums rounded to bf16 where fp32 is said", {"bf16-accumulate-for-fp32"}},
      {"reduce_scatter's owner one off", {"rs-owner-off-by-one"}},
      {"stale columnwise codes", {"column-bytes-stale", "saved-columnwise-codes-stale"}},
      {"padding in an amax", {"pad-included-in-amax"}},
      {"fragments of FP4 that begin within a byte", {"fragment-odd-offset-in-fp4"}},
      {"columns that splits do not divide dropped", {"pipeline-tail-dropped"}},
      {"an empty rank that leaves out a call", {"empty-rank-skips"}},
  };
  return mutations;
}

TEST(ScenarioLibraryTest, WhatIsListedOfRanksIsInTheLibrary) {
  std::set<std::string> names;
  for (const Scenario& scenario : AllScenarios()) names.insert(scenario.name);
  EXPECT_EQ(AllRankSubjects().size(), 41u);
  std::string last;
  for (const RankSubject& subject : AllRankSubjects()) {
    EXPECT_TRUE(std::regex_match(subject.number, std::regex("D[0-4][0-9]")));
    EXPECT_LT(std::exchange(last, subject.number), subject.number);
    EXPECT_FALSE(subject.scenarios.empty()) << subject.number;
    for (const std::string& name : subject.scenarios) {
      EXPECT_EQ(names.count(name), 1u) << subject.number << ": " << name;
    }
  }
}

// That each is caught is what scenarios_test shows.
TEST(ScenarioLibraryTest, EveryMutationOfRanksIsAFaultOfSomeScenario) {
  std::set<std::string> claimed;
  for (const Scenario& scenario : AllScenarios()) {
    claimed.insert(scenario.faults.begin(), scenario.faults.end());
  }
  EXPECT_EQ(RankMutations().size(), 17u);
  for (const RankMutation& mutation : RankMutations()) {
    EXPECT_FALSE(mutation.faults.empty()) << mutation.what;
    for (const std::string& fault : mutation.faults) {
      EXPECT_EQ(claimed.count(fault), 1u) << mutation.what << ": " << fault;
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate

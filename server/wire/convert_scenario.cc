#include "server/wire/convert_scenario.h"

#include <string>

#include "kernels/comm/parallel_spec.h"

namespace quantgate {
namespace {

v1::ScenarioDifference DifferenceToProto(const ScenarioDifference& difference) {
  v1::ScenarioDifference proto;
  proto.set_recipe(difference.recipe);
  proto.set_step(difference.step);
  proto.set_tensor(difference.tensor);
  for (const int64_t index : difference.coordinate) proto.add_coordinate(index);
  proto.set_subject(difference.subject);
  proto.set_expected(difference.expected);
  return proto;
}

}  // namespace

v1::ListScenariosResponse ScenariosToProto(const ScenarioLibrary& library) {
  v1::ListScenariosResponse proto;
  for (const Scenario& scenario : *library.scenarios) {
    v1::ScenarioDescription& item = *proto.add_scenarios();
    item.set_name(scenario.name);
    item.set_invariant(scenario.invariant);
    item.set_criterion(scenario.criterion);
    for (const int number : scenario.bug_classes) item.add_bug_classes(number);
    for (const std::string& fault : scenario.faults) item.add_faults(fault);
    for (const std::string& recipe : scenario.recipes) item.add_recipes(recipe);
  }
  for (const Fault& fault : *library.faults) {
    v1::FaultDescription& item = *proto.add_faults();
    item.set_name(fault.name);
    item.set_description(fault.description);
    item.set_bug_class(fault.bug_class);
    item.set_around_engine(static_cast<bool>(fault.alter_engine));
    item.set_around_communication(fault.is_around_communication);
  }
  for (const BugClass& bug_class : AllBugClasses()) {
    v1::BugClassDescription& item = *proto.add_bug_classes();
    item.set_number(bug_class.number);
    item.set_title(std::string(bug_class.title));
    item.set_left_out(std::string(bug_class.left_out));
    item.set_pull_request(bug_class.pull_request);
  }
  for (const RankSubject& subject : AllRankSubjects()) {
    v1::RankSubjectDescription& item = *proto.add_rank_subjects();
    item.set_number(subject.number);
    item.set_title(subject.title);
    for (const std::string& scenario : subject.scenarios) item.add_scenarios(scenario);
  }
  return proto;
}

v1::ScenarioResult ScenarioResultToProto(const ScenarioResult& result) {
  v1::ScenarioResult proto;
  proto.set_scenario(result.scenario);
  proto.set_outcome(std::string(ScenarioOutcomeName(result.outcome)));
  proto.set_checks(result.checks);
  proto.set_difference_count(result.difference_count);
  for (const ScenarioDifference& difference : result.differences) {
    *proto.add_differences() = DifferenceToProto(difference);
  }
  proto.set_message(result.message);
  proto.set_seconds(result.seconds);
  for (const std::string& note : result.notes) proto.add_notes(note);
  proto.set_digest(result.digest.Hex());
  for (const auto& [placement, sizes] : result.rank_placements) {
    v1::RankPlacement& item = *proto.add_rank_placements();
    item.set_backend(std::string(CollectiveBackendName(placement.backend)));
    for (const int size : sizes) item.add_sizes(size);
    item.set_transport(placement.transport);
  }
  return proto;
}

v1::FaultResult FaultResultToProto(const FaultResult& result) {
  v1::FaultResult proto;
  proto.set_fault(result.fault);
  proto.set_scenario(result.scenario);
  proto.set_outcome(std::string(FaultOutcomeName(result.outcome)));
  if (result.outcome == FaultOutcome::kCaught) {
    *proto.mutable_first() = DifferenceToProto(result.first);
  }
  proto.set_message(result.message);
  proto.set_seconds(result.seconds);
  return proto;
}

}  // namespace quantgate

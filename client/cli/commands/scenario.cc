// quantgate scenario list|run|agree: the server's self-check, the proof that it can fail, and
// whether several machines saw the same.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/scenario_agreement.h"
#include "client/cli/commands/scenario_markdown.h"
#include "client/cli/commands/subcommand.h"
#include "client/cli/exit.h"
#include "client/cli/output.h"
#include "client/execute.h"
#include "kernels/base/status_macros.h"
#include "server/report/answers/render_scenarios.h"
#include "server/report/answers/scenario_junit.h"
#include "server/report/number_text.h"
#include "server/report/report_json.h"
#include "server/report/text_table.h"

namespace quantgate {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kScenarioExamples[] = R"(Examples:
  quantgate scenario list
  quantgate scenario list --format markdown > docs/scenarios.md
  quantgate scenario run
  quantgate scenario run --with-faults --junit scenarios.xml
  quantgate scenario run hadamard-cancels-in-wgrad e8m0-scales-round-up --with-faults
  quantgate --device cuda scenario run --format jsonl
  quantgate --device cuda scenario run --parallel-backend nccl --format json > nccl.json
  quantgate scenario agree cpu.json cuda.json nccl.json

Exit code 1: a scenario does not hold, a fault is not caught by a scenario that must catch it, or all
was left out; of agree: two digests differ, a run lacks a scenario or did not pass it, or there is
nothing to compare. What was left out, for want of a device, counts as neither good nor bad.
docs/scenarios.md says what each looks at.)";

struct ScenarioOptions {
  std::vector<std::string> names;
  bool with_faults = false;
  std::string junit;
  std::string parallel_backend;
};

// ---- list

struct ListOptions {
  std::string format;  ///< As the option for all commands, or "markdown".
};

absl::StatusOr<int> ListScenarioLibrary(Invocation& invocation, const ListOptions& options) {
  invocation.PreferFormat(options.format);
  QG_ASSIGN_OR_RETURN(Connection * connection, invocation.Connect());
  QG_ASSIGN_OR_RETURN(const v1::ListScenariosResponse listed, connection->ListScenarios());
  if (options.format == "markdown") {
    invocation.out() << ScenarioMarkdown(listed);
    return kExitOk;
  }
  if (!invocation.is_table()) {
    invocation.PrintJson("scenarios", JsonOf(listed));
    return kExitOk;
  }
  TextTable table({"scenario", "faults", "<bug classes", "<invariant"});
  for (const v1::ScenarioDescription& scenario : listed.scenarios()) {
    table.AddRow({scenario.name(), Count(scenario.faults_size()),
                  absl::StrJoin(scenario.bug_classes(), ", "), scenario.invariant()});
  }
  table.Print(invocation.out(), invocation.uses_colour());
  return kExitOk;
}

// ---- run

/// The id to ask a server for; one in this process has only the device that was asked for.
absl::StatusOr<std::string> DeviceToAsk(Invocation& invocation, Connection& connection) {
  const std::string& device = invocation.options().device;
  if (invocation.options().server.empty() || device == "cpu") return std::string();
  if (device != "cuda") return device;
  QG_ASSIGN_OR_RETURN(const v1::Capabilities capabilities, connection.GetCapabilities());
  for (const v1::DeviceDescription& known : capabilities.environment().devices()) {
    if (known.id().rfind("cuda", 0) == 0) return known.id();
  }
  return std::string();
}

void PrintEnd(Invocation& invocation, const std::vector<v1::ScenarioEvent>& events,
              const v1::ScenarioRunFinished& finished) {
  if (invocation.is_table()) {
    PrintScenarios(events, invocation.uses_colour(), invocation.out());
  }
  if (invocation.is_table() || finished.scenarios_left_out() > 0) {
    invocation.Say(ScenarioSummary(events));
  }
  if (!invocation.is_json()) return;
  Json json;
  json["good"] = finished.good();
  json["left_out"] = {{"scenarios", finished.scenarios_left_out()},
                      {"faults", finished.faults_left_out()}};
  json["seconds"] = finished.seconds();
  json["environment"] = JsonOf(finished.environment());
  json["scenarios"] = Json::array();
  json["faults"] = Json::array();
  for (const v1::ScenarioEvent& event : events) {
    if (event.has_scenario()) json["scenarios"].push_back(JsonOf(event.scenario()));
    if (event.has_fault()) json["faults"].push_back(JsonOf(event.fault()));
  }
  invocation.PrintJson("scenario_run", json);
}

/// A line of --format jsonl.
void PrintLine(Invocation& invocation, const v1::ScenarioEvent& event) {
  if (event.has_finished()) return;
  const Json result = event.has_scenario() ? JsonOf(event.scenario()) : JsonOf(event.fault());
  invocation.out() << JsonLine(event.has_scenario() ? "scenario_result" : "fault_result", result)
                   << std::flush;
}

absl::StatusOr<int> RunScenarioLibrary(Invocation& invocation, const ScenarioOptions& options) {
  if (!options.junit.empty()) {
    QG_RETURN_IF_ERROR(CheckOutput("--junit", options.junit, {".xml"}, {}));
  }
  QG_ASSIGN_OR_RETURN(Connection * connection, invocation.Connect());
  v1::RunScenariosRequest request;
  for (const std::string& name : options.names) request.add_names(name);
  request.set_with_faults(options.with_faults);
  request.set_parallel_backend(options.parallel_backend);
  QG_ASSIGN_OR_RETURN(*request.mutable_device(), DeviceToAsk(invocation, *connection));
  QG_ASSIGN_OR_RETURN(const v1::ListScenariosResponse listed, connection->ListScenarios());
  const int64_t total =
      options.names.empty() ? listed.scenarios_size() : static_cast<int64_t>(options.names.size());
  std::vector<v1::ScenarioEvent> events;
  const std::string& server = invocation.options().server;
  const JunitRun run{server.empty() ? "localhost" : server, absl::Now()};
  int64_t done = 0;
  QG_ASSIGN_OR_RETURN(const v1::ScenarioRunFinished finished,
                      RunScenarios(*connection, request, [&](const v1::ScenarioEvent& event) {
                        if (invocation.is_jsonl()) PrintLine(invocation, event);
                        if (event.has_scenario()) {
                          invocation.progress().Update(event.scenario().scenario(), ++done, total);
                        }
                        events.push_back(event);
                      }));
  invocation.progress().Clear();
  if (!options.junit.empty()) {
    QG_RETURN_IF_ERROR(WriteTextFile(options.junit, ScenarioJunit(events, run)));
  }
  PrintEnd(invocation, events, finished);
  return finished.good() ? kExitOk : kExitCriterionFailed;
}

}  // namespace

void AddScenarioCommand(CLI::App& app, Command& chosen) {
  CLI::App* group = app.add_subcommand(
      "scenario",
      "Self-check: named invariants, and the bugs that each must catch: list, run, agree");
  group->require_subcommand(1);
  group->footer(kScenarioExamples);
  const auto add = [&](const char* name, const char* summary, auto function) {
    return AddSubcommand(*group, chosen, name, summary, kScenarioExamples, function);
  };
  auto [list, list_options] =
      add("list", "What there is: invariants, criteria, bug classes, faults", ListScenarioLibrary);
  list->add_option("--format", list_options->format,
                   "What stdout gets; markdown: docs/scenarios.md")
      ->check(CLI::IsMember({"table", "json", "jsonl", "markdown"}));
  auto [run, options] = add("run", "Run scenarios, all unless some are named", RunScenarioLibrary);
  run->add_option("NAME", options->names, "Scenarios; default: all");
  run->add_flag("--with-faults", options->with_faults,
                "Seed every fault of each scenario too: it must be caught");
  run->add_option("--junit", options->junit, "Also write JUnit XML: FILE.xml")->type_name("FILE");
  run->add_option(
         "--parallel-backend", options->parallel_backend,
         "local (default): ranks on the run's device; nccl: a GPU for each, in worlds that "
         "the host has GPUs for")
      ->check(CLI::IsMember({"local", "nccl"}));
  AddScenarioAgreeCommand(*group, chosen, kScenarioExamples);
}

}  // namespace quantgate

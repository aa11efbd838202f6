// quantgate info: what the server is and can do.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "client/cli/commands/commands.h"
#include "client/in_process.h"
#include "kernels/base/status_macros.h"
#include "server/report/answers/render_info.h"
#include "server/report/report_json.h"

namespace quantgate {
namespace {

constexpr char kInfoExamples[] = R"(Examples:
  quantgate info
  quantgate info --server gpu-host:7470 --format json)";

using Json = nlohmann::ordered_json;

Json JsonOfFacts(const InfoFacts& facts) {
  Json json;
  if (facts.store.has_value()) {
    json["local_store"] = {
        {"path", facts.store->path}, {"bytes", facts.store->bytes}, {"files", facts.store->files}};
  }
  json.update(JsonOf(facts.capabilities));
  json.update(JsonOf(facts.recipes));
  json.update(JsonOf(facts.arithmetics));
  const Json sum = JsonOf(SumOfClasses(facts.arithmetics.cublaslt()));
  for (const char* count : {"returned", "equal", "differing", "not_run"}) {
    json["cublaslt"][count] = sum[count];
  }
  return json;
}

absl::StatusOr<int> Info(Invocation& invocation) {
  QG_ASSIGN_OR_RETURN(Connection * connection, invocation.Connect());
  InfoFacts facts;
  QG_ASSIGN_OR_RETURN(facts.capabilities, connection->GetCapabilities());
  QG_ASSIGN_OR_RETURN(facts.recipes, connection->ListRecipes());
  QG_ASSIGN_OR_RETURN(facts.arithmetics, connection->ListArithmetics());
  if (const auto store = DefaultStoreDirectory();
      store.ok() && invocation.options().server.empty()) {
    const DirectoryUsage usage = UsageOf(*store);
    facts.store = {*store, usage.bytes, usage.files};
  }
  if (invocation.is_table()) {
    PrintInfo(facts, invocation.uses_colour(), invocation.out());
  } else {
    invocation.PrintJson("info", JsonOfFacts(facts));
  }
  return 0;
}

}  // namespace

void AddInfoCommand(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand(
      "info", "Recipes, knobs, arithmetics, layers, limits and devices of the server");
  command->footer(kInfoExamples);
  command->callback([&chosen] { chosen = Info; });
}

}  // namespace quantgate

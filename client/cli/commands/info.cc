// quantgate info: what the server is and can do.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands/commands.h"
#include "client/in_process.h"
#include "kernels/base/status_macros.h"
#include "server/report/device_text.h"
#include "server/report/number_text.h"
#include "server/report/report_json.h"
#include "server/report/text_table.h"

namespace quantgate {
namespace {

constexpr char kInfoExamples[] = R"(Examples:
  quantgate info
  quantgate info --server gpu-host:7470 --format json)";

using Json = nlohmann::ordered_json;

struct Facts {
  v1::Capabilities capabilities;
  v1::ListRecipesResponse recipes;
  v1::ListArithmeticsResponse arithmetics;
  std::string store;  ///< The local store; empty with a server.
  DirectoryUsage store_usage;
};

v1::AlgorithmClass Sum(const v1::AlgorithmInventory& inventory) {
  v1::AlgorithmClass sum;
  for (const v1::AlgorithmClass& c : inventory.classes()) {
    sum.set_returned(sum.returned() + c.returned());
    sum.set_equal(sum.equal() + c.equal());
    sum.set_differing(sum.differing() + c.differing());
    sum.set_not_run(sum.not_run() + c.not_run());
  }
  return sum;
}

Json JsonOfFacts(const Facts& facts) {
  Json json;
  if (!facts.store.empty()) {
    json["local_store"] = {{"path", facts.store},
                           {"bytes", facts.store_usage.bytes},
                           {"files", facts.store_usage.files}};
  }
  json.update(JsonOf(facts.capabilities));
  json.update(JsonOf(facts.recipes));
  json.update(JsonOf(facts.arithmetics));
  const Json sum = JsonOf(Sum(facts.arithmetics.cublaslt()));
  for (const char* count : {"returned", "equal", "differing", "not_run"}) {
    json["cublaslt"][count] = sum[count];
  }
  return json;
}

void PrintNotModelled(const v1::AlgorithmInventory& inventory, Invocation& invocation) {
  const bool uses_colour = invocation.uses_colour();
  std::ostream& out = invocation.out();
  const v1::AlgorithmClass sum = Sum(inventory);
  out << "\n"
      << Toned("cuBLASLt algorithms that no arithmetic models", Tone::kBold, uses_colour) << "  of "
      << sum.returned() << " that the heuristic returned, " << sum.equal() << " equal their model, "
      << sum.differing() << " differ, " << sum.not_run()
      << " were not run\n  source: " << inventory.program() << "; " << inventory.device()
      << ", driver " << inventory.driver() << ", cuBLASLt " << inventory.cublaslt() << ", "
      << inventory.date() << "; docs/tensor-cores.md section 3.6\n";
  TextTable table({"operands", "id", "<slices of K", "<request", "first choices", "returned",
                   "equal", "differ", "not run"});
  for (const v1::AlgorithmClass& c : inventory.classes()) {
    if (!c.arithmetic().empty()) continue;
    table.AddRow({c.operands(), absl::StrCat(c.algorithm_id()), c.slices(), c.request(),
                  absl::StrCat(c.first_choices()), absl::StrCat(c.returned()),
                  absl::StrCat(c.equal()), absl::StrCat(c.differing()), absl::StrCat(c.not_run())});
  }
  table.Print(out, uses_colour, 2);
}

void PrintFacts(const Facts& facts, Invocation& invocation) {
  std::ostream& out = invocation.out();
  const bool uses_colour = invocation.uses_colour();
  const v1::Environment& environment = facts.capabilities.environment();
  out << "QuantGate " << environment.version() << " (" << environment.build() << ")\n";
  for (const v1::DeviceDescription& device : environment.devices()) {
    out << DeviceText(device, environment);
    if (device.memory_bytes() != 0) out << ", " << Bytes(device.memory_bytes());
    out << "\n";
  }
  if (environment.cuda().empty()) out << "CUDA: not in this build\n";
  if (!facts.store.empty()) {
    out << "local store: " << facts.store << ", " << Bytes(facts.store_usage.bytes) << " in "
        << facts.store_usage.files << " files (quantgate tensor ls, rm, gc)\n";
  }
  out << "\nlayers: " << absl::StrJoin(facts.capabilities.layers(), ", ")
      << "\nactivations: " << absl::StrJoin(facts.capabilities.activations(), ", ")
      << "\nnorms: " << absl::StrJoin(facts.capabilities.norms(), ", ")
      << "\nreduction profiles: " << absl::StrJoin(facts.capabilities.reduction_profiles(), ", ")
      << "\ncollective backends: " << absl::StrJoin(facts.capabilities.collective_backends(), ", ")
      << "\ndtypes: " << absl::StrJoin(facts.capabilities.dtypes(), ", ")
      << "\ndistributions: " << absl::StrJoin(facts.capabilities.distributions(), ", ") << "\n";
  const v1::Limits& limits = facts.capabilities.limits();
  out << "limits: " << Bytes(limits.tensor_bytes_max()) << " a tensor, "
      << Bytes(limits.blob_bytes_max()) << " a blob, " << Bytes(limits.inline_bytes_max())
      << " inline, " << Bytes(limits.message_bytes_max()) << " a message, "
      << Bytes(limits.chunk_bytes()) << " a chunk, " << limits.rank_max() << " dims, "
      << limits.find_missing_max() << " digests a FindMissing\n        " << limits.variants_max()
      << " variants a run, " << limits.queue_capacity() << " runs waiting, "
      << limits.sessions_max() << " sessions of " << Bytes(limits.session_bytes_max())
      << " together, leases of " << limits.session_lease_seconds_max() << " s, "
      << limits.trace_steps_max() << " steps a trace\n";
  for (const v1::RecipeDescription& recipe : facts.recipes.recipes()) {
    out << "\n"
        << Toned(recipe.name(), Tone::kBold, uses_colour) << "  " << recipe.summary() << "\n";
    TextTable table({"knob", "<values", "<default", "<"});
    for (const v1::KnobDescription& knob : recipe.knobs()) {
      table.AddRow({knob.name(), knob.values(), knob.default_value(), knob.summary()});
    }
    table.Print(out, uses_colour, 2);
  }
  out << "\n" << Toned("arithmetics", Tone::kBold, uses_colour) << "\n";
  for (const v1::ArithmeticDescription& arithmetic : facts.arithmetics.arithmetics()) {
    out << "  " << arithmetic.name() << (arithmetic.is_hardware() ? " (hardware)" : "") << ": "
        << arithmetic.summary() << "\n      source: " << arithmetic.source()
        << "\n      evidence: " << arithmetic.evidence() << "\n";
  }
  PrintNotModelled(facts.arithmetics.cublaslt(), invocation);
}

absl::StatusOr<int> Info(Invocation& invocation) {
  QG_ASSIGN_OR_RETURN(Connection * connection, invocation.Connect());
  Facts facts;
  QG_ASSIGN_OR_RETURN(facts.capabilities, connection->GetCapabilities());
  QG_ASSIGN_OR_RETURN(facts.recipes, connection->ListRecipes());
  QG_ASSIGN_OR_RETURN(facts.arithmetics, connection->ListArithmetics());
  if (const auto store = DefaultStoreDirectory();
      store.ok() && invocation.options().server.empty()) {
    facts.store = *store;
    facts.store_usage = UsageOf(facts.store);
  }
  if (invocation.is_table()) {
    PrintFacts(facts, invocation);
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

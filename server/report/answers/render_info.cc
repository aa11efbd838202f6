#include "server/report/answers/render_info.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/report/device_text.h"
#include "server/report/number_text.h"
#include "server/report/text_table.h"

namespace quantgate {
namespace {

void PrintNotModelled(const v1::AlgorithmInventory& inventory, bool uses_colour,
                      std::ostream& out) {
  const v1::AlgorithmClass sum = SumOfClasses(inventory);
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

}  // namespace

v1::AlgorithmClass SumOfClasses(const v1::AlgorithmInventory& inventory) {
  v1::AlgorithmClass sum;
  for (const v1::AlgorithmClass& c : inventory.classes()) {
    sum.set_returned(sum.returned() + c.returned());
    sum.set_equal(sum.equal() + c.equal());
    sum.set_differing(sum.differing() + c.differing());
    sum.set_not_run(sum.not_run() + c.not_run());
  }
  return sum;
}

void PrintInfo(const InfoFacts& facts, bool uses_colour, std::ostream& out) {
  const v1::Environment& environment = facts.capabilities.environment();
  out << "QuantGate " << environment.version() << " (" << environment.build() << ")\n";
  for (const v1::DeviceDescription& device : environment.devices()) {
    out << DeviceText(device, environment);
    if (device.memory_bytes() != 0) out << ", " << Bytes(device.memory_bytes());
    out << "\n";
  }
  if (environment.cuda().empty()) out << "CUDA: not in this build\n";
  if (facts.store.has_value()) {
    out << "local store: " << facts.store->path << ", " << Bytes(facts.store->bytes) << " in "
        << facts.store->files << " files (quantgate tensor ls, rm, gc)\n";
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
  PrintNotModelled(facts.arithmetics.cublaslt(), uses_colour, out);
}

}  // namespace quantgate

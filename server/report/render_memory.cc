#include "server/report/render_memory.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/report/number_text.h"
#include "server/report/text_table.h"

namespace quantgate {
namespace {

/// Neighbouring operands of one rank, microbatch, layer and place.
struct LayerRow {
  const v1::SessionOperand* first = nullptr;
  int64_t bytes = 0, scales = 0, held = 0;
  std::vector<std::string> operands;

  bool Takes(const v1::SessionOperand& operand) const {
    return first != nullptr && first->rank() == operand.rank() &&
           first->microbatch() == operand.microbatch() && first->layer() == operand.layer() &&
           first->place() == operand.place();
  }
  void Add(const v1::SessionOperand& operand) {
    if (first == nullptr) first = &operand;
    bytes += operand.counted_bytes();
    scales += operand.scale_bytes();
    held += operand.held_bytes();
    operands.push_back(absl::StrCat(operand.operand(), " ", operand.format()));
  }
};

}  // namespace

std::vector<std::string> MemoryHead() {
  return {"saved", "scales", "held", "added", "on host", "not saved", "peak"};
}

std::vector<std::string> MemoryRow(const v1::SessionMemory& memory) {
  return {Bytes(memory.saved_bytes()), Bytes(memory.scale_bytes()), Bytes(memory.held_bytes()),
          Bytes(memory.added_bytes()), Bytes(memory.host_bytes()),  Bytes(memory.not_saved_bytes()),
          Bytes(memory.peak_bytes())};
}

void PrintSessionMemory(const v1::SessionMemory& memory, bool uses_colour, std::ostream& out) {
  if (memory.operands().empty() && memory.peak_bytes() == 0) return;
  out << "\nSaved for backward (held: by the session anyway; peak: of added, in step "
      << memory.peak_step() << ")\n";
  TextTable sums(MemoryHead());
  sums.AddRow(MemoryRow(memory));
  sums.Print(out, uses_colour);
  if (memory.operands().empty()) return;
  TextTable table(
      {"rank", "<microbatch", "<layer", "bytes", "scales", "held", "<place", "<operands"});
  LayerRow row;
  const auto end_row = [&] {
    if (row.first == nullptr) return;
    table.AddRow({absl::StrCat(row.first->rank()),
                  row.first->microbatch().empty() ? "for wgrad" : row.first->microbatch(),
                  row.first->layer(), Bytes(row.bytes), Bytes(row.scales), Bytes(row.held),
                  row.first->place(), Cut(absl::StrJoin(row.operands, ", "), kTableColumns / 2)});
    row = {};
  };
  for (const v1::SessionOperand& operand : memory.operands()) {
    if (!row.Takes(operand)) end_row();
    row.Add(operand);
  }
  end_row();
  table.Print(out, uses_colour);
  if (memory.operands_left_out() > 0) {
    out << "and " << Count(memory.operands_left_out()) << " operands that are not listed\n";
  }
}

}  // namespace quantgate

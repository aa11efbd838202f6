#include "server/report/render_ranks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/report/number_text.h"
#include "server/report/text_table.h"

namespace quantgate {
namespace {

void PrintOverlaps(const RankReports& ranks, bool uses_colour, std::ostream& out) {
  if (ranks[0].overlaps().empty()) return;
  out << "\nCommunication beside GEMMs\n";
  std::vector<std::string> head = {"<stage", "rank"};
  for (const std::string& figure : OverlapHead()) head.push_back(figure);
  TextTable table(head);
  for (int stage = 0; stage < ranks[0].overlaps_size(); ++stage) {
    for (const v1::RankReport& rank : ranks) {
      if (stage >= rank.overlaps_size()) continue;
      const v1::OverlapReport& overlap = rank.overlaps(stage);
      std::vector<std::string> row = {rank.rank() == 0 ? overlap.stage() : "",
                                      absl::StrCat(rank.rank())};
      for (const std::string& figure : OverlapRow(overlap)) row.push_back(figure);
      table.AddRow(row);
    }
  }
  table.Print(out, uses_colour);
}

void PrintSavedBytes(const RankReports& ranks, bool uses_colour, std::ostream& out) {
  TextTable table({"rank", "saved", "codes, values", "scales", "held", "gathered", "kept"});
  bool any = false;
  for (const v1::RankReport& rank : ranks) {
    const v1::SavedBytes& saved = rank.saved_bytes();
    any |= saved.bytes() > 0 || rank.gathered_peak_bytes() > 0;
    table.AddRow({absl::StrCat(rank.rank()), Bytes(saved.bytes()), Bytes(saved.data_bytes()),
                  Bytes(saved.scale_bytes()), Bytes(saved.held_bytes()),
                  Bytes(rank.gathered_peak_bytes()), Bytes(rank.gathered_held_bytes())});
    if (rank.gathered_held_bytes() > 0) table.SetTone(6, Tone::kBad);
  }
  if (!any) return;
  out << "\nSaved for backward; gathered: the most of x and grad_output at a time; kept: after the "
         "step\n";
  table.Print(out, uses_colour);
}

}  // namespace

std::vector<std::string> GemmNotes(const RankReports& ranks) {
  std::vector<std::pair<std::string, std::vector<int>>> noted;
  for (const v1::RankReport& rank : ranks) {
    for (const v1::GemmLine& gemm : rank.gemms()) {
      if (gemm.note().empty()) continue;
      const std::string text = absl::StrCat(gemm.role(), " ", gemm.output(), ": ", gemm.note());
      const auto known = std::find_if(noted.begin(), noted.end(),
                                      [&](const auto& one) { return one.first == text; });
      if (known == noted.end()) {
        noted.push_back({text, {rank.rank()}});
      } else {
        known->second.push_back(rank.rank());
      }
    }
  }
  std::vector<std::string> notes;
  for (const auto& [text, of] : noted) {
    notes.push_back(
        absl::StrCat(of.size() == 1 ? "rank " : "ranks ", absl::StrJoin(of, ", "), ": ", text));
  }
  return notes;
}

std::vector<std::string> AmaxGroupHead() {
  return {"rank", "quantized", "amax over", "amax", "scale_inv"};
}

std::vector<std::vector<std::string>> AmaxGroupRows(const RankReports& ranks) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::RankReport& rank : ranks) {
    for (const v1::QuantizationRecord& record : rank.quantizations()) {
      if (record.amax_group().empty()) continue;
      rows.push_back({absl::StrCat(rank.rank()), record.tensor(), record.amax_group(),
                      record.has_amax() ? ShortReal(record.amax()) : "-",
                      record.has_scale_inv() ? ShortReal(record.scale_inv()) : "-"});
    }
  }
  return rows;
}

void PrintRankReports(const RankReports& ranks, bool uses_colour, std::ostream& out) {
  TextTable table({"rank", "<device", "<output", "<its part", "<fingerprint"});
  for (const v1::RankReport& rank : ranks) {
    for (const v1::NamedTensor& output : rank.outputs()) {
      const bool is_first = &output == &rank.outputs(0);
      table.AddRow({is_first ? absl::StrCat(rank.rank()) : "", is_first ? rank.device() : "",
                    output.name(), TypeText(output.type()), FingerprintText(output.fingerprint())});
    }
  }
  if (ranks[0].outputs_size() > 0) table.Print(out, uses_colour);
  for (const v1::RankReport& rank : ranks) {
    std::vector<std::string> times;
    for (const v1::StageTime& stage : rank.stages()) {
      times.push_back(absl::StrCat(stage.stage(), " ", Seconds(stage.seconds())));
    }
    out << Wrapped(absl::StrCat("rank ", rank.rank(), ":"), times) << "\n";
  }
  if (const auto rows = AmaxGroupRows(ranks); !rows.empty()) {
    TextTable groups(AmaxGroupHead());
    for (const std::vector<std::string>& row : rows) groups.AddRow(row);
    groups.Print(out, uses_colour);
  }
  PrintSavedBytes(ranks, uses_colour, out);
  for (const std::string& note : GemmNotes(ranks)) out << "GEMM of " << note << "\n";
  PrintOverlaps(ranks, uses_colour, out);
}

std::vector<std::string> OverlapHead() {
  return {"total", "compute", "communication", "exposed", "idle", "efficiency"};
}

std::vector<std::string> OverlapRow(const v1::OverlapReport& overlap) {
  return {Seconds(overlap.total_seconds()),         Seconds(overlap.compute_seconds()),
          Seconds(overlap.communication_seconds()), Seconds(overlap.exposed_seconds()),
          Seconds(overlap.idle_seconds()),          ShortReal(overlap.efficiency())};
}

}  // namespace quantgate

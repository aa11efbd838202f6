#include "server/report/render_capture.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/report/number_text.h"
#include "server/report/text_table.h"

namespace quantgate {
namespace {

constexpr size_t kModuleColumns = 34;
constexpr size_t kLayerColumns = 20;

/// "=", the share of its bound, or how many elements differ, behind the tensor's own name.
std::string TensorCell(const SubjectComparison& comparison) {
  const std::string name = comparison.tensor.substr(comparison.tensor.rfind(':') + 1);
  if (comparison.bound) {
    return absl::StrCat(name, " ", BoundShare(comparison.bound->worst_ratio()));
  }
  if (!comparison.result.has_parity() || !comparison.difference.empty()) {
    return absl::StrCat(name, " differs");
  }
  const v1::ParityReport& parity = comparison.result.parity();
  return absl::StrCat(
      name, " ", parity.equal() ? "=" : absl::StrCat(Count(parity.mismatch_count()), " differ"));
}

std::string ResultText(const CapturedLayer& layer) {
  if (!layer.passes) return "FAIL";
  return layer.comparison_count == 0 ? "-" : "pass";
}

/// The end of a module's path, which says more than its beginning.
std::string ModuleText(const std::string& module) {
  if (module.size() <= kModuleColumns) return module.empty() ? "(model)" : module;
  return absl::StrCat("~", module.substr(module.size() - kModuleColumns + 1));
}

std::string LayerText(const CapturedLayer& layer) {
  return Cut(layer.variant.empty() ? layer.layer : layer.variant, kLayerColumns);
}

std::string TensorsText(const ReportDocument& document, const CapturedLayer& layer) {
  std::vector<std::string> cells;
  for (size_t i = 0; i < layer.comparison_count; ++i) {
    cells.push_back(TensorCell(document.comparisons[layer.first_comparison + i]));
  }
  // A diff compares whatever was captured; what is equal needs no cell there.
  if (layer.variant.empty() && layer.comparison_count > 0) {
    std::erase_if(cells, [](const std::string& cell) { return cell.ends_with(" ="); });
    if (cells.empty()) return "=";
  }
  return absl::StrJoin(cells, ", ");
}

/// Each remark once, with the number of calls that it is about.
void PrintRemarks(const ReportDocument& document, std::ostream& out) {
  std::map<std::string, int> counts;
  std::vector<std::string> remarks;
  for (const CapturedLayer& layer : document.layers) {
    if (layer.remark.empty()) continue;
    if (counts[layer.remark]++ == 0) remarks.push_back(layer.remark);
  }
  for (const std::string& remark : remarks) {
    out << "note: of " << counts[remark] << (counts[remark] == 1 ? " call" : " calls") << ": "
        << remark << "\n";
  }
}

}  // namespace

void PrintCapturedLayers(const ReportDocument& document, bool uses_colour, std::ostream& out) {
  const bool has_ranks = std::any_of(document.layers.begin(), document.layers.end(),
                                     [](const CapturedLayer& layer) { return layer.rank != 0; });
  std::vector<std::string> head = {"step"};
  if (has_ranks) head.push_back("rank");
  head.insert(head.end(), {"call", "<module", "<layer", "<result", "<tensors"});
  TextTable table(head);
  size_t taken = 27 + (has_ranks ? 6 : 0);
  const auto longest = [&](auto text_of) {
    size_t columns = 6;
    for (const CapturedLayer& layer : document.layers) {
      columns = std::max(columns, text_of(layer).size());
    }
    return columns;
  };
  taken += longest([](const CapturedLayer& layer) { return ModuleText(layer.module); });
  taken += longest([](const CapturedLayer& layer) { return LayerText(layer); });
  for (const CapturedLayer& layer : document.layers) {
    std::vector<std::string> row = {absl::StrCat(layer.step)};
    if (has_ranks) row.push_back(absl::StrCat(layer.rank));
    row.insert(row.end(),
               {absl::StrCat(layer.call), ModuleText(layer.module), LayerText(layer),
                ResultText(layer), Cut(TensorsText(document, layer), kTableColumns - taken)});
    const size_t result = row.size() - 2;
    table.AddRow(row);
    if (layer.comparison_count > 0 || !layer.passes) {
      table.SetTone(result, layer.passes ? Tone::kGood : Tone::kBad);
    }
  }
  table.Print(out, uses_colour);
  out << "\n";
  for (const CapturedLayer& layer : document.layers) {
    if (layer.passes) continue;
    out << "step " << layer.step << (has_ranks ? absl::StrCat(" rank ", layer.rank) : "") << " "
        << (layer.module.empty() ? "(model)" : layer.module) << " call " << layer.call << ": "
        << layer.finding << "\n";
  }
  PrintRemarks(document, out);
}

}  // namespace quantgate

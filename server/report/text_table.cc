#include "server/report/text_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace quantgate {
namespace {

const char* EscapeOf(Tone tone) {
  switch (tone) {
    case Tone::kGood:
      return "\033[32m";
    case Tone::kBad:
      return "\033[31m";
    case Tone::kDim:
      return "\033[2m";
    case Tone::kBold:
      return "\033[1m";
    case Tone::kPlain:
      break;
  }
  return "";
}

}  // namespace

std::string Toned(const std::string& text, Tone tone, bool uses_colour) {
  if (!uses_colour || tone == Tone::kPlain || text.empty()) return text;
  return EscapeOf(tone) + text + "\033[0m";
}

std::string Cut(const std::string& text, size_t columns) {
  if (text.size() <= columns) return text;
  return text.substr(0, columns - 1) + "~";
}

TextTable::TextTable(std::vector<std::string> header) : header_(std::move(header)) {
  for (size_t i = 0; i < header_.size(); ++i) {
    const bool is_marked = header_[i].rfind('<', 0) == 0;
    if (is_marked) header_[i].erase(0, 1);
    is_left_.push_back(i == 0 || is_marked);
  }
}

void TextTable::SetTone(size_t column, Tone tone) {
  tones_.resize(rows_.size());
  tones_.back().resize(std::max(tones_.back().size(), column + 1), Tone::kPlain);
  tones_.back()[column] = tone;
}

void TextTable::Print(std::ostream& out, bool uses_colour, int indent) const {
  std::vector<size_t> widths;
  for (const std::string& name : header_) widths.push_back(name.size());
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  const auto print_row = [&](const std::vector<std::string>& cells, const std::vector<Tone>& tones,
                             Tone default_tone) {
    std::string line(indent, ' ');
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::string padding(widths[i] - cells[i].size(), ' ');
      const std::string text =
          Toned(cells[i], i < tones.size() ? tones[i] : default_tone, uses_colour);
      if (i > 0) line += "  ";
      line += is_left_[i] ? text + padding : padding + text;
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    out << line << "\n";
  };
  if (std::any_of(header_.begin(), header_.end(), [](const auto& name) { return !name.empty(); })) {
    print_row(header_, {}, Tone::kDim);
  }
  for (size_t i = 0; i < rows_.size(); ++i) {
    print_row(rows_[i], i < tones_.size() ? tones_[i] : std::vector<Tone>(), Tone::kPlain);
  }
}

std::string Wrapped(const std::string& head, const std::vector<std::string>& items) {
  std::string text = head;
  size_t line_start = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string item = absl::StrCat(items[i], i + 1 < items.size() ? "," : "");
    if (text.size() - line_start + 1 + item.size() > kTableColumns) {
      absl::StrAppend(&text, "\n", std::string(head.size(), ' '));
      line_start = text.size() - head.size();
    }
    absl::StrAppend(&text, " ", item);
  }
  return text;
}

}  // namespace quantgate

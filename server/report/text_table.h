// Aligned columns for a terminal.
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace quantgate {

enum class Tone { kPlain, kGood, kBad, kDim, kBold };

/// `text` in the colour of `tone`, when `uses_colour`.
std::string Toned(const std::string& text, Tone tone, bool uses_colour);

class TextTable {
 public:
  /// The first column is left-aligned, and so is every column whose header begins with '<' (which
  /// is not printed).
  explicit TextTable(std::vector<std::string> header);
  void AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  /// Colours a cell of the row added last.
  void SetTone(size_t column, Tone tone);
  void Print(std::ostream& out, bool uses_colour, int indent = 0) const;

 private:
  std::vector<std::string> header_;
  std::vector<bool> is_left_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::vector<Tone>> tones_;
};

/// The most characters that a line of a report may have.
inline constexpr int kTableColumns = 100;

/// Items joined by commas behind `head`, on as many lines as they need.
std::string Wrapped(const std::string& head, const std::vector<std::string>& items);

/// `text` cut to at most `columns` characters; a cut end is marked "~".
std::string Cut(const std::string& text, size_t columns);

}  // namespace quantgate

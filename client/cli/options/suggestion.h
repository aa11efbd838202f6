// "Did you mean": the known word that is nearest to an unknown one.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace quantgate {

/// The number of insertions, removals and replacements of one byte, and exchanges of two
/// neighbours, that turn `a` into `b`.
int EditDistance(std::string_view a, std::string_view b);

/// The word of `known` nearest to `word`, if `word` may be a misspelling of it: at most a third of
/// the letters differ, and at most three, regardless of case. Empty: none.
std::string Nearest(std::string_view word, const std::vector<std::string>& known);

/// A line, "did you mean --input?", for each word that a parse of `root` did not expect and that
/// may be misspelt. Empty: none.
std::string SuggestWords(const CLI::App& root, const std::vector<std::string>& unexpected);

/// The same for a message that quotes a value and then lists what would be right ("--layer:
/// \"liner\" is none of linear, ..."; "--format: jsno not in {table,json}"). Of several quoted
/// values the last one counts that is near one of the words behind it and is none of them.
std::string SuggestValue(const std::string& message);

}  // namespace quantgate

// "Did you mean": the known word that is nearest to one that is not known.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace quantgate {

/// Insertions, removals and replacements of one byte, and exchanges of two that are neighbours,
/// that make `b` of `a`.
int EditDistance(std::string_view a, std::string_view b);

/// The nearest of `known` to `word`, if a slip of the fingers can have made it: at most a third of
/// its letters differ, and three; small and large letters are alike. Empty: none.
std::string Nearest(std::string_view word, const std::vector<std::string>& known);

/// Of the words that a parse of `root` did not expect, what each may have meant, a line each:
/// "did you mean --input?". Empty: none.
std::string SuggestWords(const CLI::App& root, const std::vector<std::string>& unexpected);

/// Of a message that quotes a value and then says what would be right ("--layer: \"liner\" is none
/// of linear, ..."; "--format: jsno not in {table,json}"): of several the last that is near one of
/// the words behind it and none of them.
std::string SuggestValue(const std::string& message);

}  // namespace quantgate

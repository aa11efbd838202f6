// "Did you mean": the option, command or value that is nearest to an unknown one.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/nearest_word.h"

namespace quantgate {

/// A line, "did you mean --input?", for each word that a parse of `root` did not expect and that
/// may be misspelt. Empty: none.
std::string SuggestWords(const CLI::App& root, const std::vector<std::string>& unexpected);

/// The same for a message that quotes a value and then lists what would be right ("--layer:
/// \"liner\" is none of linear, ..."; "--format: jsno not in {table,json}"). Of several quoted
/// values the last one counts that is near one of the words behind it and is none of them.
std::string SuggestValue(const std::string& message);

}  // namespace quantgate

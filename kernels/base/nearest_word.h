// The known word that is nearest to an unknown one, for "did you mean".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quantgate {

/// The number of insertions, removals and replacements of one byte, and exchanges of two
/// neighbours, that turn `a` into `b`.
int EditDistance(std::string_view a, std::string_view b);

/// The word of `known` nearest to `word`, if `word` may be a misspelling of it: at most a third of
/// the letters differ, and at most three, regardless of case. Empty: none.
std::string NearestWord(std::string_view word, const std::vector<std::string>& known);

}  // namespace quantgate

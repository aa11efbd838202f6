#include "client/cli/options/suggestion.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/options/option_names.h"

namespace quantgate {
namespace {

/// Kinds of steps as files and the API have them, in the words of `session step`.
constexpr std::pair<std::string_view, std::string_view> kStepsElsewhere[] = {
    {"forward", "train"}, {"change_recipe", "recipe"}, {"eval", "evaluate"}};

/// Values that other commands have as options of their own.
constexpr std::pair<std::string_view, std::string_view> kValuesAsOptions[] = {
    {"--json", "--format json"}, {"--jsonl", "--format jsonl"}, {"--cuda", "--device cuda"},
    {"--gpu", "--device cuda"},  {"--cpu", "--device cpu"},
};

std::string Question(const std::string& word) {
  return word.empty() ? "" : absl::StrCat("did you mean ", word, "?");
}

/// Adds the words that may follow `command`: its options and those of the commands around it, or
/// its subcommands.
void AddWords(const CLI::App& command, bool are_options, std::vector<std::string>& words) {
  if (!are_options) {
    for (const CLI::App* child : command.get_subcommands({})) words.push_back(child->get_name());
    return;
  }
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
  }
  if (command.get_parent() != nullptr) AddWords(*command.get_parent(), true, words);
}

bool IsOfName(char c) {
  constexpr std::string_view kMarks = "_-:.";
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || kMarks.find(c) != kMarks.npos;
}

/// The names in `text`.
std::vector<std::string> NamesIn(std::string_view text) {
  std::vector<std::string> names;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    while (at < text.size() && IsOfName(text[at])) ++at;
    size_t end = at;
    while (end > begin && (text[end - 1] == '.' || text[end - 1] == ':')) --end;
    if (end > begin) names.emplace_back(text.substr(begin, end - begin));
    ++at;
  }
  return names;
}

/// A value that a message quotes, without its quotes.
struct QuotedWord {
  size_t begin = 0, size = 0;
};

/// The quoted words that are names or KEY=VALUE, also within other quotes, as in JSON.
std::vector<QuotedWord> QuotedWords(std::string_view text) {
  std::vector<QuotedWord> words;
  for (size_t open = text.find('"'); open != text.npos; open = text.find('"', open + 1)) {
    size_t end = open + 1;
    bool has_letter = false;
    for (; end < text.size() && (IsOfName(text[end]) || text[end] == '='); ++end) {
      has_letter |= std::isalpha(static_cast<unsigned char>(text[end])) != 0;
    }
    if (has_letter && end < text.size() && text[end] == '"')
      words.push_back({open + 1, end - open - 1});
  }
  return words;
}

}  // namespace

std::string SuggestWords(const CLI::App& root, const std::vector<std::string>& unexpected) {
  const CLI::App& command = ChosenCommand(root);
  std::string lines;
  for (const std::string& word : unexpected) {
    const bool is_option = absl::StartsWith(word, "-");
    std::vector<std::string> words;
    AddWords(command, is_option, words);
    const auto* const known = std::find_if(std::begin(kValuesAsOptions), std::end(kValuesAsOptions),
                                           [&](const auto& value) { return value.first == word; });
    const std::string meant = known != std::end(kValuesAsOptions)
                                  ? std::string(known->second)
                                  : NearestWord(word.substr(0, word.find('=')), words);
    const std::string question = Question(meant);
    if (!question.empty()) absl::StrAppend(&lines, question, "\n");
  }
  return lines;
}

std::string SuggestValue(const std::string& message) {
  if (const size_t rest = message.find(" not in {"); rest != std::string::npos) {
    const size_t begin = message.rfind(' ', rest - 1) + 1;
    const std::string word = message.substr(begin, rest - begin);
    const std::vector<std::string> known = NamesIn(message.substr(rest));
    for (const auto& [other, step] : kStepsElsewhere) {
      if (other == word && absl::c_linear_search(known, step)) return Question(std::string(step));
    }
    return Question(NearestWord(word, known));
  }
  // A value of a number or a message has no names to be near to: what follows is protobuf's prose.
  if (absl::StrContains(message, "for type TYPE_") &&
      !absl::StrContains(message, "for type TYPE_ENUM")) {
    return "";
  }
  const std::vector<QuotedWord> words = QuotedWords(message);
  std::string unquoted = message;
  for (const QuotedWord& word : words) unquoted.replace(word.begin, word.size, word.size, '"');
  // The last is the nearest to what is wrong: "knob scale_rule: value "cel" is not one of ceil".
  for (auto word = words.rbegin(); word != words.rend(); ++word) {
    const std::vector<std::string> known = NamesIn(unquoted.substr(word->begin));
    // The key of KEY=VALUE is misspelt.
    const std::string name = message.substr(word->begin, word->size);
    const std::string key = name.substr(0, name.find('='));
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string nearest = NearestWord(key, known);
    if (!nearest.empty()) return Question(nearest);
  }
  return "";
}

}  // namespace quantgate

// quantgate completion: shell scripts made from the command tree itself, so that they cannot lag
// behind it.
#include <CLI/CLI.hpp>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/commands/commands.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

constexpr char kCompletionExamples[] = R"(Examples:
  quantgate completion bash > ~/.local/share/bash-completion/completions/quantgate
  quantgate completion zsh > "${fpath[1]}/_quantgate"
  quantgate completion fish > ~/.config/fish/completions/quantgate.fish)";

struct Option {
  std::vector<std::string> names;    ///< With their dashes.
  std::vector<std::string> choices;  ///< Of CLI::IsMember; empty: free text or a file.
  std::string summary;
  bool takes_value = false;
};

struct Node {
  std::string path;  ///< "tensor put"; empty: the root.
  std::string summary;
  std::vector<const CLI::App*> children;
  std::vector<Option> options;
  bool has_positionals = false;
  std::vector<std::string> positional_choices;  ///< Empty: files and other free text.
};

/// IsMember shows its set as "TEXT:{a,b}" in the option's type.
std::vector<std::string> ChoicesOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t open = type.find('{');
  const size_t close = type.rfind('}');
  if (open == std::string::npos || close == std::string::npos) return {};
  return absl::StrSplit(type.substr(open + 1, close - open - 1), ',');
}

std::vector<Option> OptionsOf(const CLI::App& app) {
  std::vector<Option> options;
  for (const CLI::Option* option : app.get_options()) {
    Option entry;
    for (const std::string& name : option->get_snames()) entry.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) entry.names.push_back("--" + name);
    if (entry.names.empty()) continue;  // A positional.
    entry.choices = ChoicesOf(*option);
    entry.summary = option->get_description();
    entry.takes_value = option->get_items_expected_max() > 0;
    options.push_back(entry);
  }
  return options;
}

void Walk(const CLI::App& app, const std::string& path, std::vector<Node>& nodes) {
  Node node{path, app.get_description(), {}, OptionsOf(app), false, {}};
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) continue;
    node.has_positionals = true;
    if (node.positional_choices.empty()) node.positional_choices = ChoicesOf(*option);
  }
  for (const CLI::App* child : app.get_subcommands({})) node.children.push_back(child);
  nodes.push_back(node);
  for (const CLI::App* child : node.children) {
    Walk(*child, path.empty() ? child->get_name() : absl::StrCat(path, " ", child->get_name()),
         nodes);
  }
}

/// What may follow at this place: subcommands, its own options and the global ones.
std::vector<std::string> WordsOf(const Node& node, const Node& root) {
  std::vector<std::string> words;
  for (const CLI::App* child : node.children) words.push_back(child->get_name());
  for (const Option& option : node.options) {
    words.insert(words.end(), option.names.begin(), option.names.end());
  }
  if (&node == &root) return words;
  for (const Option& option : root.options) {
    for (const std::string& name : option.names) {
      if (std::find(words.begin(), words.end(), name) == words.end()) words.push_back(name);
    }
  }
  return words;
}

std::string Bash(const std::vector<Node>& nodes) {
  std::string script = R"(# bash completion of quantgate; made by `quantgate completion bash`.
_quantgate() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} place= word i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    case "$place $word" in
)";
  std::vector<std::string> paths;
  for (const Node& node : nodes) {
    if (node.path.empty()) continue;
    const size_t space = node.path.rfind(' ');
    const std::string parent = space == std::string::npos ? "" : node.path.substr(0, space);
    const std::string name = space == std::string::npos ? node.path : node.path.substr(space + 1);
    absl::StrAppend(&script, "      \"", parent, " ", name, "\") place=\"", node.path, "\" ;;\n");
  }
  absl::StrAppend(&script, "    esac\n  done\n  case \"$place $previous\" in\n");
  for (const Node& node : nodes) {
    for (const Option& option : node.options) {
      if (!option.takes_value) continue;
      for (const std::string& name : option.names) {
        // A global option completes alike after every subcommand. No reply: bash offers files.
        absl::StrAppend(
            &script, "    ", node.path.empty() ? "*" : absl::StrCat("\"", node.path, "\""), "\" ",
            name, "\") ",
            option.choices.empty()
                ? ""
                : absl::StrCat("COMPREPLY=($(compgen -W \"", absl::StrJoin(option.choices, " "),
                               "\" -- \"$current\")); "),
            "return ;;\n");
      }
    }
  }
  absl::StrAppend(&script, "  esac\n  local words=\n  case \"$place $current\" in\n",
                  "    *\" -\"*) ;;\n");
  for (const Node& node : nodes) {
    if (!node.has_positionals) continue;
    absl::StrAppend(&script, "    \"", node.path, " \"*) COMPREPLY=($(compgen -W \"",
                    absl::StrJoin(node.positional_choices, " "),
                    "\" -- \"$current\")); return ;;\n");
  }
  absl::StrAppend(&script, "  esac\n  case \"$place\" in\n");
  for (const Node& node : nodes) {
    absl::StrAppend(&script, "    \"", node.path, "\") words=\"",
                    absl::StrJoin(WordsOf(node, nodes[0]), " "), "\" ;;\n");
  }
  absl::StrAppend(&script, R"(  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o bashdefault -o default -F _quantgate quantgate
)");
  return script;
}

/// Inside single quotes of zsh or fish; zsh's _arguments also reads brackets and colons.
std::string Plain(const std::string& text) {
  std::string plain;
  for (const char c : text) plain += std::string("'[]:\\\n").find(c) == std::string::npos ? c : ' ';
  return plain;
}

std::string ZshArguments(const Node& node) {
  std::string lines;
  for (const Option& option : node.options) {
    for (const std::string& name : option.names) {
      absl::StrAppend(&lines, " \\\n        '", name, "[", Plain(option.summary), "]");
      if (option.takes_value) {
        absl::StrAppend(&lines, ":value:",
                        option.choices.empty()
                            ? "_files"
                            : absl::StrCat("(", absl::StrJoin(option.choices, " "), ")"));
      }
      absl::StrAppend(&lines, "'");
    }
  }
  return lines;
}

std::string ZshPositionals(const Node& node) {
  return absl::StrCat(" \\\n        '*:argument:",
                      node.positional_choices.empty()
                          ? "_files"
                          : absl::StrCat("(", absl::StrJoin(node.positional_choices, " "), ")"),
                      "'");
}

/// The variable is called place because zsh ties path to PATH.
std::string Zsh(const std::vector<Node>& nodes) {
  std::string script =
      "#compdef quantgate\n# zsh completion of quantgate; made by `quantgate completion zsh`.\n"
      "_quantgate() {\n  local place= word\n  for word in ${words[2,CURRENT-1]}; do\n"
      "    case \"$place $word\" in\n";
  for (const Node& node : nodes) {
    if (node.path.empty()) continue;
    const size_t space = node.path.rfind(' ');
    absl::StrAppend(&script, "      \"",
                    space == std::string::npos ? absl::StrCat(" ", node.path) : node.path,
                    "\") place=\"", node.path, "\" ;;\n");
  }
  absl::StrAppend(&script, "    esac\n  done\n  case \"$place\" in\n");
  for (const Node& node : nodes) {
    absl::StrAppend(&script, "    \"", node.path, "\")\n");
    if (!node.children.empty()) {
      absl::StrAppend(&script, "      local -a commands=(");
      for (const CLI::App* child : node.children) {
        absl::StrAppend(&script, "\n        '", child->get_name(), ":",
                        Plain(child->get_description()), "'");
      }
      absl::StrAppend(&script, ")\n      _describe command commands\n");
    }
    absl::StrAppend(&script, "      _arguments", ZshArguments(node),
                    node.path.empty() ? "" : ZshArguments(nodes[0]),
                    node.children.empty() ? ZshPositionals(node) : "", "\n      ;;\n");
  }
  absl::StrAppend(&script, "  esac\n}\n_quantgate \"$@\"\n");
  return script;
}

std::string Fish(const std::vector<Node>& nodes) {
  std::string script = "# fish completion of quantgate; made by `quantgate completion fish`.\n";
  std::vector<std::string> groups;
  for (const CLI::App* child : nodes[0].children) {
    if (!child->get_subcommands({}).empty()) groups.push_back(child->get_name());
  }
  const auto condition = [&](const Node& node) -> std::string {
    if (node.path.empty()) return "";
    std::string text;
    const std::vector<std::string> words = absl::StrSplit(node.path, ' ');
    for (const std::string& word : words) {
      absl::StrAppend(&text, text.empty() ? "" : "; and ", "__fish_seen_subcommand_from ", word);
    }
    // "session run" has seen a run too.
    if (words.size() == 1 && node.children.empty()) {
      absl::StrAppend(&text, "; and not __fish_seen_subcommand_from ", absl::StrJoin(groups, " "));
    }
    return absl::StrCat(" -n '", text, "'");
  };
  for (const Node& node : nodes) {
    for (const CLI::App* child : node.children) {
      absl::StrAppend(&script, "complete -c quantgate",
                      node.path.empty() ? " -n __fish_use_subcommand" : condition(node), " -a ",
                      child->get_name(), " -d '", Plain(child->get_description()), "'\n");
    }
    if (!node.positional_choices.empty()) {
      absl::StrAppend(&script, "complete -c quantgate", condition(node), " -f -a '",
                      absl::StrJoin(node.positional_choices, " "), "'\n");
    }
    for (const Option& option : node.options) {
      absl::StrAppend(&script, "complete -c quantgate", condition(node));
      for (const std::string& name : option.names) {
        const bool is_long = name.rfind("--", 0) == 0;
        absl::StrAppend(&script, is_long ? " -l " : " -s ", name.substr(is_long ? 2 : 1));
      }
      if (option.takes_value) absl::StrAppend(&script, " -r");
      if (!option.choices.empty()) {
        absl::StrAppend(&script, " -f -a '", absl::StrJoin(option.choices, " "), "'");
      }
      absl::StrAppend(&script, " -d '", Plain(option.summary), "'\n");
    }
  }
  return script;
}

}  // namespace

void AddCompletionCommand(CLI::App& root, Command& chosen) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = root.add_subcommand("completion", "Completion script for a shell");
  command->footer(kCompletionExamples);
  command->add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->callback([shell, &root, &chosen] {
    chosen = [shell, &root](Invocation& invocation) -> absl::StatusOr<int> {
      std::vector<Node> nodes;
      Walk(root, "", nodes);
      invocation.out() << (*shell == "bash"  ? Bash(nodes)
                           : *shell == "zsh" ? Zsh(nodes)
                                             : Fish(nodes));
      return 0;
    };
  });
}

}  // namespace quantgate

#include "server/report/page_template.h"

#include <algorithm>
#include <cassert>
#include <cctype>
#include <charconv>
#include <deque>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace quantgate {
namespace {

using Json = nlohmann::ordered_json;

bool IsTrue(const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number()) return json.get<double>() != 0;
  if (json.is_string()) return !json.get_ref<const std::string&>().empty();
  return !json.empty();
}

std::string TextOf(const Json& json) {
  if (json.is_null()) return "";
  if (json.is_string()) return json.get<std::string>();
  if (json.is_number_integer()) return absl::StrCat(json.get<int64_t>());
  if (json.is_number()) return absl::StrCat(json.get<double>());
  return json.dump();
}

/// A stretch of the template.
struct Piece {
  enum class Kind { kText, kValue, kIf, kElif, kElse, kFor, kLet, kDef, kEnd };
  Kind kind = Kind::kText;
  std::string text;  ///< Of a statement what follows its first word.
};

std::vector<Piece> PiecesOf(std::string_view page) {
  static const std::map<std::string_view, Piece::Kind> kStatements = {
      {"if", Piece::Kind::kIf},   {"elif", Piece::Kind::kElif}, {"else", Piece::Kind::kElse},
      {"for", Piece::Kind::kFor}, {"let", Piece::Kind::kLet},   {"def", Piece::Kind::kDef},
      {"end", Piece::Kind::kEnd}};
  std::string text;
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(page.data(), page.size()), '\n')) {
    absl::StrAppend(&text, absl::StripLeadingAsciiWhitespace(line));
  }
  std::vector<Piece> pieces;
  const std::string_view all = text;
  for (size_t at = 0; at < all.size();) {
    const size_t value = all.find("{{", at), statement = all.find("{%", at);
    const size_t comment = all.find("{#", at);
    const size_t next = std::min({value, statement, comment, all.size()});
    if (next > at) pieces.push_back({Piece::Kind::kText, std::string(all.substr(at, next - at))});
    if (next == all.size()) break;
    const size_t end = all.find(next == value ? "}}" : next == comment ? "#}" : "%}", next);
    assert(end != std::string_view::npos);
    at = end + 2;
    if (next == comment) continue;
    std::string inside(all.substr(next + 2, end - next - 2));
    absl::StripAsciiWhitespace(&inside);
    if (next == value) {
      pieces.push_back({Piece::Kind::kValue, inside});
      continue;
    }
    const size_t word = std::min(inside.find(' '), inside.size());
    pieces.push_back({kStatements.at(std::string_view(inside).substr(0, word)),
                      inside.substr(std::min(word + 1, inside.size()))});
  }
  return pieces;
}

class Page {
 public:
  Page(std::string_view page, const PageFunctions& functions, const Json& root)
      : pieces_(PiecesOf(page)), functions_(functions), root_(root) {}

  std::string Render() {
    std::string out;
    Scope scope;
    Run(0, scope, out);
    return out;
  }

 private:
  using Scope = std::deque<std::pair<std::string, PageValue>>;
  struct Macro {
    size_t body = 0;
    std::vector<std::string> parameters;
  };
  class Expression;

  PageValue Evaluate(std::string_view text, const Scope& scope);
  PageValue Call(const std::string& name, std::vector<PageValue> arguments);
  PageValue Look(const std::string& name, const Scope& scope) const;
  /// Runs a body, to the piece that ends it.
  size_t Run(size_t at, Scope& scope, std::string& out);
  size_t RunIf(size_t at, Scope& scope, std::string& out);
  size_t RunFor(size_t at, Scope& scope, std::string& out);
  /// Where the body that begins there ends, or its next branch begins.
  size_t Skip(size_t at) const;

  const std::vector<Piece> pieces_;
  const PageFunctions& functions_;
  const Json& root_;
  std::map<std::string, Macro> macros_;
};

/// Evaluates while it reads, both sides of every choice.
class Page::Expression {
 public:
  Expression(Page& page, std::string_view text, const Scope& scope)
      : page_(page), rest_(text), scope_(scope) {}

  PageValue Whole() {
    PageValue value = Choice();
    assert((Spaces(), rest_.empty()));
    return value;
  }

 private:
  void Spaces() {
    while (!rest_.empty() && rest_[0] == ' ') rest_.remove_prefix(1);
  }
  bool Take(std::string_view token) {
    Spaces();
    if (rest_.substr(0, token.size()) != token) return false;
    const bool is_word = std::isalpha(static_cast<unsigned char>(token[0])) != 0;
    if (is_word && rest_.size() > token.size() && IsNamePart(rest_[token.size()])) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  void Expect(std::string_view token) {
    [[maybe_unused]] const bool is_there = Take(token);
    assert(is_there);
  }
  static bool IsNamePart(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
  static PageValue Of(Json json) { return {std::move(json)}; }

  PageValue Choice() {
    PageValue value = Joined(0);
    if (!Take("?")) return value;
    PageValue yes = Choice();
    Expect(":");
    PageValue no = Choice();
    return IsTrue(value.json()) ? yes : no;
  }

  /// What the operators of that level and higher ones join, from the left.
  PageValue Joined(size_t level) {
    static const std::vector<std::vector<std::string_view>> kLevels = {
        {"or"}, {"and"}, {"==", "!=", "<=", ">=", "<", ">"}, {"~", "+", "-"}, {"*", "/"}};
    if (level == kLevels.size()) return Signed();
    PageValue left = Joined(level + 1);
    for (;;) {
      const auto taken = std::find_if(kLevels[level].begin(), kLevels[level].end(),
                                      [&](std::string_view token) { return Take(token); });
      if (taken == kLevels[level].end()) return left;
      left = Apply(*taken, left, Joined(level + 1));
    }
  }

  static PageValue Apply(std::string_view token, const PageValue& left, const PageValue& right) {
    if (token == "or") return IsTrue(left.json()) ? left : right;
    if (token == "and") return IsTrue(left.json()) ? right : left;
    if (token == "==") return Of(left.json() == right.json());
    if (token == "!=") return Of(left.json() != right.json());
    if (token == "~") return Of(TextOf(left.json()) + TextOf(right.json()));
    const double a = RealIn(left.json()), b = RealIn(right.json());
    if (token == "<=") return Of(a <= b);
    if (token == ">=") return Of(a >= b);
    if (token == "<") return Of(a < b);
    if (token == ">") return Of(a > b);
    if (token == "+") return Of(a + b);
    if (token == "-") return Of(a - b);
    return Of(token == "*" ? a * b : a / b);
  }

  PageValue Signed() {
    if (Take("not")) return Of(!IsTrue(Signed().json()));
    if (Take("-")) return Of(-RealIn(Signed().json()));
    PageValue value = First();
    for (;;) {
      if (Take(".")) {
        value = Member(value, Name());
      } else if (Take("[")) {
        value = Member(value, static_cast<size_t>(RealIn(Choice().json())));
        Expect("]");
      } else {
        return value;
      }
    }
  }

  template <typename Key>
  static PageValue Member(const PageValue& of, const Key& key) {
    const Json* member = nullptr;
    if constexpr (std::is_same_v<Key, std::string>) {
      if (of.json().is_object() && of.json().contains(key)) member = &of.json()[key];
    } else {
      if (of.json().is_array() && key < of.json().size()) member = &of.json()[key];
    }
    if (member == nullptr) return {};
    return of.other == nullptr ? Of(*member) : PageValue{{}, member};
  }

  std::string Name() {
    Spaces();
    size_t size = 0;
    while (size < rest_.size() && IsNamePart(rest_[size])) ++size;
    assert(size > 0);
    std::string name(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return name;
  }
  PageValue First() {
    Spaces();
    assert(!rest_.empty());
    if (Take("(")) {
      PageValue value = Choice();
      Expect(")");
      return value;
    }
    if (rest_[0] == '"') {
      const size_t end = rest_.find('"', 1);
      assert(end != std::string_view::npos);
      PageValue value = Of(std::string(rest_.substr(1, end - 1)));
      rest_.remove_prefix(end + 1);
      return value;
    }
    if (std::isdigit(static_cast<unsigned char>(rest_[0])) != 0) {
      double number = 0;
      const auto end = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number).ptr;
      rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
      return Of(number);
    }
    const std::string name = Name();
    if (!Take("(")) return page_.Look(name, scope_);
    std::vector<PageValue> arguments;
    while (!Take(")")) {
      arguments.push_back(Choice());
      Take(",");
    }
    return page_.Call(name, std::move(arguments));
  }

  Page& page_;
  std::string_view rest_;
  const Scope& scope_;
};

PageValue Page::Evaluate(std::string_view text, const Scope& scope) {
  return Expression(*this, text, scope).Whole();
}

PageValue Page::Look(const std::string& name, const Scope& scope) const {
  for (auto it = scope.rbegin(); it != scope.rend(); ++it) {
    if (it->first == name) return {{}, &it->second.json(), it->second.is_markup};
  }
  const auto found = root_.find(name);
  return found == root_.end() ? PageValue{} : PageValue{{}, &*found};
}

PageValue Page::Call(const std::string& name, std::vector<PageValue> arguments) {
  if (const auto function = functions_.find(name); function != functions_.end()) {
    return function->second(arguments);
  }
  const Macro macro = macros_.at(name);
  assert(macro.parameters.size() == arguments.size());
  Scope scope;
  for (size_t i = 0; i < arguments.size(); ++i) {
    scope.emplace_back(macro.parameters[i], std::move(arguments[i]));
  }
  std::string out;
  Run(macro.body, scope, out);
  return {std::move(out), nullptr, true};
}

size_t Page::Skip(size_t at) const {
  using Kind = Piece::Kind;
  for (int depth = 0;; ++at) {
    assert(at < pieces_.size());
    const Kind kind = pieces_[at].kind;
    const bool is_branch = kind == Kind::kElif || kind == Kind::kElse;
    if (depth == 0 && (is_branch || kind == Kind::kEnd)) return at;
    if (kind == Kind::kIf || kind == Kind::kFor || kind == Kind::kDef) ++depth;
    if (kind == Kind::kEnd) --depth;
  }
}

size_t Page::RunIf(size_t at, Scope& scope, std::string& out) {
  for (bool is_done = false; pieces_[at].kind != Piece::Kind::kEnd; at = Skip(at + 1)) {
    if (is_done) continue;
    is_done =
        pieces_[at].kind == Piece::Kind::kElse || IsTrue(Evaluate(pieces_[at].text, scope).json());
    if (is_done) Run(at + 1, scope, out);
  }
  return at;
}

size_t Page::RunFor(size_t at, Scope& scope, std::string& out) {
  const std::vector<std::string> parts =
      absl::StrSplit(pieces_[at].text, absl::MaxSplits(" in ", 1));
  const PageValue list = Evaluate(parts.at(1), scope);
  int index = 0;
  for (const Json& item : list.json()) {
    scope.push_back({parts[0], {{}, &item}});
    scope.push_back({"index", {index++}});
    Run(at + 1, scope, out);
    scope.erase(scope.end() - 2, scope.end());
  }
  return Skip(at + 1);
}

size_t Page::Run(size_t at, Scope& scope, std::string& out) {
  const size_t height = scope.size();
  for (; at < pieces_.size(); ++at) {
    const Piece& piece = pieces_[at];
    switch (piece.kind) {
      case Piece::Kind::kText:
        out += piece.text;
        break;
      case Piece::Kind::kValue: {
        const PageValue value = Evaluate(piece.text, scope);
        out += value.is_markup ? TextOf(value.json()) : Escaped(TextOf(value.json()));
        break;
      }
      case Piece::Kind::kIf:
        at = RunIf(at, scope, out);
        break;
      case Piece::Kind::kFor:
        at = RunFor(at, scope, out);
        break;
      case Piece::Kind::kLet: {
        const std::vector<std::string> parts =
            absl::StrSplit(piece.text, absl::MaxSplits(" = ", 1));
        scope.emplace_back(parts[0], Evaluate(parts.at(1), scope));
        break;
      }
      case Piece::Kind::kDef: {
        const std::vector<std::string> parts =
            absl::StrSplit(piece.text, absl::ByAnyChar("(, )"), absl::SkipEmpty());
        macros_[parts[0]] = {at + 1, {parts.begin() + 1, parts.end()}};
        at = Skip(at + 1);
        break;
      }
      case Piece::Kind::kElif:
      case Piece::Kind::kElse:
      case Piece::Kind::kEnd:
        scope.erase(scope.begin() + static_cast<std::ptrdiff_t>(height), scope.end());
        return at;
    }
  }
  return at;
}

}  // namespace

std::string RenderPage(std::string_view page, const PageFunctions& functions, const Json& root) {
  return Page(page, functions, root).Render();
}

std::string Escaped(std::string_view text) {
  std::string escaped = absl::StrReplaceAll(
      absl::string_view(text.data(), text.size()),
      {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
  // Control characters have no place in HTML but for line ends and tabs.
  for (char& c : escaped) {
    if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') c = '?';
  }
  return escaped;
}

double RealIn(const Json& json) {
  if (json.is_number()) return json.get<double>();
  if (json.is_string() && json == "Infinity") return std::numeric_limits<double>::infinity();
  if (json.is_string() && json == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace quantgate

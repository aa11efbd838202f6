// Pages made of JSON by a template. Names of the template are members of the root, of enclosing
// `for` and `let`, and a macro's own; a member that is not there is null, which prints as nothing.
//
//   {{ EXPRESSION }}                    its text, escaped unless it is markup
//   {% if E %} {% elif E %} {% else %} {% end %}
//   {% for NAME in E %} {% end %}       index counts from 0
//   {% let NAME = E %}                  until the enclosing end
//   {% def NAME(A, B) %} {% end %}      a macro: NAME(E, E) is markup
//   {# COMMENT #}
//
// Expressions: 1.5, "text", a.b.c, a[NUMBER], f(E, E), - not, * /, + - ~ (joins texts), == != < <=
// > >=, and, or, E ? E : E. Line ends and indentation are left out of the page. A template is part
// of the program: one that is malformed ends it.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace quantgate {

/// A value of an expression: one of its own, or one that somebody else holds.
struct PageValue {
  nlohmann::ordered_json own;
  const nlohmann::ordered_json* other = nullptr;
  bool is_markup = false;  ///< A text that is not escaped.

  const nlohmann::ordered_json& json() const { return other == nullptr ? own : *other; }
};

/// Called with as many values as the template gives; null where something is absent.
using PageFunction = std::function<PageValue(const std::vector<PageValue>& arguments)>;
using PageFunctions = std::map<std::string, PageFunction, std::less<>>;

std::string RenderPage(std::string_view page, const PageFunctions& functions,
                       const nlohmann::ordered_json& root);

/// `text` as HTML text or attribute value: & < > " ' escaped, control characters replaced, UTF-8
/// passed on.
std::string Escaped(std::string_view text);

/// A number, or what stands for one: "NaN", "Infinity", "-Infinity". NaN of anything else.
double RealIn(const nlohmann::ordered_json& json);

}  // namespace quantgate

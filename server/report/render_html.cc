#include "server/report/render_html.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <kainjow/mustache.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "server/report/number_text.h"
#include "server/report/report_json.h"
#include "server/report/report_view.h"

namespace quantgate {

extern const char kReportPage[];   // page.html.
extern const char kReportStyle[];  // page.css.

namespace {

using Json = nlohmann::ordered_json;
using kainjow::mustache::data;

/// Makes text printable: bytes that are not UTF-8 become U+FFFD, and control characters other than
/// line feeds and tabs become "?".
std::string Cleaned(std::string text) {
  const auto is_plain = [](char c) { return c >= ' ' && c < 0x7f; };
  if (std::all_of(text.begin(), text.end(), is_plain)) return text;
  text = Json::parse(JsonText(text, -1)).get<std::string>();
  const auto is_control = [](char c) {
    return absl::ascii_iscntrl(static_cast<unsigned char>(c)) && c != '\n' && c != '\t';
  };
  std::replace_if(text.begin(), text.end(), is_control, '?');
  return text;
}

/// The data of the template for a JSON value. Null and an empty text become false: sections do not
/// show them, {{^inverted}} sections show for both.
data DataOf(const Json& json) {
  if (json.is_boolean()) return {json.get<bool>()};
  if (json.is_null() || json == "") return {false};
  if (json.is_string()) return {Cleaned(json.get_ref<const std::string&>())};
  if (json.is_number_float() && !std::isfinite(RealIn(json))) return {ShortReal(RealIn(json))};
  if (!json.is_structured()) return {json.dump()};
  if (json.is_array()) {
    data list(data::type::list);
    // Filled in place, since a list that is given to the library is copied with everything in it.
    auto& items = const_cast<kainjow::mustache::list&>(list.list_value());
    items.reserve(json.size());
    for (const Json& item : json) items.push_back(DataOf(item));
    return list;
  }
  data object;
  for (const auto& [name, member] : json.items()) object[name] = DataOf(member);
  return object;
}

double ParsedReal(const data& value) {
  double real = NAN;
  [[maybe_unused]] const bool is_real = absl::SimpleAtod(value.string_value(), &real);
  assert(is_real);
  return real;
}

int64_t ParsedInteger(const data& value) {
  int64_t integer = 0;
  [[maybe_unused]] const bool is_integer = absl::SimpleAtoi(value.string_value(), &integer);
  assert(is_integer);
  return integer;
}

std::string Joined(const data& list, const char* separator) {
  return absl::StrJoin(list.list_value(), separator, [](std::string* out, const data& item) {
    out->append(item.string_value());
  });
}

/// Puts each option of a command on a line of its own, as a shell takes it. A command with a quoted
/// string is left alone, since the string may hold what looks like an option.
std::string CommandLines(const std::string& command) {
  if (command.find_first_of("'\"") != std::string::npos) return command;
  return absl::StrReplaceAll(command, {{" --", " \\\n    --"}, {" && ", " && \\\n"}});
}

template <std::string (*kText)(double)>
data OfReal(const data& value) {
  return {kText(ParsedReal(value))};
}
template <std::string (*kText)(int64_t)>
data OfCount(const data& value) {
  return {kText(ParsedInteger(value))};
}

/// The formats that may follow a name: {{seconds|time}}.
using Format = data (*)(const data& value);
const std::map<std::string, Format, std::less<>>& Formats() {
  static const std::map<std::string, Format, std::less<>> kFormats = {
      {"short", OfReal<ShortReal>},
      {"exact",
       [](const data& of) {  // JSON writes integers without a point.
         const bool is_integer = of.is_string() && of.string_value().find_first_not_of(
                                                       "-0123456789") == std::string::npos;
         return is_integer ? of : data(ExactReal(ParsedReal(of)));
       }},
      {"decibels", OfReal<Decibels>},
      {"of_bound", OfReal<BoundShare>},
      {"time", OfReal<Seconds>},
      {"count", OfCount<Count>},
      {"bytes", OfCount<Bytes>},
      {"rounded",
       [](const data& of) { return data(ExactReal(std::round(ParsedReal(of) * 1e9) / 1e9)); }},
      {"hundredths",
       [](const data& of) { return data(absl::StrFormat("%.2f", 100 * ParsedReal(of))); }},
      {"ulp",
       [](const data& of) {
         const int64_t ulp = ParsedInteger(of);
         return data(ulp == INT64_MAX ? "NaN" : UlpText(ulp));
       }},
      {"last", [](const data& end) { return data(absl::StrCat(ParsedInteger(end) - 1)); }},
      {"differing",
       [](const data& parity) {
         return data(Percent(ParsedInteger(*parity.get("mismatch_count")),
                             ParsedInteger(*parity.get("element_count"))));
       }},
      {"type",
       [](const data& type) {
         const data& dtype = *type.get("dtype");
         return data(absl::StrCat(dtype.is_string() ? dtype.string_value() : "", "[",
                                  Joined(*type.get("shape"), "x"), "]"));
       }},
      {"at", [](const data& of) { return data(absl::StrCat("(", Joined(of, ", "), ")")); }},
      {"lines", [](const data& command) { return data(CommandLines(command.string_value())); }},
      // Conditions for sections.
      {"any", [](const data& list) { return data(list.is_non_empty_list()); }},
      {"zero", [](const data& of) { return data(ParsedReal(of) == 0); }},
      {"positive", [](const data& of) { return data(ParsedReal(of) > 0); }}};
  return kFormats;
}

using PageParts = std::map<std::string, data, std::less<>>;
const PageParts& Parts() {
  static const PageParts kParts = [] {
    PageParts parts;
    for (const absl::string_view part : absl::StrSplit(kReportPage, "{{!part ")) {
      const std::pair<std::string, std::string> piece =
          absl::StrSplit(part, absl::MaxSplits("}}", 1));
      parts.emplace(piece.first, data(piece.second));
    }
    return parts;
  }();
  return kParts;
}

/// Finds what the page names: parts, members, and members in a format. A name that is not found
/// stays in the page as the template has it.
class PageContext : public kainjow::mustache::context<std::string> {
 public:
  using context::context;

  const data* get(const std::string& name) const override {
    const size_t bar = name.find('|');
    const data* value = context::get(name.substr(0, bar));
    if (value != nullptr && (bar == std::string::npos || value->is_false())) return value;
    const auto format =
        bar == std::string::npos ? Formats().end() : Formats().find(name.substr(bar + 1));
    const bool is_known = value != nullptr && format != Formats().end();
    made_ = is_known ? format->second(*value) : data(absl::StrCat("{{", name, "}}"));
    return &made_;
  }
  const data* get_partial(const std::string& name) const override {
    const auto part = Parts().find(name);
    return part == Parts().end() ? nullptr : &part->second;
  }

 private:
  /// A formatted value, which is read before the next one is made: a section of it holds no
  /// members.
  mutable data made_;
};

std::string Rendered(Json view) {
  view["style"] = std::string(kReportStyle);
  const data root = DataOf(view);
  PageContext context(&root);
  kainjow::mustache::mustache page(Parts().at("page").string_value());
  std::ostringstream out;
  return page.render(context, out).str();
}

}  // namespace

std::string RenderHtml(const ReportDocument& document) { return Rendered(ViewOf(document)); }
std::string RenderHtml(const TraceReport& report) { return Rendered(ViewOf(report)); }

}  // namespace quantgate

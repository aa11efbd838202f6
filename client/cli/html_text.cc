#include "client/cli/html_text.h"

#include "absl/strings/str_cat.h"

namespace quantgate {

std::string Escaped(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        // Control characters have no place in HTML but for line ends and tabs.
        escaped += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? '?' : c;
    }
  }
  return escaped;
}

std::string Span(std::string_view css_class, std::string_view text) {
  return absl::StrCat("<span class=\"", std::string(css_class), "\">", Escaped(text), "</span>");
}

std::string Code(std::string_view text) { return absl::StrCat("<code>", Escaped(text), "</code>"); }

std::string HtmlTable(const std::vector<std::string>& header,
                      const std::vector<std::vector<std::string>>& rows,
                      std::string_view css_class) {
  std::vector<bool> is_right;
  std::string html = absl::StrCat("<div class=\"scroll\"><table class=\"", std::string(css_class),
                                  "\"><thead><tr>");
  for (const std::string& name : header) {
    is_right.push_back(name.rfind('>', 0) == 0);
    absl::StrAppend(&html, is_right.back() ? "<th class=\"r\">" : "<th>",
                    Escaped(is_right.back() ? name.substr(1) : name), "</th>");
  }
  absl::StrAppend(&html, "</tr></thead><tbody>");
  for (const std::vector<std::string>& row : rows) {
    absl::StrAppend(&html, "<tr>");
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&html, i < is_right.size() && is_right[i] ? "<td class=\"r\">" : "<td>",
                      row[i], "</td>");
    }
    absl::StrAppend(&html, "</tr>");
  }
  return absl::StrCat(html, "</tbody></table></div>\n");
}

std::string FactGrid(const std::vector<std::pair<std::string, std::string>>& facts) {
  std::string html = "<dl>";
  for (const auto& [label, value] : facts) {
    absl::StrAppend(&html, "<div><dt>", Escaped(label), "</dt><dd>", value, "</dd></div>");
  }
  return absl::StrCat(html, "</dl>\n");
}

}  // namespace quantgate

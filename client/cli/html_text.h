// Pieces of HTML.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quantgate {

/// `text` as HTML text or attribute value: & < > " ' escaped, control characters replaced, UTF-8
/// passed on.
std::string Escaped(std::string_view text);

/// <span class="...">text</span>, text escaped.
std::string Span(std::string_view css_class, std::string_view text);

/// <code>text</code>, text escaped.
std::string Code(std::string_view text);

/// A table; cells are HTML already. A header that begins with '>' is right-aligned, with its
/// column.
std::string HtmlTable(const std::vector<std::string>& header,
                      const std::vector<std::vector<std::string>>& rows,
                      std::string_view css_class = "");

/// A definition grid of label and value; values are HTML already.
std::string FactGrid(const std::vector<std::pair<std::string, std::string>>& facts);

}  // namespace quantgate

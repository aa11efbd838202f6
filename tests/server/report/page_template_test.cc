// The language of page.html.
#include "server/report/page_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace quantgate {
namespace {

using Json = nlohmann::ordered_json;

std::string Rendered(std::string_view page, const Json& root = {}) {
  const PageFunctions functions = {
      {"twice", [](const auto& a) { return PageValue{2 * RealIn(a[0].json())}; }},
      {"bold", [](const auto&) {
         return PageValue{"<b>", nullptr, true};
       }}};
  return RenderPage(page, functions, root);
}

TEST(PageTemplateTest, TextIsEscapedUnlessItIsMarkup) {
  const Json root{{"name", "<script>'&\"\x01"}};
  EXPECT_EQ(Rendered("<i>{{name}}</i>{{bold(1)}}", root),
            "<i>&lt;script&gt;&#39;&amp;&quot;?</i><b>");
  // A macro is markup, what it is given is not; what is joined is text again.
  EXPECT_EQ(Rendered("{% def f(x) %}<u>{{x}}</u>{% end %}{{f(name)}}", Json{{"name", "<"}}),
            "<u>&lt;</u>");
  EXPECT_EQ(Rendered("{% def f(x) %}{{x}}{% end %}{{f(bold(1))}}{{bold(1) ~ \"<\"}}"),
            "<b>&lt;b&gt;&lt;");
  // What looks like the template's language in a value is text.
  EXPECT_EQ(Rendered("{{name}}", Json{{"name", "{{name}}{% if %}"}}), "{{name}}{% if %}");
}

TEST(PageTemplateTest, ExpressionsHaveTheUsualOrder) {
  const Json root{
      {"a", 2}, {"b", {{"c", {3, 4}}}}, {"nan", "NaN"}, {"inf", "Infinity"}, {"t", true}};
  const std::pair<const char*, const char*> kCases[] = {{"1 + a * 3 - 1", "6"},
                                                        {"(1 + a) * 3", "9"},
                                                        {"b.c[1] / a", "2"},
                                                        {"b.c[0]", "3"},
                                                        {"-a + 1", "-1"},
                                                        {"twice(b.c[0])", "6"},
                                                        {"a == 2 and t", "true"},
                                                        {"not t or a != 2", "false"},
                                                        {"a < 3 ? \"x\" : \"y\"", "x"},
                                                        {"a > 3 ? \"x\" : a ~ \"!\"", "2!"},
                                                        {"nan > 0", "false"},
                                                        {"nan <= 0", "false"},
                                                        {"inf > 1", "true"},
                                                        {"0 - inf < a", "true"},
                                                        {"b.none.deeper", ""},
                                                        {"none == nothing", "true"},
                                                        {"a >= 2", "true"},
                                                        {"order", ""}};
  for (const auto& [expression, text] : kCases) {
    EXPECT_EQ(Rendered(std::string("{{") + expression + "}}", root), text) << expression;
  }
}

TEST(PageTemplateTest, StatementsNestAndLineEndsAreLeftOut) {
  const Json root = Json::parse(R"({"rows": [[1, 2], [], [3]]})");
  EXPECT_EQ(Rendered(R"(
      {# every row #}
      {% for row in rows %}{% let place = index %}
        {% if not row %}none
        {% elif place == 0 %}{% for x in row %}{{place}}{{index}}{{x}};{% end %}
        {% else %}last {{row[0]}}{% end %}
      |{% end %}{{place}})",
                     root),
            "001;012;|none|last 3|");
}

TEST(PageTemplateTest, NumbersAreTheirOwnOrWhatStandsForThem) {
  EXPECT_EQ(RealIn(-2), -2);
  EXPECT_EQ(RealIn("-Infinity"), -INFINITY);
  EXPECT_TRUE(std::isnan(RealIn("NaN")));
  EXPECT_TRUE(std::isnan(RealIn(nullptr)));
}

}  // namespace
}  // namespace quantgate

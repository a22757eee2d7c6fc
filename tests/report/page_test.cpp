// A page holds its data twice, for the script and as tables; whatever the data, it stays data, and nothing is fetched.
#include "report/page.h"

#include <gtest/gtest.h>

#include "io/json.h"
#include "report/small_run.h"
#include "testing/page_data.h"
#include "testing/says.h"

namespace redline::report {
namespace {

using testing::says;

TEST(Page, DataStaysData) {
  const std::string odd = "</script><b a=\"'&@data@@tables@\x01\u2028<!--";
  const std::string html = page(odd, {{"page", "runs"}}, {{odd, {odd, odd}}});
  EXPECT_EQ(testing::page_data(html), io::Json({{"page", "runs"}, {odd, {odd, odd}}}));
  EXPECT_FALSE(has(html, "</script><b"));
  EXPECT_FALSE(has(html, "\u2028<!--"));
  const std::string safe = "&lt;/script&gt;&lt;b a=&quot;&#39;&amp;@data@@tables@ \u2028&lt;!--";
  EXPECT_TRUE(has(html, "<title>" + safe + "</title>"));
  EXPECT_TRUE(has(html, "<tr><td>" + safe + "</td><td>" + safe + "\n" + safe + "</td></tr>")) << "as tables";
}

TEST(Page, BytesThatAreNoTextDoNotCostThePage) {
  const std::string html = page("t", {{"page", "runs"}}, {{"path", "\xff\xfe"}});
  EXPECT_EQ(testing::page_data(html)["path"], "\uFFFD\uFFFD");
}

TEST(Page, FetchesNothing) {
  const std::string html = page("t", {{"page", "runs"}}, {{"a", 1}});
  for (const char* fetching : {" src=", "@import", "url(", "fetch(", "XMLHttpRequest", "import(", "innerHTML", "eval("})
    EXPECT_FALSE(has(html, fetching)) << fetching;
  for (std::size_t at = html.find("http"); at != html.npos; at = html.find("http", at + 1))
    EXPECT_TRUE(html.substr(at, 18) == "http://www.w3.org/" || html.substr(at, 10) == "http-equiv")
        << html.substr(at, 40);
  EXPECT_TRUE(says(html, {"default-src 'none'", "prefers-color-scheme: dark", "@media print", "max-width: 52rem"}));
}

TEST(Page, TablesSayWhereALongListGoes) {
  io::Json numbers = io::Json::array();
  for (int i = 0; i <= 800; ++i) numbers.push_back(i);
  const std::string html =
      page("t", {{"page", "runs"}, {"how", "it is drawn"}},
           {{"long", numbers}, {"few", {1.25, nullptr, 3}}, {"one", {7}}, {"none", io::Json::array()}, {"yes", true}});
  EXPECT_TRUE(has(html, "<tr><td>long</td><td>0, 100, 200, 300, 400, 500, 600, 700, 800</td></tr>"));
  EXPECT_TRUE(has(html, "<tr><td>few</td><td>1.25, –, 3</td></tr>"));
  EXPECT_TRUE(
      has(html, "<tr><td>one</td><td>7</td></tr><tr><td>none</td><td></td></tr><tr><td>yes</td><td>true</td></tr>"));
  EXPECT_FALSE(has(html, "<td>it is drawn</td>")) << "which is no data";
}

}  // namespace
}  // namespace redline::report

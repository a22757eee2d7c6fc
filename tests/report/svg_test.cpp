// Ticks are round and inside; drawings hold what they were given, and stay inside their box.
#include "report/svg.h"

#include <gtest/gtest.h>

#include <cmath>
#include <regex>

#include "report/html.h"

namespace redline::report {
namespace {

using Numbers = std::vector<double>;

TEST(Svg, TicksAreRound) {
  EXPECT_EQ(ticks({"", 0, 1, false, {}}, 5), (Numbers{0, 0.2, 0.4, 0.6000000000000001, 0.8, 1}));
  EXPECT_EQ(ticks({"", 0, 107, false, {}}, 5), (Numbers{0, 50, 100}));
  EXPECT_EQ(ticks({"", -3, 7, false, {}}, 5), (Numbers{-2, 0, 2, 4, 6}));
  EXPECT_EQ(ticks({"", 60, 1024, true, {}}, 8), (Numbers{64, 128, 256, 512, 1024}));
  EXPECT_EQ(ticks({"", 1, 1 << 20, true, {}}, 8), (Numbers{1, 8, 64, 512, 4096, 32768, 262144}));
  EXPECT_EQ(ticks({"", 5, 5, false, {}}, 5), (Numbers{5}));
  EXPECT_FALSE(std::signbit(ticks({"", 0, 1, false, {}}, 5)[0]));  // or it would read -0
}

Chart example() {
  Chart chart;
  chart.title = "a <chart>";
  chart.x = {"length", 32, 1024, true, {}};
  chart.y = {"share", 0, 0.5, false, {}};
  chart.bars = {{"one", 0, {{32, 64, 0.25, "first & last"}}}, {"two", 1, {{32, 64, 0.5, "full"}}}};
  chart.lines = {{"up", 2, {{32, 0, "low"}, {1024, 0.5, "high"}}, false},
                 {"same", 3, {{32, 0, ""}, {1024, 0.5, ""}}, true}};
  chart.marks = {{512, "here"}};
  return chart;
}

TEST(Svg, HoldsWhatItWasGiven) {
  const std::string svg = draw(example());
  for (const char* part :
       {"aria-label=\"a &lt;chart&gt;\"", "<title>first &amp; last</title>", "<title>high</title>", ">here</text>",
        ">one</text>", ">up</text>", ">length</text>", ">share</text>", ">1024</text>", "dashed"})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  // The full bar is twice as high as the half one.
  const std::regex bar(
      "<rect class=\"c([01])\" x=\"[0-9.]+\" y=\"([0-9.]+)\" width=\"[0-9.]+\" height=\"([0-9.]+)\"><title>");
  Numbers heights;
  for (std::sregex_iterator it(svg.begin(), svg.end(), bar), end; it != end; ++it)
    heights.push_back(std::stod((*it)[3]));
  ASSERT_EQ(heights.size(), 2u);
  EXPECT_NEAR(heights[1], 2 * heights[0], 0.2);
}

TEST(Svg, LabelsOfMarksDoNotStandOnEachOther) {
  Chart chart = example();
  chart.marks = {{520, "second"}, {512, "first"}, {64, "far"}, {525, "third"}};
  const std::string svg = draw(chart);
  for (const char* part : {">far</text>", "<title>first</title>", "<title>second</title>", ">third</text>"})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  for (const char* part : {">first</text>", ">second</text>"}) EXPECT_EQ(svg.find(part), std::string::npos) << part;
}

TEST(Svg, StaysInsideItsBox) {
  Chart chart = example();
  chart.lines[0].points.push_back({1e9, 7, "far out"});
  chart.bars[0].bars.push_back({1e-9, 1e9, -3, "wide"});
  const std::string svg = draw(chart);
  const std::regex place(" (x|x1|x2|cx|y|y1|y2|cy)=\"(-?[0-9.]+)\"");
  int places = 0;
  for (std::sregex_iterator it(svg.begin(), svg.end(), place), end; it != end; ++it, ++places) {
    EXPECT_GE(std::stod((*it)[2]), 0) << it->str();
    EXPECT_LE(std::stod((*it)[2]), (*it)[1].str().find('x') != std::string::npos ? chart.width : chart.height)
        << it->str();
  }
  EXPECT_GT(places, 20);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(Svg, NamesOfLinesDoNotCoverEachOther) {
  const std::string svg = draw(example());
  const std::regex name("y=\"([0-9.]+)\" text-anchor=\"start\" class=\"name t");
  Numbers at;
  for (std::sregex_iterator it(svg.begin(), svg.end(), name), end; it != end; ++it) at.push_back(std::stod((*it)[1]));
  ASSERT_EQ(at.size(), 2u);
  EXPECT_GE(std::fabs(at[0] - at[1]), 12);
}

TEST(Svg, SharesAreFilledSoFar) {
  const std::string svg = draw_shares("fill", {{"a", "25%", 0.25, 0, "quarter"}, {"b", "100%", 1, 1, "whole"}});
  const std::regex rect("class=\"(rest|c[01])\" x=\"[0-9.]+\" y=\"[0-9.]+\" width=\"([0-9.]+)\"");
  Numbers widths;
  for (std::sregex_iterator it(svg.begin(), svg.end(), rect), end; it != end; ++it)
    widths.push_back(std::stod((*it)[2]));
  ASSERT_EQ(widths.size(), 4u);  // rest, filled, rest, filled
  EXPECT_NEAR(widths[1], 0.25 * widths[0], 0.1);
  EXPECT_EQ(widths[2], widths[3]);
}

TEST(Html, EscapesWhatOthersWrote) {
  EXPECT_EQ(escaped("<a href=\"x\">&'\n\x01"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;  ");
  const std::string written = table({{"h<"}, {{"c>"}}});
  EXPECT_NE(written.find("<th>h&lt;</th>"), std::string::npos);
  EXPECT_NE(written.find("<td>c&gt;</td>"), std::string::npos);
  EXPECT_NE(page("t<", "<p>b</p>").find("<title>t&lt;</title>"), std::string::npos);
}

}  // namespace
}  // namespace redline::report

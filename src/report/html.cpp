// The style of all pages, and the few elements that they are made of.
#include "report/html.h"

#include <fmt/format.h>

#include <algorithm>

namespace redline::report {
namespace {

// Colours: c0 to c7 for areas, l0 to l7 for lines, t0 to t7 for text; each at least 3:1 against its background, and apart
// from each other in lightness as well as in hue.
constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark;
  --page: #ffffff; --text: #1b1f24; --quiet: #59616b; --line: #d8dce1; --faint: #eceff2; --note: #f3f6fb;
  --c0: #c2571f; --c1: #8f7a12; --c2: #2463c4; --c3: #12876b; --c4: #66758a; --c5: #8a4fb5; --c6: #c0306c; --c7: #0c7b98; }
@media screen and (prefers-color-scheme: dark) { :root {
  --page: #14171b; --text: #e6e9ed; --quiet: #9aa4af; --line: #363d46; --faint: #262c33; --note: #1b222c;
  --c0: #f08a55; --c1: #d6b945; --c2: #74a9ff; --c3: #4cc7a5; --c4: #93a1b3; --c5: #c797ee; --c6: #f78fb8; --c7: #5fc9e6; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 3rem; max-width: 50rem; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.1rem; margin: 2.25rem 0 .5rem; }
p { margin: .4rem 0; }
.quiet { color: var(--quiet); }
.note { background: var(--note); border-left: 4px solid var(--c2); padding: .75rem 1rem; margin: 1.25rem 0; border-radius: 3px; }
.figures { display: flex; flex-wrap: wrap; gap: .5rem 2rem; margin: 1.25rem 0; }
.figures b { display: block; font-size: 1.35rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.figures span { color: var(--quiet); font-size: .85rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .9rem; margin: .75rem 0; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--quiet); font-weight: 600; vertical-align: bottom; white-space: normal; }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: nowrap; }
th:last-child, td:last-child { padding-right: 0; white-space: nowrap; }
code { font: .9em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; background: var(--faint); padding: .1em .3em; border-radius: 3px; }
svg { display: block; width: 100%; min-width: 34rem; height: auto; margin: .75rem 0; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; fill: var(--text); font-variant-numeric: tabular-nums; }
svg .tick { fill: var(--quiet); }
svg .grid { stroke: var(--faint); } svg .axis { stroke: var(--line); }
svg .mark { stroke: var(--text); stroke-dasharray: 4 3; }
svg .rest { fill: var(--faint); }
svg .c0 { fill: var(--c0); } svg .c1 { fill: var(--c1); } svg .c2 { fill: var(--c2); } svg .c3 { fill: var(--c3); } svg .c4 { fill: var(--c4); } svg .c5 { fill: var(--c5); } svg .c6 { fill: var(--c6); } svg .c7 { fill: var(--c7); }
svg rect:hover, svg circle:hover { opacity: .75; }
svg polyline { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .faint { opacity: .28; stroke-width: 1; }
svg .dot { stroke: var(--page); stroke-width: 1.5; }
svg .dashed { stroke-dasharray: 7 7; }
svg .l0 { stroke: var(--c0); } svg .l1 { stroke: var(--c1); } svg .l2 { stroke: var(--c2); } svg .l3 { stroke: var(--c3); } svg .l4 { stroke: var(--c4); } svg .l5 { stroke: var(--c5); } svg .l6 { stroke: var(--c6); } svg .l7 { stroke: var(--c7); }
svg .t0 { fill: var(--c0); } svg .t1 { fill: var(--c1); } svg .t2 { fill: var(--c2); } svg .t3 { fill: var(--c3); } svg .t4 { fill: var(--c4); } svg .t5 { fill: var(--c5); } svg .t6 { fill: var(--c6); } svg .t7 { fill: var(--c7); }
@media print { svg { min-width: 0; } body { padding: 0; max-width: none; font-size: 9.5pt; } td, th { padding: .15rem .5rem; }
  svg, table { break-inside: avoid; } h2 { break-after: avoid; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; } }
)";

std::string cells(const std::vector<std::string>& row, std::string_view tag) {
  std::string out = "<tr>";
  for (const std::string& cell : row) out += fmt::format("<{}>{}</{}>", tag, escaped(cell), tag);
  return out + "</tr>\n";
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? ' ' : c;
    }
  }
  return out;
}

std::string escaped_lines(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    out += escaped(text.substr(0, end));
    if (end < text.size()) out += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::string page(std::string_view title, std::string_view body, std::string_view style, std::string_view script) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'; img-src data:\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<link rel=\"icon\" href=\"data:,\"/>\n"  // or a browser asks the server for one
      "<title>{}</title>\n<style>{}{}</style>\n</head>\n<body>\n{}{}</body>\n</html>\n",
      escaped(title), kStyle, style, body, script.empty() ? "" : fmt::format("<script>{}</script>\n", script));
}

std::string table(const Table& of) {
  std::string out = "<div class=\"wide\"><table>\n<thead>" + cells(of.head, "th") + "</thead>\n<tbody>\n";
  for (const auto& row : of.rows) out += cells(row, "td");
  return out + "</tbody>\n</table></div>\n";
}

}  // namespace redline::report

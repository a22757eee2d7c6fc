// One page that is one file: its style, light and dark as the reader's system asks for, fit for paper, and nothing fetched
// from anywhere.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace redline::report {

// Text made fit for HTML and SVG, attributes too. Control characters, which neither allows, become spaces.
std::string escaped(std::string_view text);
// The same, with its line ends: for <pre>.
std::string escaped_lines(std::string_view text);

// A whole document around `body`, which is HTML; `style` is added to that of all pages, `script` runs at the end. The page
// tells browsers that it fetches nothing.
std::string page(std::string_view title, std::string_view body, std::string_view style = "",
                 std::string_view script = "");

// A table; cells are plain text. The first column is names, the others figures.
struct Table {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
};
std::string table(const Table& of);

}  // namespace redline::report

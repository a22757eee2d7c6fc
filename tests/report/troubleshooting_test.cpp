// Every section that the program points to is in docs/monitoring.md, and every key that the page names exists.
#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <regex>
#include <set>

#include "base/files.h"
#include "config/keys.h"
#include "testing/paths.h"

namespace redline::report {
namespace {

const Path kRoot = testing::source_folder();

// A heading's anchor, as GitHub makes it.
std::string anchor(std::string_view heading) {
  std::string out;
  for (const char c : heading) {
    if (c == ' ' || c == '-')
      out += '-';
    else if (std::isalnum(static_cast<unsigned char>(c)) || c == '_')
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

TEST(Troubleshooting, EverySectionThatIsNamedIsThere) {
  const std::string page = real_files().read(kRoot / "docs/monitoring.md");
  std::set<std::string> sections;
  for (std::size_t at = 0, end; (end = page.find('\n', at)) != page.npos; at = end + 1)
    if (const std::string line = page.substr(at, end - at); line.starts_with("### "))
      sections.insert(anchor(line.substr(4)));
  const std::regex named("docs/monitoring\\.md#([a-z0-9-]+)");
  std::set<std::string> seen;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kRoot / "src")) {
    if (!entry.is_regular_file()) continue;
    const std::string text = real_files().read(entry.path());
    for (std::sregex_iterator it(text.begin(), text.end(), named), end; it != end; ++it) {
      seen.insert((*it)[1]);
      EXPECT_TRUE(sections.contains((*it)[1])) << entry.path() << " points to #" << (*it)[1];
    }
  }
  EXPECT_GE(seen.size(), 9u);
}

TEST(Troubleshooting, KeysThatThePageNamesExist) {
  const std::string page = real_files().read(kRoot / "docs/monitoring.md");
  const std::regex key("\\b(model|data|train|optim|precision|kernels|checkpoint|log)\\.([a-z][a-z0-9_]*)\\b");
  int seen = 0;
  for (std::sregex_iterator it(page.begin(), page.end(), key), end; it != end; ++it, ++seen)
    EXPECT_TRUE(config::find_key(it->str()) || it->str(2) == "md") << it->str();
  EXPECT_GT(seen, 10);
}

}  // namespace
}  // namespace redline::report

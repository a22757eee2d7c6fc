// The data of a page that report/ wrote, as its script finds it.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "io/json.h"

namespace redline::testing {

inline io::Json page_data(const std::string& page) {
  const std::string opening = "<script type=\"application/json\" id=\"data\">", closing = "</script>";
  const std::size_t begin = page.find(opening), end = page.find(closing, begin);
  EXPECT_NE(begin, page.npos);
  return io::parse_json(page.substr(begin + opening.size(), end - begin - opening.size()), "the page's data");
}

}  // namespace redline::testing

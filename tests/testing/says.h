// What a sentence for a person must say: the key, the number and a noun, never the whole sentence, so that words may be
// improved without touching tests.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "base/error.h"

namespace redline::testing {

// EXPECT_TRUE(says(message, {"train.batch_size", "3 rows"})): each part stands somewhere in the text.
inline ::testing::AssertionResult says(std::string_view text, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts)
    if (text.find(part) == text.npos) return ::testing::AssertionFailure() << '"' << part << "\" is not in: " << text;
  return ::testing::AssertionSuccess();
}

inline ::testing::AssertionResult says(std::string_view text, std::string_view part) { return says(text, {part}); }

// The same of a list of texts, of which one must hold all parts.
template <class Texts>
::testing::AssertionResult one_says(const Texts& texts, std::initializer_list<std::string_view> parts) {
  ::testing::AssertionResult none = ::testing::AssertionFailure()
                                    << "none of " << std::size(texts) << " texts says it:";
  for (const auto& text : texts) {
    if (says(text, parts)) return ::testing::AssertionSuccess();
    none << "\n  " << text;
  }
  return none;
}

// The message of the error that a call ends with: error_of([&] { load(path); }). "no error" where it ends well; an
// error of another kind is thrown on.
template <class Error = UserError, class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace redline::testing

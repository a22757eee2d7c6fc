// Valid JSON is taken as it is, in its order; anything else is one sentence with the file and the byte.
#include "io/json.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::io {
namespace {

using redline::testing::says;

std::string error_of(std::string_view text) {
  return testing::error_of([&] { parse_json(text, "a.json"); });
}

TEST(Json, TakesWhatIsValid) {
  for (const char* text :
       {"null", "true", " [ ] ", "{}", "\"\"", "-0", "1e5", "18446744073709551615", "-9223372036854775808",
        "{\"\":{\"\":[]}}", R"({"a":[1,2.5,"\u00e9\ud83d\ude00",{"a":null}],"b":{"a":false}})", "\xef\xbb\xbf[1]"}) {
    const Json expected = Json::parse(text);
    EXPECT_EQ(parse_json(text, "a.json"), expected) << text;
    EXPECT_EQ(parse_json(text, "a.json").dump(), expected.dump()) << text;
  }
}

TEST(Json, KeepsTheOrderOfKeys) {
  EXPECT_EQ(parse_json(R"({"z":1,"a":2,"m":3})", "a.json").dump(), R"({"z":1,"a":2,"m":3})");
}

TEST(Json, NamesFileAndByteOfWhatDoesNotParse) {
  EXPECT_TRUE(error_of("").starts_with("a.json: not valid JSON at byte 1: ")) << error_of("");
  EXPECT_TRUE(error_of("[1, x]").starts_with("a.json: not valid JSON at byte 5: ")) << error_of("[1, x]");
  for (const char* text : {"{", "[1,]", "{\"a\"}", "{\"a\":1,}", "01", "nul", "[1] 2", "\"\xff\"", "\"\n\"", "1e999",
                           "{1:2}", "\"\\ud800\""}) {
    const std::string error = error_of(text);
    EXPECT_TRUE(error.starts_with("a.json: not valid JSON at byte ")) << text << " -> " << error;
    EXPECT_EQ(error.find_first_of("\n\xff"), error.npos) << error;
    EXPECT_EQ(error.find("json.exception"), error.npos) << error;
  }
}

TEST(Json, RefusesDuplicateKeysOfOneObject) {
  EXPECT_EQ(error_of(R"({"a":1,"b":2,"a":3})"), R"(a.json: not valid JSON at byte 16: the key "a" is there twice)");
  EXPECT_TRUE(says(error_of(R"({"o":[{"x":1,"x":1}]})"), {"\"x\" is there twice"}));
  EXPECT_TRUE(says(error_of(R"({"a":1,"\u0061":1})"), {"twice"}));  // the same key in other clothes
  EXPECT_EQ(error_of(R"({"a":{"a":1},"b":{"a":1}})"), "no error");
}

TEST(Json, NestingEndsWhereTheReferenceEndsItAndLargeObjectsAreNoTrouble) {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(parse_json(nested(127), "a.json").is_array());
  for (const std::size_t depth : {128, 200'000})
    EXPECT_EQ(error_of(nested(depth)).find("a.json: not valid JSON at byte 128: more than 127 levels"), 0u);
  std::string large = "{";
  for (int i = 0; i < 200'000; ++i) large += fmt::format("{}\"token {}\":{}", i ? "," : "", i, i);
  EXPECT_EQ(parse_json(large + "}", "a.json").size(), 200'000u);
}

TEST(Json, QuotesMakeForeignTextFitForASentence) {
  EXPECT_EQ(in_quotes("plain"), "\"plain\"");
  EXPECT_EQ(in_quotes("a\nb\x1b[31m"), "\"a\\x0ab\\x1b[31m\"");
  EXPECT_LT(in_quotes(std::string(10'000, 'x')).size(), 200u);
}

TEST(Json, MembersHaveTheWantedKindOrAnErrorNamesTheKey) {
  const Json object = parse_json(R"({"i":-7,"u":18446744073709551615,"d":1.5,"s":"text","b":true,"n":null})", "a.json");
  EXPECT_EQ(integer_at(object, "i", "a.json"), -7);
  EXPECT_EQ(number_at(object, "i", "a.json"), -7.0);
  EXPECT_EQ(number_at(object, "d", "a.json"), 1.5);
  EXPECT_EQ(string_at(object, "s", "a.json"), "text");
  EXPECT_TRUE(boolean_at(object, "b", "a.json"));
  EXPECT_THROW(integer_at(object, "d", "a.json"), UserError);
  EXPECT_THROW(integer_at(object, "u", "a.json"), UserError);
  EXPECT_THROW(integer_at(object, "b", "a.json"), UserError);
  EXPECT_THROW(number_at(object, "s", "a.json"), UserError);
  EXPECT_THROW(string_at(object, "n", "a.json"), UserError);
  EXPECT_THROW(boolean_at(object, "i", "a.json"), UserError);
  EXPECT_THROW(integer_at(parse_json("[1]", "a.json"), "i", "a.json"), UserError);
  EXPECT_TRUE(says(testing::error_of([&] { integer_at(object, "missing", "a.json"); }), {"a.json", "\"missing\""}));
}

TEST(Json, AMissingFileIsAUserError) {
  redline::testing::TempFolder temp;
  EXPECT_THROW(read_json(real_files(), temp / "none.json"), UserError);
  real_files().replace(temp / "some.json", "{\"a\":1}");
  EXPECT_EQ(integer_at(read_json(real_files(), temp / "some.json"), "a", "some.json"), 1);
}

}  // namespace
}  // namespace redline::io

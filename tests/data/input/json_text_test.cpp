// The scanner for one field against what strict JSON is: the same verdict and the same text as a general parser.
#include "data/input/json_text.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "base/random.h"
#include "data/utf8.h"
#include "testing/says.h"

namespace redline::data {
namespace {

using redline::testing::says;

std::string read(std::string_view json, std::string_view field = "text") {
  std::string text = "left over";
  try {
    JsonTextField(field).read(json, text);
  } catch (const JsonProblem& problem) {
    return std::to_string(problem.at) + ": " + problem.reason;
  }
  return "=" + text;
}

TEST(JsonText, Fields) {
  EXPECT_EQ(read(R"({"text":"a"})"), "=a");
  EXPECT_EQ(read(R"( { "id" : -1.5e+3 , "text" : "a\"\\\/\b\f\n\r\t" , "z" : [ ] } )"), "=a\"\\/\b\f\n\r\t");
  EXPECT_EQ(read(R"({"te\u0078t":"\u0041\u00e9\u20AC\ud83d\uDE00"})"), "=A\u00e9\u20ac\U0001F600");
  EXPECT_EQ(read(R"({"a":{"text":"no"},"b":[{"text":"no"}],"text":"yes"})"), "=yes");
  EXPECT_EQ(read(R"({"text":"\u0000"})"), std::string("=\0", 2));
  EXPECT_EQ(read(R"({"meta":{"x":1,"text":"deep"},"text":"no"})", "meta.text"), "=deep");
  EXPECT_EQ(read(R"({"a":{"b":{"c":"deep"}}})", "a.b.c"), "=deep");
  EXPECT_EQ(read("{\"text\":\"" + std::string(100, 'x') + "\xC3\xA9\"}"), "=" + std::string(100, 'x') + "\xC3\xA9");
}

TEST(JsonText, AMissingFieldNamesThoseThatAreThere) {
  EXPECT_TRUE(says(read("{}"), {"0: ", "\"text\"", "no fields"}));
  EXPECT_TRUE(says(read(R"( {"url":"a","content":"b"})"), {"0: ", "\"text\"", "\"url\", \"content\""}));
  EXPECT_TRUE(says(read(R"({"a":{"text":"x"}})", "b.text"), {"\"b.text\"", "\"a\""}));
  EXPECT_TRUE(says(read(R"({"meta":"x"})", "meta.text"), {"\"meta.text\"", "\"meta\""}));
  EXPECT_TRUE(says(read(R"({"id":1,"meta":{"body":"x"}})", "meta.text"), {"\"meta.text\"", "\"meta.body\""}));
  std::string many = "{\"f0\":0";
  for (int i = 1; i < 20; ++i) many += fmt::format(",\"f{}\":0", i);
  EXPECT_TRUE(says(read(many + "}"), {"\"f11\" and 8 more"}));
  EXPECT_EQ(read("{\"\x1b[2J\":0}").find('\x1b'), std::string::npos);
}

// The byte before which a line is wrong, and a word of the reason.
TEST(JsonText, Problems) {
  const std::tuple<std::string, int, const char*> cases[] = {
      {"", 0, "empty"},
      {"1", 0, "object"},
      {"[]", 0, "jq -c '.[]'"},
      {" [", 1, "array"},
      {"{ \t", 0, "jq -c ."},
      {R"({"text":null})", 8, "null"},
      {R"({"text":["a"]})", 8, "an array"},
      {R"({"text":"a","text":"b"})", 12, "\"text\" is there twice"},
      {R"({"text":"a"} x)", 13, "follows"},
      {R"({"text":"a",})", 12, "a name"},
      {R"({"text" "a"})", 8, "a colon"},
      {"{\"text\":\"a\tb\"}", 10, "control character"},
      {R"({"text":"\x"})", 9, "escape"},
      {R"({"text":"\u00g0"})", 13, "hexadecimal"},
      {R"({"text":"\ud800"})", 9, "first half of a surrogate"},
      {R"({"text":"\ud800\u0041"})", 9, "first half of a surrogate"},
      {R"({"text":"\udc00"})", 9, "second half of a surrogate"},
      {R"({"id":"\ud800","text":"a"})", 7, "first half of a surrogate"},
      {R"({"text":"a)", 10, "inside a string"},
      {R"({"text":"a")", 11, "the line ends"},
      {R"({"a":01,"text":"a"})", 6, "begin with 0"},
      {R"({"a":tru,"text":"a"})", 5, "a value"},
      {R"({"a":NaN,"text":"a"})", 5, "a value"},
      {R"({"a":[1 2],"text":"a"})", 8, "a comma or ]"},
      {R"({"a":[1},"text":"a"})", 7, "a comma or ]"},
      {"{\"a\":" + std::string(100'000, '['), 518, "512"},
      {"{\"text\":\"\xC0\x80\"}", 9, "UTF-8"},
  };
  for (const auto& [line, at, word] : cases) {
    const std::string problem = read(line);
    EXPECT_TRUE(problem.starts_with(fmt::format("{}: ", at))) << line << "\n" << problem;
    EXPECT_TRUE(says(problem, {word})) << line;
  }
  EXPECT_TRUE(says(read(R"({"m":{"t":"a"},"m":{"t":"b"}})", "m.t"), {"15: ", "\"m\" is there twice"}));
}

// Mutated lines get the verdict of a general strict parser (nlohmann's), and the same text.
TEST(JsonText, AgreesWithAGeneralParser) {
  const std::string seeds[] = {
      R"({"text":"hello \u00e9\ud83d\ude00 \"x\" \\ end","id":[1,-2.5e3,true,false,null,{"a":{}}]})",
      R"({ "m" : { "text" : [ ] } , "n":0.1E-2, "text" : "a longer text, over eight bytes" })"};
  const std::string alphabet = "{}[]\":,\\u0dD8eE+-. \ttrn\x01\x7fz\xC3\xA9";
  const Random random(5, 2);
  std::uint64_t draw = 0;
  int good = 0;
  for (int round = 0; round < 60'000; ++round) {
    std::string line = seeds[random.below(draw++, 2)];
    for (std::uint64_t n = random.below(draw++, 3); n > 0; --n) {
      const std::size_t at = random.below(draw++, line.size());
      const char c = alphabet[random.below(draw++, alphabet.size())];
      switch (random.below(draw++, 3)) {
        case 0: line[at] = c; break;
        case 1: line.insert(at, 1, c); break;
        default: line.erase(at, 1);
      }
    }
    std::optional<std::string> wanted;
    bool twice = false;
    int depth_text = 0;
    const auto watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
      if (event == nlohmann::json::parse_event_t::key && depth == 1 && value == "text" && ++depth_text > 1)
        twice = true;
      return true;
    };
    const nlohmann::json parsed = nlohmann::json::parse(line, watch, false);
    if (!parsed.is_discarded() && parsed.is_object() && parsed.contains("text") && parsed["text"].is_string() && !twice)
      wanted = parsed["text"].get<std::string>();
    const std::string got = read(line);
    good += wanted.has_value();
    ASSERT_EQ(got[0] == '=', wanted.has_value()) << line << "\n" << got;
    if (wanted) {
      ASSERT_EQ(got.substr(1), *wanted) << line;
    }
  }
  EXPECT_GT(good, 10'000);
}

TEST(Utf8, EveryBoundary) {
  const auto all = [](std::string_view s) { return valid_utf8(s) == s.size(); };
  for (const std::string_view s :
       {"", "a", "\u0080", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff"})
    EXPECT_TRUE(all(s)) << s;
  for (const std::string_view s : {"\x80", "\xC0\x80", "\xC1\xBF", "\xC2", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xE2\x82",
                                   "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xC3("})
    EXPECT_EQ(valid_utf8(s), 0u) << s;
  for (std::size_t n = 0; n < 100; ++n) {
    const std::string before(n, 'a');
    EXPECT_EQ(valid_utf8(before + "\xC3\xA9" + before), 2 * n + 2);
    EXPECT_EQ(valid_utf8(before + "\xC3\xA9\x80" + before), n + 2);
    EXPECT_EQ(valid_utf8(before + "\xE2\x82"), n);
  }
}

}  // namespace
}  // namespace redline::data

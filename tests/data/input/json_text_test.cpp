// The scanner for one field against what strict JSON is: the same verdict and the same text as a general parser.
#include "data/input/json_text.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "base/random.h"
#include "data/utf8.h"

namespace redline::data {
namespace {

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
  EXPECT_EQ(read("{}"), "0: there is no field \"text\"; the object has no fields");
  EXPECT_EQ(read(R"( {"url":"a","content":"b"})"),
            "0: there is no field \"text\"; the fields are \"url\", \"content\"");
  EXPECT_EQ(read(R"({"a":{"text":"x"}})", "b.text"), "0: there is no field \"b.text\"; the field is \"a\"");
  EXPECT_EQ(read(R"({"meta":"x"})", "meta.text"), "0: there is no field \"meta.text\"; the field is \"meta\"");
  EXPECT_EQ(read(R"({"id":1,"meta":{"body":"x"}})", "meta.text"),
            "0: there is no field \"meta.text\"; the field is \"meta.body\"");
  std::string many = "{\"f0\":0";
  for (int i = 1; i < 20; ++i) many += fmt::format(",\"f{}\":0", i);
  EXPECT_NE(read(many + "}").find("\"f11\" and 8 more"), std::string::npos) << read(many + "}");
  EXPECT_EQ(read("{\"\x1b[2J\":0}").find('\x1b'), std::string::npos);
}

TEST(JsonText, Problems) {
  EXPECT_EQ(read(""), "0: an object was expected, the line is empty");
  EXPECT_EQ(read("1"), "0: the line must be an object, { ... }");
  EXPECT_EQ(read("[]").find("0: the line is an array, and must be an object, { ... }; jq -c '.[]'"), 0u);
  EXPECT_EQ(read(" [").find("1: the line is an array"), 0u);
  EXPECT_EQ(read("{ \t").find("0: an object begins and goes on in other lines; jq -c ."), 0u);
  EXPECT_EQ(read(R"({"text":null})"), "8: the field \"text\" is null, not a string");
  EXPECT_EQ(read(R"({"text":["a"]})"), "8: the field \"text\" is an array, not a string");
  EXPECT_EQ(read(R"({"text":"a","text":"b"})"), "12: the field \"text\" is there twice");
  EXPECT_EQ(read(R"({"m":{"t":"a"},"m":{"t":"b"}})", "m.t"), "15: the field \"m\" is there twice");
  EXPECT_EQ(read(R"({"text":"a"} x)"), "13: something follows the end of the object");
  EXPECT_EQ(read(R"({"text":"a",})"), "12: a name in quotes was expected");
  EXPECT_EQ(read(R"({"text" "a"})"), "8: a colon was expected after the name");
  EXPECT_EQ(read("{\"text\":\"a\tb\"}"), "10: a control character stands in a string; it must be escaped");
  EXPECT_EQ(read(R"({"text":"\x"})"), "9: an unknown escape");
  EXPECT_EQ(read(R"({"text":"\u00g0"})"), "13: four hexadecimal digits were expected");
  EXPECT_EQ(read(R"({"text":"\ud800"})"), "9: the first half of a surrogate pair without the second");
  EXPECT_EQ(read(R"({"text":"\ud800\u0041"})"), "9: the first half of a surrogate pair without the second");
  EXPECT_EQ(read(R"({"text":"\udc00"})"), "9: the second half of a surrogate pair without the first");
  EXPECT_EQ(read(R"({"id":"\ud800","text":"a"})"), "7: the first half of a surrogate pair without the second");
  EXPECT_EQ(read(R"({"text":"a)"), "10: the line ends inside a string");
  EXPECT_EQ(read(R"({"text":"a")"), "11: the line ends in the middle of a value");
  EXPECT_EQ(read(R"({"a":01,"text":"a"})"), "6: a number must not begin with 0");
  EXPECT_EQ(read(R"({"a":tru,"text":"a"})"), "5: a value was expected");
  EXPECT_EQ(read(R"({"a":NaN,"text":"a"})"), "5: a value was expected");
  EXPECT_EQ(read(R"({"a":[1 2],"text":"a"})"), "8: a comma or ] was expected");
  EXPECT_EQ(read(R"({"a":[1},"text":"a"})"), "7: a comma or ] was expected");
  EXPECT_EQ(read("{\"a\":" + std::string(100'000, '[')), "518: nested deeper than 512");
  EXPECT_EQ(read("{\"text\":\"\xC0\x80\"}"), "9: not valid UTF-8");
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

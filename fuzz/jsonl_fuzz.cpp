// Lines of JSON: never a crash, and whatever our scanner takes, a general parser takes with the same text. Also as a
// file, through the input that finds lines.
#include "data/input/json_text.h"
#include "data/input/text_input.h"
#include "data/utf8.h"
#include "fuzz.h"
#include "io/json.h"

namespace redline::fuzz {

std::vector<std::string> seeds() {
  return {"\1{\"text\":\"hello\"}",
          "\2{\"meta\":{\"text\":\"a\\u00e9\\ud83d\\ude00\"},\"n\":[1,-2.5e3,true,false,null,{}]}",
          "\3{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"\"}]}",
          "\3{\"prompt\":\"a\",\"completion\":\"b\"}",
          "\3{\"id\":7,\"text\":\"two\\n\"}\r\n\n{\"text\":\"\"}\n",
          "\3\xEF\xBB\xBF{\"text\":\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"}"};
}

namespace {

void one_line(std::string_view line, const char* field) {
  std::string text;
  try {
    data::JsonTextField(field).read(line, text);
  } catch (const data::JsonProblem& problem) {
    require(problem.at <= line.size() && !problem.reason.empty(), "a problem outside the line");
    return;
  }
  require(data::valid_utf8(text) == text.size(), "the text is not UTF-8");
  nlohmann::json parsed;
  try {
    parsed = nlohmann::json::parse(line);
  } catch (const nlohmann::json::out_of_range&) {
    return;  // a number that no double holds, which is JSON all the same and nothing that we read
  } catch (const nlohmann::json::parse_error&) {
    fail("a general parser does not take this line");
  }
  const nlohmann::json& value = field[0] == 'm' ? parsed["meta"]["text"] : parsed["text"];
  require(value.is_string() && value.get<std::string>() == text, "a general parser reads another text");
}

void as_file(std::string_view bytes) {
  if (bytes.empty()) return;  // an empty file is refused by name
  write_scratch("input.jsonl", bytes);
  data::InputFormat format;
  format.longest_document = 4096;
  data::TextInput input({scratch("input.jsonl")}, format, "INPUT");
  data::TextBlock block;
  std::string text;
  data::Conversation conversation;
  std::int64_t end = 0;
  expect_user_errors([&] {
    while (input.next(block, 64, 5)) {
      require(block.offset >= end && block.documents() >= 1 && block.documents() <= 5, "blocks out of order");
      end = block.offset + static_cast<std::int64_t>(block.bytes.size());
      require(end <= static_cast<std::int64_t>(bytes.size()), "a block beyond the file");
      for (std::int64_t i = 0; i < block.documents(); ++i) {
        expect_user_errors([&] { input.parse(block, i, text); });
        expect_user_errors([&] { input.parse(block, i, conversation); });
      }
    }
  });
}

}  // namespace
}  // namespace redline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view line = redline::fuzz::text_of(data + 1, size - 1);
  if (data[0] % 4 == 3) {
    redline::fuzz::as_file(line);
  } else {
    redline::fuzz::one_line(line, data[0] % 4 == 2 ? "meta.text" : "text");
  }
  return 0;
}

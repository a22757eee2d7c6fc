// Reads one string out of a line of .jsonl. The JSON is checked strictly and whole, but only that string is built: a
// general parser makes a tree of every line and is several times slower.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace redline::data {

// A problem of a line, and its place: the number of bytes before it.
struct JsonProblem {
  std::size_t at = 0;
  std::string reason;
  bool no_field = false;  // it is good JSON without such a field
};

// Throws JsonProblem where a line is not one JSON object as JsonTextField::read() asks for.
void check_json_object(std::string_view json);

class JsonTextField {
 public:
  explicit JsonTextField(std::string_view path);  // "text", or "meta.text": a member of a member

  // Replaces `text` with the field of the one object that `json` holds, whitespace around it allowed. Throws
  // JsonProblem: not JSON (not UTF-8, a lone surrogate, deeper than 512), no such field, twice such a field, no string.
  void read(std::string_view json, std::string& text) const;

 private:
  std::vector<std::string> names_;  // from the outside in
};

}  // namespace redline::data

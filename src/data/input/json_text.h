// Lines of .jsonl: one string out of a line, or a conversation. The JSON is checked strictly and whole, but only what
// is asked for is built: a general parser makes a tree of every line and is several times slower.
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

// A line of .jsonl where conversations are read: messages, a prompt with its completion, or plain text. The chat
// template turns it into tokens (data/tokenizer/chat.h).
enum class Role { system, user, assistant };
std::string_view name_of(Role role);

struct Message {
  Role role = Role::user;
  std::string content;
  std::string reasoning = {};  // "reasoning_content": thoughts before the answer, where the template writes them
};

struct Conversation {
  enum class Kind { text, pair, messages };
  Kind kind = Kind::text;
  std::string text;        // all of it, or the prompt
  std::string completion;  // of a pair
  std::vector<Message> messages;

  bool empty() const { return kind == Kind::text ? text.empty() : kind == Kind::pair && completion.empty(); }
};

// Replaces `conversation` with the contents of the object in `json`: its "messages", else its "prompt" and
// "completion", else its "conversations" (the form of ShareGPT: "from" and "value"), else its "instruction", "input"
// and "output" (the form of Alpaca), else the text in `field`. Throws JsonProblem, as JsonTextField::read() does, also
// for a message without a role or a text, a role that is none of the three, and messages without an answer.
void read_conversation(std::string_view json, const JsonTextField& field, Conversation& conversation);

}  // namespace redline::data

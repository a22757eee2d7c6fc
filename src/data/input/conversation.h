// A line of .jsonl where conversations are read: messages, a prompt with its completion, or plain text. The chat
// template turns it into tokens (data/tokenizer/chat.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/input/json_text.h"

namespace redline::data {

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
// "completion", else the text in `field`. Throws JsonProblem, as JsonTextField::read() does, also for a message without
// a role or a text, a role that is none of the three, and messages without an answer.
void read_conversation(std::string_view json, const JsonTextField& field, Conversation& conversation);

}  // namespace redline::data

// The text around the messages of a conversation. Templates of tokenizers are programs (Jinja); redline runs none, and
// recognises the common ones by their marks.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/input/conversation.h"
#include "data/tokenizer/tokenizer_files.h"

namespace redline::data {

// A message is written as turn + role + header_end + content + turn_end + after.
struct ChatTemplate {
  std::string name;                 // for people: "ChatML", "Qwen3", "Llama-3"
  std::vector<std::string> tokens;  // of these each must be one token
  std::string begin;                // before the first message
  std::string turn, header_end, turn_end, after;
  bool trims = false;   // white space around contents is dropped
  bool thinks = false;  // Qwen3: the last answer has its thoughts before it, <think> ... </think>
  std::optional<std::string> default_system = {};  // written where the first message is no system prompt

  bool operator==(const ChatTemplate&) const = default;
};

ChatTemplate chatml_template();
ChatTemplate llama3_template();

struct FoundTemplate {
  std::optional<ChatTemplate> form;
  std::string why_not;  // where there is none: "the tokenizer has no chat_template"
};
// The template among the files of a tokenizer: chat_template.jinja, or "chat_template" of tokenizer_config.json.
FoundTemplate find_chat_template(const TokenizerFiles& files);

// Where a tokenizer's files have no template, adds one of the same form to tokenizer_config.json.
void keep_chat_template(TokenizerFiles& files, const ChatTemplate& form);

// Messages as the template writes their contents: white space, thoughts and the system prompt that it puts first.
std::vector<Message> as_written(const ChatTemplate& form, const std::vector<Message>& messages);

}  // namespace redline::data

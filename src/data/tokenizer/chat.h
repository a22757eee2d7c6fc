// Conversations as tokens. The text around messages is a template: templates of tokenizers are programs (Jinja);
// redline runs none, and recognises the common ones by their marks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/input/json_text.h"
#include "data/tokenizer/tokenizer.h"

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

// There are messages and no template. It is no fault of a document, so no document is skipped for it.
struct NoTemplate : UserError {
  using UserError::UserError;
};

// How a tokenizer writes conversations. Immutable, and shared by threads.
class Chat {
 public:
  // `key` (data.chat, --chat) leads the UserErrors.
  Chat(std::optional<ChatTemplate> form, std::string why_not, const Tokenizer& tokenizer, std::string key);

  const ChatTemplate& form() const;  // NoTemplate where there is none
  std::string name() const { return form_ ? form_->name : "completions"; }
  std::optional<std::int32_t> end_token() const { return end_; }  // closes an answer
  std::uint64_t fingerprint() const;                              // of all that decides tokens but the tokenizer
  // How messages begin, as the template writes them; nothing where there is none.
  std::optional<std::vector<std::int32_t>> beginning() const { return beginning_; }

 private:
  std::optional<ChatTemplate> form_;
  std::string why_not_, key_;
  std::optional<std::int32_t> end_;
  std::optional<std::vector<std::int32_t>> beginning_;
};

// `how`: "none" (null is returned), "auto" (the template among the tokenizer's files), "chatml" or "llama3". `name` is
// that of the tokenizer, as open_tokenizer() takes it. A template whose tokens the tokenizer does not have is a
// UserError.
std::shared_ptr<const Chat> open_chat(const std::string& how, const std::string& name, const Tokenizer& tokenizer,
                                      const std::string& key);

// Encodes for one thread.
class ChatEncoder {
 public:
  // All outlive it.
  ChatEncoder(const Chat& chat, const DocumentMarks& marks, Encoder& encoder)
      : chat_(chat), marks_(marks), encoder_(encoder) {}

  // Adds the tokens of messages, as transformers' apply_chat_template does; or those of a pair: prompt and completion
  // as one text, and the end of an answer. Returns the bytes of text.
  std::int64_t append(const Conversation& conversation, std::vector<std::int32_t>& tokens);

 private:
  void append_messages(const std::vector<Message>& messages, std::vector<std::int32_t>& tokens);
  void append_pair(const Conversation& pair, std::vector<std::int32_t>& tokens);
  std::size_t append_after(const std::string& before, std::vector<std::int32_t>& tokens);

  const Chat& chat_;
  const DocumentMarks& marks_;
  Encoder& encoder_;
  std::int64_t bytes_ = 0;
  std::string text_;
  std::vector<std::int32_t> before_ids_;
};

}  // namespace redline::data

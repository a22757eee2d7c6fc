// Conversations to tokens. Only answers are learned: the assistant's messages with their end tokens, or a completion.
// All other tokens are context (data/batch.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/input/conversation.h"
#include "data/tokenizer/chat_template.h"
#include "data/tokenizer/tokenizer.h"

namespace redline::data {

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

 private:
  std::optional<ChatTemplate> form_;
  std::string why_not_, key_;
  std::optional<std::int32_t> end_;
};

// `how`: "none" (null is returned), "auto" (the template among the tokenizer's files), "chatml" or "llama3". `name` is
// that of the tokenizer, as open_tokenizer() takes it. A template whose tokens the tokenizer does not have is a
// UserError.
std::shared_ptr<const Chat> open_chat(const std::string& how, const std::string& name, const Tokenizer& tokenizer,
                                      const std::string& key);

// Encodes for one thread.
class ChatEncoder {
 public:
  // Both outlive it.
  ChatEncoder(const Chat& chat, Encoder& encoder) : chat_(chat), encoder_(encoder) {}

  // Adds the tokens of messages, as transformers' apply_chat_template does; or those of a pair: prompt and completion
  // as one text, and the end of an answer. Returns the bytes of text.
  std::int64_t append(const Conversation& conversation, std::vector<std::int32_t>& tokens);

 private:
  void append_messages(const std::vector<Message>& messages, std::vector<std::int32_t>& tokens);
  void append_pair(const Conversation& pair, std::vector<std::int32_t>& tokens);
  std::size_t append_behind(const std::string& before, std::vector<std::int32_t>& tokens);

  const Chat& chat_;
  Encoder& encoder_;
  std::int64_t bytes_ = 0;
  std::string text_;
  std::vector<std::int32_t> before_ids_;
};

}  // namespace redline::data

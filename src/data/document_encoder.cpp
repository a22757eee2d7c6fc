// Plain text or a conversation, whichever the document is.
#include "data/document_encoder.h"

namespace redline::data {

DocumentEncoder::DocumentEncoder(const Tokenizer& tokenizer, std::optional<std::int32_t> end_token, const Chat* chat)
    : encoder_(tokenizer.encoder()), end_(end_token) {
  if (chat) chat_.emplace(*chat, *encoder_);
}

std::int64_t DocumentEncoder::append(const TextInput& input, const TextBlock& block, std::int64_t document,
                                     std::vector<std::int32_t>& tokens) {
  if (!chat_) {
    input.parse(block, document, conversation_.text);
  } else {
    input.parse(block, document, conversation_);
    if (conversation_.kind != Conversation::Kind::text) return chat_->append(conversation_, tokens);
  }
  append_document(*encoder_, conversation_.text, end_, tokens);
  return static_cast<std::int64_t>(conversation_.text.size());
}

}  // namespace redline::data

// Turns a document of the input into tokens, for streams, for preparing and for counting lengths.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/input/text_input.h"
#include "data/tokenizer/chat.h"
#include "data/tokenizer/tokenizer.h"

namespace redline::data {

// Encodes for one thread. Tokenizer and chat outlive it.
class DocumentEncoder {
 public:
  // `end_token` closes plain documents. `chat`: how conversations are written; null: every document is plain.
  DocumentEncoder(const Tokenizer& tokenizer, std::optional<std::int32_t> end_token, const Chat* chat);

  // Adds the document's tokens, nothing where it has no text, and returns its bytes of text. Throws what
  // TextInput::parse() does, and NoTemplate; then nothing was added.
  std::int64_t append(const TextInput& input, const TextBlock& block, std::int64_t document,
                      std::vector<std::int32_t>& tokens);

 private:
  std::unique_ptr<Encoder> encoder_;
  std::optional<std::int32_t> end_;
  std::optional<ChatEncoder> chat_;
  Conversation conversation_;
};

}  // namespace redline::data

// Documents read from front to back and tokenized on the way (.jsonl, text, both also .gz and .zst; Parquet): training
// with nothing prepared on the disk.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "data/input/text_input.h"
#include "data/tokenizer/chat.h"
#include "data/tokenizer/tokenizer.h"

namespace redline::data {

// Text that is read and handed on at a time.
inline constexpr std::int64_t kTextBlockBytes = 1 << 18, kTextBlockDocuments = 1024;

// The documents that training never sees: the last of every 64. Where none of these has text, because there are fewer,
// the last that has; and where there is one, the end of its tokens.
struct HeldOutDocuments {
  std::optional<std::int64_t> only;  // the number of the one document that is held out, or parted
  bool parted = false;
};

struct StreamSettings {
  std::vector<std::string> paths;
  std::string key;  // names the paths in errors
  InputFormat format = {};
  std::shared_ptr<const Tokenizer> tokenizer;
  Part part = Part::all;
  HeldOutDocuments held_out = {};  // open_stream() finds them
  std::uint64_t seed = 0;
  bool skip_bad = false;  // malformed documents, and the rest of a broken archive, are skipped with a warning
  std::shared_ptr<const Chat> chat = nullptr;  // lines of JSON may be conversations; null: all documents are plain
  std::string bos = "auto";                    // data.bos
};

// A document's id tells its file and the offset of its first byte there, or its row.
std::unique_ptr<Corpus> open_stream(StreamSettings settings);

// Whether any of these files can only be read as a stream: .jsonl, Parquet, or compressed.
bool needs_stream(const std::vector<std::string>& paths, const std::string& key);

// How the documents begin that an encoder with these marks writes, where all of them begin alike. A template may begin
// messages with a token that plain text does not get: then nothing is known.
std::optional<std::vector<std::int32_t>> beginning_of(const DocumentMarks& marks, const Chat* chat);

// Turns a document of the input into tokens, for streams, for preparing and for counting lengths. It works for one
// thread; tokenizer and chat outlive it.
class DocumentEncoder {
 public:
  // `chat`: how conversations are written; null: every document is plain.
  DocumentEncoder(const Tokenizer& tokenizer, DocumentMarks marks, const Chat* chat);

  // Takes tokens that are final away from the end of the vector.
  using Drain = std::function<void(std::vector<std::int32_t>& tokens)>;

  // Adds the document's tokens, nothing where it has no text, and returns its bytes of text. Throws what
  // TextInput::parse() does, and NoTemplate; then nothing was added. A block of one long document is emptied once that
  // is parsed. `drain` is called after each part of a long text whose tokens do not depend on what follows, so that
  // they are not all held.
  std::int64_t append(const TextInput& input, TextBlock& block, std::int64_t document,
                      std::vector<std::int32_t>& tokens, const Drain& drain = {});

 private:
  void append_text(std::vector<std::int32_t>& tokens, const Drain& drain);

  bool bytewise_;
  std::unique_ptr<Encoder> encoder_;
  DocumentMarks marks_;
  std::optional<ChatEncoder> chat_;
  Conversation conversation_;
};

}  // namespace redline::data

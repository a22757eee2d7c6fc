// Text to token ids and back: the interface of all kinds of tokenizers, the kinds, and the files of a tokenizer beside
// a model. open_tokenizer() alone decides which file or name means which kind.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "io/json_fwd.h"

namespace redline::data {

// Encodes for one thread: it may hold caches and scratch memory.
class Encoder {
 public:
  virtual ~Encoder() = default;
  virtual void append(std::string_view text, std::vector<std::int32_t>& ids) = 0;  // adds to `ids`
};

// Immutable, and shared by threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string name() const = 0;                       // "bytes", "gpt2.tokenizer.json"
  virtual std::int64_t vocabulary() const = 0;                // ids are below it
  virtual std::optional<std::int32_t> end_token() const = 0;  // closes a document
  // The tokens that the tokenizer's own library puts before a text ("<|begin_of_text|>"). Encoding puts none.
  virtual std::vector<std::int32_t> beginning() const { return {}; }
  virtual std::optional<std::int32_t> bos_token() const { return {}; }  // begins a text, where one is wanted
  virtual std::uint64_t fingerprint() const = 0;         // of all that decides ids: another tokenizer, another number
  virtual std::unique_ptr<Encoder> encoder() const = 0;  // lives no longer than the tokenizer
  virtual bool bytewise() const { return false; }        // every byte by itself: a text may be cut anywhere
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  // A token as the tokenizer's own files write it.
  virtual std::string written(std::int32_t id) const { return decode({&id, 1}); }
  // Bytes of text that an id stands for: 0 for the end of a document; kUnknownBytes for an id that may stand for any
  // text.
  static constexpr std::int32_t kUnknownBytes = -1;
  virtual std::int32_t text_bytes(std::int32_t id) const = 0;

  std::vector<std::int32_t> encode(std::string_view text) const;  // with an encoder of its own: for a text now and then
};

// The tokens around a document, beside those of its text.
struct DocumentMarks {
  std::vector<std::int32_t> begin;               // before plain text, and before a prompt with its completion
  std::vector<std::int32_t> begin_conversation;  // before messages, where their template does not write it itself
  std::optional<std::int32_t> end;               // closes plain text
};

// `bos` is none, always, or auto: what the tokenizer's own library puts before a text, and nothing before messages,
// whose template says how they begin. `key` (data.bos, --bos) leads the UserError of "always" where the tokenizer has
// no such token.
DocumentMarks document_marks(const Tokenizer& tokenizer, std::string_view bos, std::string_view key);

// Puts `begin` before the ids from place `from` on, unless they begin so already: a text may name the token itself.
// Returns how many were put there.
std::size_t begin_with(std::span<const std::int32_t> begin, std::size_t from, std::vector<std::int32_t>& ids);

// Adds the ids of one document between its marks. Text without ids is no document: nothing is added, and the result is
// false.
bool append_document(Encoder& encoder, std::string_view text, const DocumentMarks& marks,
                     std::vector<std::int32_t>& ids);

constexpr std::int32_t kEndOfDocument = 256;  // <end>, the first special token of every vocabulary of bytes

// The vocabulary of the built-in kinds: ids 0 to 255 are bytes, and special tokens follow. In text for people they are
// <name>.
class ByteVocabulary {
 public:
  explicit constexpr ByteVocabulary(std::span<const std::string_view> special) : names_(special) {}

  std::int64_t size() const { return 256 + static_cast<std::int64_t>(names_.size()); }

  // An id outside the vocabulary (a larger model can sample one) is written as its number: <5000>.
  std::string decode(std::span<const std::int32_t> tokens) const;
  // <name> becomes a special token when there is one of that name, and is plain bytes otherwise.
  std::vector<std::int32_t> encode(std::string_view text) const;

 private:
  std::span<const std::string_view> names_;
};

ByteVocabulary text_vocabulary();  // <end> alone
ByteVocabulary ping_vocabulary();  // of the generated corpus

// `name`: "bytes", "ping", a tokenizer.json, a folder that holds one, or a sentencepiece .model. `key` (--tokenizer,
// data.tokenizer) leads the UserErrors.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name, std::string_view key);

// The file that such a name means; empty for a built-in one.
Path tokenizer_file(const std::string& name);

// Whether a folder holds a tokenizer: a tokenizer.json or a tokenizer.model.
bool holds_tokenizer(FileSystem& files, const Path& folder);

// Whether every id of `some` stands for the same text in `all`, so that a model of `all` understands them.
bool covers(const Tokenizer& all, const Tokenizer& some);

// Ids index the embedding: a tokenizer with more of them than the model's vocabulary is a UserError led by `where`.
void require_fits(const Tokenizer& tokenizer, std::int64_t model_vocab, std::string_view where);

// What a tokenizer_config.json says about the tokenizer beside it.
struct TokenizerNotes {
  std::string end = {}, bos = {};     // contents of the special tokens; empty: those that are known by name
  std::optional<bool> adds_bos = {};  // before a text; a tokenizer.json says it itself, in its post-processor
};

// `name` is the tokenizer's own and leads its UserErrors.
std::shared_ptr<const Tokenizer> bpe_tokenizer(std::string_view json, const std::string& name,
                                               const TokenizerNotes& notes = {});

std::shared_ptr<const Tokenizer> sentencepiece_tokenizer(std::string_view model, const std::string& name,
                                                         const TokenizerNotes& notes = {});

// Null for a name that is not built in.
std::shared_ptr<const Tokenizer> built_in_tokenizer(std::string_view name);

// The tokenizer.json that gives other programs the same ids for valid UTF-8. redline recognises such a file by its
// bytes and takes the built-in tokenizer again, so these bytes must never change.
std::string built_in_tokenizer_json(std::string_view name);
std::shared_ptr<const Tokenizer> built_in_from_json(std::string_view json);  // null: it is none

inline constexpr const char *kTokenizerJson = "tokenizer.json", *kTokenizerModel = "tokenizer.model";
inline constexpr const char *kTokenizerConfig = "tokenizer_config.json", *kChatTemplate = "chat_template.jinja";

// A special token that a tokenizer_config.json names: a string, or an object with its content. Empty: it names none.
std::string special_token(const io::Json& config, const char* key, const std::string& file);

using TokenizerFiles = std::map<std::string, std::string>;  // name -> contents

// The files of a tokenizer, as open_tokenizer() takes its name, under the names that transformers expects: all of them
// from a folder, a single file alone, and a built-in tokenizer as an equivalent tokenizer.json. They are handed on with
// models: io::read_side_file() says what is refused.
TokenizerFiles tokenizer_files(FileSystem& files, const std::string& name);

// How a model was given the tokenizer's tokens.
struct TokenizerUse {
  std::optional<std::int32_t> end;  // closes a document
  std::int64_t pad = -1;            // the model's token for padding; -1: none, so that `end` pads
  std::int64_t max_length = 0;      // the model's positions
  std::optional<std::vector<std::int32_t>> beginning = {};  // of its documents; nothing: it is not known
};
// Writes it into tokenizer_config.json, which is made where it is missing; other settings there stay. `tokenizer` is
// null where redline cannot read the files: then no token is named.
void describe_use(TokenizerFiles& files, const Tokenizer* tokenizer, const TokenizerUse& use);
// The part of it that says how documents begin. A tokenizer.json that says otherwise gets another post-processor, since
// its readers ask nothing else.
void describe_beginning(TokenizerFiles& files, const Tokenizer& tokenizer, std::span<const std::int32_t> beginning);

}  // namespace redline::data

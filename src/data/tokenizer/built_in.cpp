// Bytes as tokens. "bytes" takes every byte for itself, so that any text comes back; "ping" also reads <name> as a
// special token.
#include "data/tokenizer/built_in.h"

#include "base/error.h"
#include "base/hash.h"
#include "data/byte_vocabulary.h"
#include "data/tokenizer/train_bpe.h"

namespace redline::data {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer(std::string_view name, ByteVocabulary vocabulary, bool reads_special)
      : name_(name), vocabulary_(vocabulary), reads_special_(reads_special) {}

  std::string name() const override { return name_; }
  std::int64_t vocabulary() const override { return vocabulary_.size(); }
  std::optional<std::int32_t> end_token() const override { return kEndOfDocument; }
  std::uint64_t fingerprint() const override { return hash64(name_); }
  std::string decode(std::span<const std::int32_t> ids) const override { return vocabulary_.decode(ids); }
  std::int32_t text_bytes(std::int32_t id) const override { return id < 256 ? 1 : 0; }
  std::unique_ptr<Encoder> encoder() const override { return std::make_unique<ByteEncoder>(*this); }

 private:
  class ByteEncoder final : public Encoder {
   public:
    explicit ByteEncoder(const ByteTokenizer& tokenizer) : tokenizer_(tokenizer) {}
    void append(std::string_view text, std::vector<std::int32_t>& ids) override {
      if (tokenizer_.reads_special_) {
        const std::vector<std::int32_t> more = tokenizer_.vocabulary_.encode(text);
        ids.insert(ids.end(), more.begin(), more.end());
      } else {
        for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
      }
    }

   private:
    const ByteTokenizer& tokenizer_;
  };

  std::string name_;
  ByteVocabulary vocabulary_;
  bool reads_special_;
};

}  // namespace

std::shared_ptr<const Tokenizer> built_in_tokenizer(std::string_view name) {
  if (name == "bytes") return std::make_shared<ByteTokenizer>(name, text_vocabulary(), false);
  if (name == "ping") return std::make_shared<ByteTokenizer>(name, ping_vocabulary(), true);
  return nullptr;
}

// Each byte is a token, nothing is merged, and the special tokens stay.
std::string built_in_tokenizer_json(std::string_view name) {
  const auto tokenizer = built_in_tokenizer(name);
  REDLINE_CHECK(tokenizer, "{} is no built-in tokenizer", name);
  TrainedBpe bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.tokens.emplace_back(1, static_cast<char>(byte));
  std::vector<std::string> special;
  for (std::int32_t id = 256; id < tokenizer->vocabulary(); ++id) special.push_back(tokenizer->decode({&id, 1}));
  return tokenizer_json_of(bytes, train_families()[0], special);
}

std::shared_ptr<const Tokenizer> built_in_from_json(std::string_view json) {
  for (const char* name : {"bytes", "ping"})
    if (json == built_in_tokenizer_json(name)) return built_in_tokenizer(name);
  return nullptr;
}

}  // namespace redline::data

// Bytes as tokens. "bytes" takes every byte for itself, so that any text comes back; "ping" also reads <role>.
#include "data/tokenizer/bytes.h"

#include "base/hash.h"
#include "data/byte_roles.h"

namespace redline::data {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer(std::string_view name, ByteRoles roles, bool reads_roles)
      : name_(name), roles_(roles), reads_roles_(reads_roles) {}

  std::string name() const override { return name_; }
  std::int64_t vocabulary() const override { return roles_.size(); }
  std::optional<std::int32_t> end_token() const override { return kEndOfDocument; }
  std::uint64_t fingerprint() const override { return hash64(name_); }
  std::string decode(std::span<const std::int32_t> ids) const override { return roles_.decode(ids); }
  std::int32_t text_bytes(std::int32_t id) const override { return id < 256 ? 1 : 0; }
  std::unique_ptr<Encoder> encoder() const override { return std::make_unique<ByteEncoder>(*this); }

 private:
  class ByteEncoder final : public Encoder {
   public:
    explicit ByteEncoder(const ByteTokenizer& tokenizer) : tokenizer_(tokenizer) {}
    void append(std::string_view text, std::vector<std::int32_t>& ids) override {
      if (tokenizer_.reads_roles_) {
        const std::vector<std::int32_t> more = tokenizer_.roles_.encode(text);
        ids.insert(ids.end(), more.begin(), more.end());
      } else {
        for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
      }
    }

   private:
    const ByteTokenizer& tokenizer_;
  };

  std::string name_;
  ByteRoles roles_;
  bool reads_roles_;
};

}  // namespace

std::shared_ptr<const Tokenizer> built_in_tokenizer(std::string_view name) {
  if (name == "bytes") return std::make_shared<ByteTokenizer>(name, text_roles(), false);
  if (name == "ping") return std::make_shared<ByteTokenizer>(name, ping_roles(), true);
  return nullptr;
}

}  // namespace redline::data

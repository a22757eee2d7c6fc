// The library does the work; this keeps its errors and ids out of range from reaching anybody else.
#include <sentencepiece_processor.h>

#include <limits>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "data/tokenizer/tokenizer.h"
#include "data/utf8.h"

namespace redline::data {
namespace {

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string_view model, const std::string& name, bool adds_bos)
      : name_(name), fingerprint_(hash64(model)) {
    const auto status = processor_.LoadFromSerializedProto({model.data(), model.size()});
    if (!status.ok()) {
      // Where the bytes do not parse, the library names its own source line and nothing else.
      const std::string reason = status.error_message();
      fail_user("{}: not a sentencepiece model, or a damaged one{}", name,
                reason.find("ParseFromArray") == reason.npos ? ": " + reason : "");
    }
    if (processor_.GetPieceSize() < 1) fail_user("{}: the sentencepiece model has no pieces", name);
    if (adds_bos && !bos_token())
      fail_user(
          "{}: the {} beside it has \"add_bos_token\": true, but the model has no piece that begins a text; set it "
          "to false",
          name, kTokenizerConfig);
    adds_bos_ = adds_bos;
  }

  std::string name() const override { return Path(name_).filename().string(); }
  std::int64_t vocabulary() const override { return processor_.GetPieceSize(); }
  std::optional<std::int32_t> end_token() const override {
    const int id = processor_.eos_id();
    return id < 0 ? std::nullopt : std::optional<std::int32_t>(id);
  }
  std::optional<std::int32_t> bos_token() const override {
    const int id = processor_.bos_id();
    return id < 0 ? std::nullopt : std::optional<std::int32_t>(id);
  }
  // The model itself does not say whether it is put before a text.
  std::vector<std::int32_t> beginning() const override {
    return adds_bos_ ? std::vector{*bos_token()} : std::vector<std::int32_t>();
  }
  std::uint64_t fingerprint() const override { return fingerprint_; }
  std::unique_ptr<Encoder> encoder() const override { return std::make_unique<PieceEncoder>(*this); }
  std::int32_t text_bytes(std::int32_t id) const override {
    if (id < 0 || id >= processor_.GetPieceSize() || processor_.IsControl(id)) return 0;
    if (processor_.IsUnknown(id)) return kUnknownBytes;
    if (processor_.IsByte(id)) return 1;
    constexpr std::string_view kSpace = "\xE2\x96\x81";  // how a piece writes a space
    const std::string& piece = processor_.IdToPiece(id);
    std::size_t bytes = piece.size();
    for (std::size_t at = 0; (at = piece.find(kSpace, at)) != piece.npos; at += kSpace.size())
      bytes -= kSpace.size() - 1;
    return static_cast<std::int32_t>(bytes);
  }

  std::string written(std::int32_t id) const override {
    return id >= 0 && id < processor_.GetPieceSize() ? processor_.IdToPiece(id) : decode({&id, 1});
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text, part;
    std::vector<int> known;
    const auto flush = [&] {
      if (known.empty()) return;
      const auto status = processor_.Decode(known, &part);
      if (!status.ok()) fail_user("{}: {}", name_, status.error_message());
      text += part;
      known.clear();
    };
    for (const std::int32_t id : ids) {
      if (id >= 0 && id < processor_.GetPieceSize()) {
        known.push_back(id);
      } else {
        flush();
        text += fmt::format("<{}>", id);  // as ByteVocabulary does
      }
    }
    flush();
    return text;
  }

 private:
  class PieceEncoder final : public Encoder {
   public:
    explicit PieceEncoder(const SentencePieceTokenizer& tokenizer) : t_(tokenizer) {}
    void append(std::string_view text, std::vector<std::int32_t>& ids) override {
      if (const std::size_t bad = valid_utf8(text); bad != text.size())
        fail_user("the text is not valid UTF-8 at byte {}", bad);
      if (text.size() >= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
        fail_user("a text of {} bytes is too long for sentencepiece; cut it into documents", text.size());
      const auto status = t_.processor_.Encode({text.data(), text.size()}, &found_);
      if (!status.ok()) fail_user("{}: {}", t_.name_, status.error_message());
      ids.insert(ids.end(), found_.begin(), found_.end());
    }

   private:
    const SentencePieceTokenizer& t_;
    std::vector<int> found_;
  };

  std::string name_;
  std::uint64_t fingerprint_;
  bool adds_bos_ = false;
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::shared_ptr<const Tokenizer> sentencepiece_tokenizer(std::string_view model, const std::string& name,
                                                         const TokenizerNotes& notes) {
  return std::make_shared<SentencePieceTokenizer>(model, name, notes.adds_bos.value_or(false));
}

}  // namespace redline::data

// From text to ids: added tokens cut the text, NFC where asked for, stages split what is between into pieces, and
// pieces are merged. Nearly every piece of ordinary text was seen before: a cache of short pieces is what makes it
// fast.
#include "data/tokenizer/bpe_tokenizer.h"

#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "data/tokenizer/nfc.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/utf8.h"

namespace redline::data {
namespace {

// Special tokens that close a document, the first that a vocabulary has counts. The end of a turn of a conversation
// (<|im_end|>, <|eot_id|>) does not close a document.
constexpr std::string_view kEndTokens[] = {"<|endoftext|>", "<|end_of_text|>",       "</s>",
                                           "<eos>",         "<｜end▁of▁sentence｜>", "[EOS]"};

// Pieces of up to 16 bytes that became up to 3 tokens. Two pieces in the same place: the later one stays.
class PieceCache {
 public:
  struct Entry {
    std::uint64_t low = 0, high = 0;  // the bytes, zeros behind them
    std::int32_t ids[3] = {};
    std::uint8_t size = 0;  // 0: nothing here
    std::uint8_t count = 0;
  };
  static constexpr std::size_t kLongest = 16;
  static constexpr std::size_t kMostIds = 3;

  PieceCache() : entries_(std::size_t{1} << kBits) {}

  // `readable`: bytes from piece.data() on that may be read. The entry where the piece is or would be.
  Entry& at(std::string_view piece, std::size_t readable, Entry& key) {
    std::uint64_t words[2] = {0, 0};
    if (std::endian::native == std::endian::little && readable >= kLongest) {
      std::memcpy(words, piece.data(), kLongest);
      const std::size_t n = piece.size();
      if (n < 8) {
        words[0] &= (std::uint64_t{1} << n * 8) - 1;
        words[1] = 0;
      } else if (n < 16) {
        words[1] &= (std::uint64_t{1} << (n - 8) * 8) - 1;
      }
    } else {
      std::memcpy(words, piece.data(), piece.size());
    }
    key.low = words[0];
    key.high = words[1];
    key.size = static_cast<std::uint8_t>(piece.size());
    const std::uint64_t mixed = (words[0] ^ (words[1] + key.size) * 0xff51afd7ed558ccdu) * 0x9e3779b97f4a7c15u;
    return entries_[(mixed ^ mixed >> 32) * 0x9e3779b97f4a7c15u >> (64 - kBits)];
  }
  static bool same(const Entry& a, const Entry& b) { return a.low == b.low && a.high == b.high && a.size == b.size; }

 private:
  static constexpr int kBits = 15;  // 1.3 MiB
  std::vector<Entry> entries_;
};

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(std::string_view json, const std::string& name, std::string_view end_token)
      : name_(name),
        spec_(parse_tokenizer_json(json, name)),
        raw_added_(spec_.raw_added),
        normalized_added_(spec_.normalized_added) {
    end_ = spec_.id_of(end_token);
    for (const std::string_view known : kEndTokens)
      if (end_ < 0) end_ = spec_.id_of(known);
    fingerprint_ = hash64(fmt::format("{} {}", hex64(hash64(json)), end_));
  }

  std::string name() const override { return Path(name_).filename().string(); }
  std::int64_t vocabulary() const override { return static_cast<std::int64_t>(spec_.text_of_id.size()); }
  std::vector<std::int32_t> beginning() const override { return spec_.beginning; }
  std::optional<std::int32_t> end_token() const override { return end_ < 0 ? std::nullopt : std::optional(end_); }
  std::uint64_t fingerprint() const override { return fingerprint_; }
  std::unique_ptr<Encoder> encoder() const override { return std::make_unique<BpeEncoder>(*this); }
  std::int32_t text_bytes(std::int32_t id) const override {
    const auto i = static_cast<std::size_t>(id);
    return id == end_ || i >= spec_.text_of_id.size() ? 0 : static_cast<std::int32_t>(spec_.text_of_id[i].size());
  }

  std::string written(std::int32_t id) const override {
    const auto i = static_cast<std::size_t>(id);
    return i < spec_.text_of_id.size() ? spec_.text_of_id[i] : std::string();
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    if (!spec_.decodes)
      fail_user("{}: it has no decoder, so that ids cannot become text; ByteLevel is what it needs", name_);
    std::string text;
    for (const std::int32_t id : ids) {
      const auto i = static_cast<std::size_t>(id);
      if (id >= 0 && i < spec_.has_id.size() && spec_.has_id[i]) {
        text += spec_.text_of_id[i];
      } else {
        text += fmt::format("<{}>", id);  // as data/byte_vocabulary.h does
      }
    }
    return replace_bad_utf8(std::move(text));
  }

 private:
  class BpeEncoder final : public Encoder {
   public:
    explicit BpeEncoder(const BpeTokenizer& tokenizer) : t_(tokenizer), merger_(tokenizer.spec_.model) {
      for (const SplitStage& stage : t_.spec_.stages)
        splitters_.push_back(stage.pattern ? stage.pattern->splitter() : nullptr);
    }

    void append(std::string_view text, std::vector<std::int32_t>& ids) override {
      if (const std::size_t bad = valid_utf8(text); bad != text.size())
        fail_user("the text is not valid UTF-8 at byte {}", bad);
      ids_ = &ids;
      if (t_.raw_added_.empty()) return between(text);
      parts_.clear();
      t_.raw_added_.split(text, parts_);
      for (std::size_t i = 0; i < parts_.size(); ++i) {
        if (parts_[i].id >= 0)
          ids.push_back(parts_[i].id);
        else
          between(parts_[i].text);
      }
    }

   private:
    void between(std::string_view text) {
      if (t_.spec_.nfc) text = to_nfc(text, normal_);
      if (t_.normalized_added_.empty()) return run_stage(0, text);
      normal_parts_.clear();
      t_.normalized_added_.split(text, normal_parts_);
      for (const AddedPart& part : normal_parts_) {
        if (part.id >= 0)
          ids_->push_back(part.id);
        else
          run_stage(0, part.text);
      }
    }

    void run_stage(std::size_t index, std::string_view text) {
      if (text.empty()) return;
      if (index == splitters_.size()) return piece(text, end_);
      const SplitStage& stage = t_.spec_.stages[index];
      if (stage.prefix_space && !text.starts_with(' ')) {
        prefixed_.assign(" ").append(text);
        text = prefixed_;
      }
      if (index + 1 == splitters_.size()) end_ = text.data() + text.size();
      Splitter* splitter = splitters_[index].get();
      if (splitter == nullptr) return run_stage(index + 1, text);
      const bool streams = stage.behavior == SplitBehavior::isolated || stage.behavior == SplitBehavior::removed;
      if (!streams) return run_merged(index, stage, text);
      const bool drop_matches = stage.behavior == SplitBehavior::removed && !stage.invert;
      const bool drop_rest = stage.behavior == SplitBehavior::removed && stage.invert;
      const bool last = index + 1 == splitters_.size();
      for (std::size_t at = 0; at < text.size();) {
        const Match match = splitter->next(text, at);
        if (match.begin > at && !drop_rest) run_stage(index + 1, text.substr(at, match.begin - at));
        if (match.end > match.begin && !drop_matches) {
          if (last)
            piece(text.substr(match.begin, match.end - match.begin), end_);
          else
            run_stage(index + 1, text.substr(match.begin, match.end - match.begin));
        }
        at = match.end;
      }
    }

    struct Span {
      std::size_t begin, end;
      bool matches;
    };
    // The behaviours that join a match with a neighbour.
    void run_merged(std::size_t index, const SplitStage& stage, std::string_view text) {
      std::vector<Span> spans;
      for (std::size_t at = 0; at < text.size();) {
        const Match match = splitters_[index]->next(text, at);
        if (match.begin > at) spans.push_back({at, match.begin, stage.invert});
        if (match.end > match.begin) spans.push_back({match.begin, match.end, !stage.invert});
        at = match.end;
      }
      std::vector<Span> joined;
      if (stage.behavior == SplitBehavior::merged_with_next) {
        bool previous = false;
        for (auto it = spans.rbegin(); it != spans.rend(); ++it) {
          if (it->matches && !previous && !joined.empty())
            joined.back().begin = it->begin;
          else
            joined.push_back(*it);
          previous = it->matches;
        }
        joined = {joined.rbegin(), joined.rend()};
      } else {
        bool previous = false;
        for (const Span& span : spans) {
          const bool joins =
              stage.behavior == SplitBehavior::contiguous ? span.matches == previous : span.matches && !previous;
          if (joins && !joined.empty())
            joined.back().end = span.end;
          else
            joined.push_back(span);
          previous = span.matches;
        }
      }
      for (const Span& span : joined) run_stage(index + 1, text.substr(span.begin, span.end - span.begin));
    }

    // `end`: of the text that the piece is part of.
    void piece(std::string_view bytes, const char* end) {
      if (bytes.size() > PieceCache::kLongest) return merger_.append(bytes, *ids_);
      PieceCache::Entry key;
      PieceCache::Entry& entry = cache_.at(bytes, static_cast<std::size_t>(end - bytes.data()), key);
      if (PieceCache::same(entry, key)) {
        ids_->insert(ids_->end(), entry.ids, entry.ids + entry.count);
        return;
      }
      const std::size_t before = ids_->size();
      merger_.append(bytes, *ids_);
      const std::size_t count = ids_->size() - before;
      if (count > PieceCache::kMostIds) return;
      key.count = static_cast<std::uint8_t>(count);
      std::copy(ids_->end() - static_cast<std::ptrdiff_t>(count), ids_->end(), key.ids);
      entry = key;
    }

    const BpeTokenizer& t_;
    BpeMerger merger_;
    PieceCache cache_;
    std::vector<std::unique_ptr<Splitter>> splitters_;  // null: no pattern
    std::vector<std::int32_t>* ids_ = nullptr;
    std::vector<AddedPart> parts_, normal_parts_;
    std::string normal_, prefixed_;
    const char* end_ = nullptr;
  };

  std::string name_;
  TokenizerJson spec_;
  AddedTokens raw_added_, normalized_added_;
  std::int32_t end_ = -1;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace

std::shared_ptr<const Tokenizer> bpe_tokenizer(std::string_view json, const std::string& name,
                                               std::string_view end_token) {
  return std::make_shared<BpeTokenizer>(json, name, end_token);
}

}  // namespace redline::data

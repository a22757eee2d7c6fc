// The alphabet, the tables, the two ways of merging (both merge the leftmost of the pairs with the lowest rank), and
// the tokenizer that is made of them.
#include "data/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/unicode.h"
#include "data/utf8.h"

namespace redline::data {
namespace {

// Printable bytes of Latin-1 stand for themselves, the others take characters from U+0100 on, in order.
struct Alphabet {
  std::array<std::uint32_t, 256> character{};
  std::array<std::int16_t, 512> byte{};  // -1: no byte

  constexpr Alphabet() {
    for (auto& b : byte) b = -1;
    std::uint32_t next = 256;
    for (std::uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xff && b != 0xad);
      character[b] = printable ? b : next++;
      byte[character[b]] = static_cast<std::int16_t>(b);
    }
  }
};

constexpr Alphabet kAlphabet;

}  // namespace

std::uint32_t character_of_byte(unsigned char byte) { return kAlphabet.character[byte]; }

std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  for (std::size_t at = 0; at < token.size();) {
    const CodePoint c = decode_utf8(token.data() + at);
    if (c.value >= kAlphabet.byte.size() || kAlphabet.byte[c.value] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.byte[c.value]);
    at += c.size;
  }
  return bytes;
}

std::string token_of_bytes(std::string_view bytes) {
  std::string token;
  for (const char b : bytes) append_utf8(character_of_byte(static_cast<unsigned char>(b)), token);
  return token;
}

MergeTable::MergeTable(std::size_t merges) {
  const std::size_t size = std::bit_ceil(std::max<std::size_t>(merges * 2, 16));
  slots_.resize(size);
  mask_ = size - 1;
  shift_ = 64 - std::countr_zero(size);
}

void MergeTable::set(std::int32_t left, std::int32_t right, Merge merge) {
  const std::uint64_t key = key_of(left, right);
  std::size_t i = slot_of(key);
  while (slots_[i].key != kEmpty && slots_[i].key != key) i = (i + 1) & mask_;
  slots_[i] = {key, merge};
}

TokenTable::TokenTable(std::size_t tokens) {
  slots_.resize(std::bit_ceil(std::max<std::size_t>(tokens * 2, 16)));
  mask_ = slots_.size() - 1;
}

bool TokenTable::set(std::string_view bytes, std::int32_t id) {
  const std::uint64_t hash = hash64(bytes);
  std::size_t i = hash & mask_;
  for (; slots_[i].id >= 0; i = (i + 1) & mask_)
    if (slots_[i].bytes == bytes) return false;
  slots_[i] = {bytes, static_cast<std::uint32_t>(hash >> 32), id};
  return true;
}

std::int32_t TokenTable::find(std::string_view bytes) const {
  const std::uint64_t hash = hash64(bytes);
  for (std::size_t i = hash & mask_; slots_[i].id >= 0; i = (i + 1) & mask_)
    if (slots_[i].hash == static_cast<std::uint32_t>(hash >> 32) && slots_[i].bytes == bytes) return slots_[i].id;
  return -1;
}

void BpeMerger::append(std::string_view piece, std::vector<std::int32_t>& ids) {
  if (model_.ignore_merges) {
    if (const std::int32_t id = model_.tokens.find(piece); id >= 0) {
      ids.push_back(id);
      return;
    }
  }
  REDLINE_CHECK(piece.size() < std::numeric_limits<std::int32_t>::max(), "a piece of {} bytes", piece.size());
  symbols_.clear();
  bool after_unknown = false;
  for (const char c : piece) {
    const std::int32_t id = model_.byte_ids[static_cast<unsigned char>(c)];
    if (id >= 0) {
      symbols_.push_back(id);
    } else if (model_.unknown >= 0 && !(after_unknown && model_.fuse_unknown)) {
      symbols_.push_back(model_.unknown);
    }
    after_unknown = id < 0;
  }
  constexpr std::size_t kShort = 96;  // where both cost 99 ns a byte: 58 against 83 at 24 bytes, 166 against 102 at 256
  if (symbols_.size() > kShort) {
    merge_long(ids);
  } else {
    merge_short();
    ids.insert(ids.end(), symbols_.begin(), symbols_.end());
  }
}

void BpeMerger::merge_short() {
  std::size_t n = symbols_.size();
  pairs_.resize(n);
  for (std::size_t i = 0; i + 1 < n; ++i) pairs_[i] = model_.merges.find(symbols_[i], symbols_[i + 1]);
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i)
      if (pairs_[i].rank < pairs_[best].rank) best = i;
    if (pairs_[best].rank == MergeTable::kNoRank) break;
    symbols_[best] = pairs_[best].id;
    std::copy(symbols_.begin() + static_cast<std::ptrdiff_t>(best) + 2,
              symbols_.begin() + static_cast<std::ptrdiff_t>(n),
              symbols_.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    std::copy(pairs_.begin() + static_cast<std::ptrdiff_t>(best) + 2, pairs_.begin() + static_cast<std::ptrdiff_t>(n),
              pairs_.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    --n;
    if (best > 0) pairs_[best - 1] = model_.merges.find(symbols_[best - 1], symbols_[best]);
    if (best + 1 < n) pairs_[best] = model_.merges.find(symbols_[best], symbols_[best + 1]);
  }
  symbols_.resize(n);
}

void BpeMerger::merge_long(std::vector<std::int32_t>& ids) {
  const auto n = static_cast<std::int32_t>(symbols_.size());
  const auto symbol = [this](std::int32_t i) -> std::int32_t& { return symbols_[static_cast<std::size_t>(i)]; };
  const auto next = [this](std::int32_t i) -> std::int32_t& { return next_[static_cast<std::size_t>(i)]; };
  const auto previous = [this](std::int32_t i) -> std::int32_t& { return previous_[static_cast<std::size_t>(i)]; };
  next_.resize(symbols_.size());
  previous_.resize(symbols_.size());
  heap_.clear();
  const auto entry = [&](std::int32_t i) -> std::uint64_t {  // all ones: the pair does not merge
    const MergeTable::Merge merge = model_.merges.find(symbol(i), symbol(next(i)));
    return std::uint64_t{merge.rank} << 32 | (merge.id < 0 ? 0xffffffffu : static_cast<std::uint32_t>(i));
  };
  const auto push = [&](std::int32_t i) {
    if (const std::uint64_t e = entry(i); e != ~std::uint64_t{0}) {
      heap_.push_back(e);
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    }
  };
  for (std::int32_t i = 0; i < n; ++i) {
    previous(i) = i - 1;
    next(i) = i + 1 < n ? i + 1 : -1;
    if (i + 1 >= n) break;
    if (const std::uint64_t e = entry(i); e != ~std::uint64_t{0}) heap_.push_back(e);
  }
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  constexpr std::int32_t kGone = -1;
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const auto i = static_cast<std::int32_t>(heap_.back() & 0xffffffffu);
    const auto rank = static_cast<std::uint32_t>(heap_.back() >> 32);
    heap_.pop_back();
    if (symbol(i) == kGone || next(i) < 0) continue;
    const std::int32_t right = next(i);
    const MergeTable::Merge merge = model_.merges.find(symbol(i), symbol(right));
    if (merge.rank != rank) continue;  // the pair that stood here has changed since
    symbol(i) = merge.id;
    symbol(right) = kGone;
    next(i) = next(right);
    if (next(i) >= 0) previous(next(i)) = i;
    if (previous(i) >= 0) push(previous(i));
    if (next(i) >= 0) push(i);
  }
  for (std::int32_t i = 0; i >= 0 && i < n; i = next(i)) ids.push_back(symbol(i));
}

namespace {

// From text to ids: added tokens cut the text, NFC where asked for, stages split what is between into pieces, and
// pieces are merged. Nearly every piece of ordinary text was seen before: a cache of short pieces is what makes it
// fast.

// Special tokens that close a document, the first that a vocabulary has counts. The end of a turn of a conversation
// (<|im_end|>, <|eot_id|>) does not close a document.
constexpr std::string_view kEndTokens[] = {"<|endoftext|>", "<|end_of_text|>",       "</s>",
                                           "<eos>",         "<｜end▁of▁sentence｜>", "[EOS]"};

// Those that begin a text, where no file names one.
constexpr std::string_view kBosTokens[] = {"<|begin_of_text|>", "<s>", "<bos>", "<｜begin▁of▁sentence｜>", "[BOS]"};

// Pieces of up to 16 bytes that became up to 3 tokens. Two pieces in the same place: the later one stays.
class PieceCache {
 public:
  struct Entry {
    std::uint64_t low = 0, high = 0;  // the bytes, then zeros
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
  BpeTokenizer(std::string_view json, const std::string& name, const TokenizerNotes& notes)
      : name_(name),
        spec_(parse_tokenizer_json(json, name)),
        raw_added_(spec_.raw_added),
        normalized_added_(spec_.normalized_added) {
    end_ = spec_.id_of(notes.end);
    for (const std::string_view known : kEndTokens)
      if (end_ < 0) end_ = spec_.id_of(known);
    bos_ = spec_.id_of(notes.bos);
    if (bos_ < 0 && !spec_.beginning.empty()) bos_ = spec_.beginning.back();
    for (const std::string_view known : kBosTokens)
      if (bos_ < 0) bos_ = spec_.id_of(known);
    fingerprint_ = hash64(fmt::format("{} {}", hex64(hash64(json)), end_));
  }

  std::string name() const override { return Path(name_).filename().string(); }
  std::int64_t vocabulary() const override { return static_cast<std::int64_t>(spec_.text_of_id.size()); }
  std::vector<std::int32_t> beginning() const override { return spec_.beginning; }
  std::optional<std::int32_t> bos_token() const override { return bos_ < 0 ? std::nullopt : std::optional(bos_); }
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
        text += fmt::format("<{}>", id);  // as ByteVocabulary does
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
  std::int32_t end_ = -1, bos_ = -1;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace

std::shared_ptr<const Tokenizer> bpe_tokenizer(std::string_view json, const std::string& name,
                                               const TokenizerNotes& notes) {
  return std::make_shared<BpeTokenizer>(json, name, notes);
}

}  // namespace redline::data

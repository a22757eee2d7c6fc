// Counting pieces on all cores, and the merges: a heap of pairs by count, and for each pair the words it stands in, so
// that a merge touches those alone.
#include "data/tokenizer/train_bpe.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <queue>
#include <unordered_map>

#include "base/error.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/split.h"
#include "data/tokenizer/unicode.h"
#include "data/utf8.h"
#include "io/json.h"

namespace redline::data {
namespace {

// Counting pieces on all cores: each thread has a table of its own, and sums do not ask who counted what.

constexpr std::size_t kChunkBytes = 1 << 18;
// Longer pieces are counted in parts: merging walks over a whole piece for each of its pairs.
constexpr std::size_t kLongestPiece = 256;

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using Counts = std::unordered_map<std::string, std::int64_t, TextHash, std::equal_to<>>;

bool letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

void cut(std::string_view text, std::vector<std::string_view>& chunks) {
  while (text.size() > kChunkBytes) {
    std::size_t end = kChunkBytes;
    while (end < text.size() && !(text[end] == ' ' && letter(text[end - 1]))) ++end;
    chunks.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  if (!text.empty()) chunks.push_back(text);
}

AddedTokens added_of(const std::vector<std::string>& specials) {
  std::vector<AddedToken> added;
  for (const std::string& special : specials) {
    AddedToken token;
    token.content = special;
    added.push_back(token);
  }
  return AddedTokens(std::move(added));
}

}  // namespace

// The counting state of one thread.
class PieceCounter::Counter {
 public:
  Counter(const SplitPattern& pattern, const AddedTokens& specials, bool nfc)
      : splitter_(pattern.splitter()), specials_(specials), nfc_(nfc) {}

  void add(std::string_view chunk) {
    parts_.clear();
    specials_.split(chunk, parts_);
    for (const AddedPart& part : parts_) {
      if (part.id >= 0) continue;
      const std::string_view text = nfc_ ? to_nfc(part.text, normal_) : part.text;
      for (std::size_t at = 0; at < text.size();) {
        const Match match = splitter_->next(text, at);
        for (std::size_t begin = match.begin; begin < match.end; begin += kLongestPiece)
          count(text.substr(begin, std::min(kLongestPiece, match.end - begin)));
        at = match.end;
      }
    }
  }
  Counts counts;

 private:
  void count(std::string_view piece) {
    const auto it = counts.find(piece);
    if (it != counts.end()) {
      ++it->second;
    } else {
      counts.emplace(std::string(piece), 1);
    }
  }

  std::unique_ptr<Splitter> splitter_;
  const AddedTokens& specials_;
  bool nfc_;
  std::vector<AddedPart> parts_;
  std::string normal_;
};

PieceCounter::PieceCounter(const TrainFamily& family, const std::vector<std::string>& specials, ThreadPool& pool)
    : pattern_(compile_split(family.pattern, std::string(family.name))), specials_(added_of(specials)), pool_(pool) {
  for (int i = 0; i < pool.threads(); ++i) counters_.emplace_back(*pattern_, specials_, family.nfc);
}
PieceCounter::~PieceCounter() = default;

void PieceCounter::add(const std::vector<std::string_view>& texts) {
  std::vector<std::string_view> chunks;
  for (const std::string_view text : texts) {
    REDLINE_CHECK(is_utf8(text), "a text that is not UTF-8");
    cut(text, chunks);
  }
  std::atomic<std::size_t> next = 0;
  pool_.run(static_cast<std::int64_t>(counters_.size()), [&](std::int64_t i) {
    for (std::size_t c = next++; c < chunks.size(); c = next++) counters_[static_cast<std::size_t>(i)].add(chunks[c]);
  });
}

std::vector<CountedPiece> PieceCounter::take() {
  Counts sum;
  for (Counter& counter : counters_) {
    if (sum.empty()) {
      sum = std::move(counter.counts);
    } else {
      for (const auto& [piece, count] : counter.counts) sum[piece] += count;
    }
    counter.counts.clear();
  }
  std::vector<CountedPiece> pieces;
  pieces.reserve(sum.size());
  for (const auto& [piece, count] : sum) pieces.push_back({piece, count});
  std::ranges::sort(pieces, {}, &CountedPiece::bytes);
  return pieces;
}

namespace {

using Pair = std::pair<std::int32_t, std::int32_t>;

struct PairHash {
  std::size_t operator()(const Pair& p) const {
    const std::uint64_t key =
        std::uint64_t{static_cast<std::uint32_t>(p.first)} << 32 | static_cast<std::uint32_t>(p.second);
    return static_cast<std::size_t>((key ^ key >> 29) * 0x9e3779b97f4a7c15u >> 16);
  }
};

struct PairState {
  std::int64_t count = 0;
  std::vector<std::uint32_t> words;  // some may no longer hold the pair, some may be there twice
};

struct Candidate {
  std::int64_t count;
  Pair pair;
  bool operator<(const Candidate& other) const {  // the largest is merged first
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Trainer {
 public:
  explicit Trainer(const std::vector<CountedPiece>& pieces) {
    std::array<std::int32_t, 256> id_of_byte{};
    std::vector<int> bytes(256);
    for (int b = 0; b < 256; ++b) bytes[static_cast<std::size_t>(b)] = b;
    std::ranges::sort(bytes, {}, [](int b) { return character_of_byte(static_cast<unsigned char>(b)); });
    for (const int b : bytes) {
      id_of_byte[static_cast<std::size_t>(b)] = static_cast<std::int32_t>(result_.tokens.size());
      add_token(std::string(1, static_cast<char>(b)));
    }
    words_.reserve(pieces.size());
    for (const CountedPiece& piece : pieces) {
      if (piece.bytes.size() < 2) continue;
      words_.push_back({piece.count, {}});
      for (const char c : piece.bytes) words_.back().symbols.push_back(id_of_byte[static_cast<unsigned char>(c)]);
    }
    REDLINE_CHECK(words_.size() < 0xffffffffu, "{} different pieces", words_.size());
    for (std::uint32_t w = 0; w < words_.size(); ++w)
      for (std::size_t i = 0; i + 1 < words_[w].symbols.size(); ++i)
        add_pair({words_[w].symbols[i], words_[w].symbols[i + 1]}, words_[w].count, w);
    for (const auto& [pair, state] : pairs_) heap_.push({state.count, pair});
  }

  TrainedBpe train(std::int64_t vocabulary, const std::function<void(std::int64_t)>& progress) {
    while (static_cast<std::int64_t>(result_.tokens.size()) < vocabulary && !heap_.empty()) {
      const Candidate top = heap_.top();
      heap_.pop();
      const auto it = pairs_.find(top.pair);
      if (it == pairs_.end() || it->second.count <= 0) continue;
      if (it->second.count != top.count) {  // it has lost some since
        heap_.push({it->second.count, top.pair});
        continue;
      }
      const std::vector<std::uint32_t> where = std::move(it->second.words);
      pairs_.erase(it);
      merge(top.pair, where);
      if (result_.merges.size() % 64 == 0) progress(static_cast<std::int64_t>(result_.tokens.size()));
    }
    return std::move(result_);
  }

 private:
  struct Word {
    std::int64_t count;
    std::vector<std::int32_t> symbols;
  };

  // The same bytes can come from two pairs: they are one token.
  std::int32_t add_token(const std::string& bytes) {
    const auto [it, fresh] = ids_.emplace(bytes, static_cast<std::int32_t>(result_.tokens.size()));
    if (fresh) result_.tokens.push_back(bytes);
    return it->second;
  }

  void add_pair(const Pair& pair, std::int64_t count, std::uint32_t word) {
    PairState& state = pairs_[pair];
    state.count += count;
    if (state.words.empty() || state.words.back() != word) state.words.push_back(word);
  }
  void drop_pair(const Pair& pair, std::int64_t count) {
    const auto it = pairs_.find(pair);
    if (it != pairs_.end()) it->second.count -= count;
  }

  void merge(const Pair& pair, const std::vector<std::uint32_t>& where) {
    const auto token = [this](std::int32_t id) -> const std::string& {
      return result_.tokens[static_cast<std::size_t>(id)];
    };
    const std::int32_t id = add_token(token(pair.first) + token(pair.second));
    result_.merges.push_back(pair);
    fresh_.clear();
    for (const std::uint32_t w : where) {
      Word& word = words_[w];
      auto& s = word.symbols;
      std::size_t out = 0;
      for (std::size_t in = 0; in < s.size(); ++out) {
        if (in + 1 >= s.size() || s[in] != pair.first || s[in + 1] != pair.second) {
          s[out] = s[in++];
          continue;
        }
        // Neighbours on the left are already merged, those on the right not yet.
        if (out > 0) {
          drop_pair({s[out - 1], pair.first}, word.count);
          add_fresh({s[out - 1], id}, word.count, w);
        }
        if (in + 2 < s.size()) {
          drop_pair({pair.second, s[in + 2]}, word.count);
          add_fresh({id, s[in + 2]}, word.count, w);
        }
        s[out] = id;
        in += 2;
      }
      s.resize(out);
    }
    std::ranges::sort(fresh_);
    fresh_.erase(std::unique(fresh_.begin(), fresh_.end()), fresh_.end());
    for (const Pair& p : fresh_) {
      const auto it = pairs_.find(p);
      if (it != pairs_.end() && it->second.count > 0) heap_.push({it->second.count, p});
    }
  }
  void add_fresh(const Pair& pair, std::int64_t count, std::uint32_t word) {
    add_pair(pair, count, word);
    fresh_.push_back(pair);
  }

  TrainedBpe result_;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<Word> words_;
  std::unordered_map<Pair, PairState, PairHash> pairs_;
  std::priority_queue<Candidate> heap_;
  std::vector<Pair> fresh_;
};

}  // namespace

std::vector<TrainFamily> train_families() {
  return {{"gpt2", kGpt2Pattern, false}, {"llama3", kLlama3Pattern, false}, {"qwen", kQwenPattern, true}};
}

TrainedBpe train_bpe(const std::vector<CountedPiece>& pieces, std::int64_t vocabulary,
                     const std::function<void(std::int64_t)>& progress) {
  return Trainer(pieces).train(vocabulary, progress);
}

std::string tokenizer_json_of(const TrainedBpe& bpe, const TrainFamily& family,
                              const std::vector<std::string>& specials) {
  using io::Json;
  Json added = Json::array();
  for (std::size_t i = 0; i < specials.size(); ++i)
    added.push_back({{"id", bpe.tokens.size() + i},
                     {"content", specials[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  const auto byte_level = [](bool trim_offsets, bool use_regex) {
    return Json{
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", trim_offsets}, {"use_regex", use_regex}};
  };
  Json pre_tokenizer = byte_level(true, true);
  if (family.pattern != kGpt2Pattern) {
    const Json split{
        {"type", "Split"}, {"pattern", {{"Regex", family.pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
    pre_tokenizer = {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level(false, false)})}};
  }
  std::vector<std::string> tokens;
  for (const std::string& bytes : bpe.tokens) tokens.push_back(token_of_bytes(bytes));
  Json::object_t vocabulary;  // a list of pairs underneath: adding by key would search it each time
  for (std::size_t id = 0; id < tokens.size(); ++id) vocabulary.emplace_back(tokens[id], id);
  Json merges = Json::array();
  for (const auto& [left, right] : bpe.merges)
    merges.push_back(tokens[static_cast<std::size_t>(left)] + " " + tokens[static_cast<std::size_t>(right)]);
  const Json root{{"version", "1.0"},
                  {"truncation", nullptr},
                  {"padding", nullptr},
                  {"added_tokens", std::move(added)},
                  {"normalizer", family.nfc ? Json{{"type", "NFC"}} : Json(nullptr)},
                  {"pre_tokenizer", std::move(pre_tokenizer)},
                  {"post_processor", byte_level(false, true)},
                  {"decoder", byte_level(true, true)},
                  {"model",
                   {{"type", "BPE"},
                    {"dropout", nullptr},
                    {"unk_token", nullptr},
                    {"continuing_subword_prefix", nullptr},
                    {"end_of_word_suffix", nullptr},
                    {"fuse_unk", false},
                    {"byte_fallback", false},
                    {"ignore_merges", false},
                    {"vocab", std::move(vocabulary)},
                    {"merges", std::move(merges)}}}};
  return root.dump(1) + "\n";
}

}  // namespace redline::data

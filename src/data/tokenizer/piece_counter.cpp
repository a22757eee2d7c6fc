// Counting pieces on all cores: each thread has a table of its own, and sums do not ask who counted what.
#include "data/tokenizer/piece_counter.h"

#include <algorithm>
#include <atomic>
#include <unordered_map>

#include "base/error.h"
#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/nfc.h"
#include "data/tokenizer/pcre2_split.h"
#include "data/utf8.h"

namespace redline::data {
namespace {

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

// The counting state of one thread.
class Counter {
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

struct PieceCounter::Impl {
  Impl(const TrainFamily& family, const std::vector<std::string>& specials_, ThreadPool& p)
      : pattern(compile_split(family.pattern, std::string(family.name))), specials(added_of(specials_)), pool(p) {}

  std::unique_ptr<SplitPattern> pattern;
  AddedTokens specials;
  ThreadPool& pool;
  std::vector<Counter> counters;
};

PieceCounter::PieceCounter(const TrainFamily& family, const std::vector<std::string>& specials, ThreadPool& pool)
    : impl_(std::make_unique<Impl>(family, specials, pool)) {
  for (int i = 0; i < pool.threads(); ++i) impl_->counters.emplace_back(*impl_->pattern, impl_->specials, family.nfc);
}
PieceCounter::~PieceCounter() = default;

void PieceCounter::add(const std::vector<std::string_view>& texts) {
  std::vector<std::string_view> chunks;
  for (const std::string_view text : texts) {
    REDLINE_CHECK(is_utf8(text), "a text that is not UTF-8");
    cut(text, chunks);
  }
  std::atomic<std::size_t> next = 0;
  impl_->pool.run(static_cast<std::int64_t>(impl_->counters.size()), [&](std::int64_t i) {
    for (std::size_t c = next++; c < chunks.size(); c = next++)
      impl_->counters[static_cast<std::size_t>(i)].add(chunks[c]);
  });
}

std::vector<CountedPiece> PieceCounter::take() {
  Counts sum;
  for (Counter& counter : impl_->counters) {
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

}  // namespace redline::data

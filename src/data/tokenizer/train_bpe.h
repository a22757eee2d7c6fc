// Training of byte-level BPE: count the pieces of a corpus, merge the commonest pair again and again, write a
// tokenizer.json. The same corpus gives the same file for any number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "data/tokenizer/split.h"

namespace redline::data {

// A family's way to split text, as its tokenizer.json says it.
struct TrainFamily {
  std::string_view name;  // gpt2, llama3, qwen
  std::string_view pattern;
  bool nfc;
};

struct CountedPiece {
  std::string bytes;
  std::int64_t count;
};

// How often each piece occurs. Special tokens are cut out first, and belong to no piece.
class PieceCounter {
 public:
  PieceCounter(const TrainFamily& family, const std::vector<std::string>& specials, ThreadPool& pool);
  ~PieceCounter();

  // Texts of valid UTF-8. Long ones are cut at a letter before a space, where all the patterns end a piece.
  void add(const std::vector<std::string_view>& texts);
  std::vector<CountedPiece> take();  // sorted by their bytes

 private:
  class Counter;
  std::unique_ptr<SplitPattern> pattern_;
  AddedTokens specials_;
  ThreadPool& pool_;
  std::vector<Counter> counters_;  // one a thread
};

std::vector<TrainFamily> train_families();

struct TrainedBpe {
  std::vector<std::string> tokens;                            // by id, as bytes; the first 256 are the bytes
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;  // in order of rank
};

// Up to `vocabulary` tokens; fewer when nothing is left to merge. Ties go to the pair of lower ids. `progress` gets
// the number of tokens so far now and then.
TrainedBpe train_bpe(const std::vector<CountedPiece>& pieces, std::int64_t vocabulary,
                     const std::function<void(std::int64_t)>& progress);

// Special tokens get the ids after the merged ones.
std::string tokenizer_json_of(const TrainedBpe& bpe, const TrainFamily& family,
                              const std::vector<std::string>& specials);

}  // namespace redline::data

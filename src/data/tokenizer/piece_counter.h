// Counts the pieces that a family's pattern cuts texts into: the input of BPE training.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"

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
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace redline::data

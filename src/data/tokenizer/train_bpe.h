// Training of byte-level BPE: count the pieces of a corpus, merge the commonest pair again and again, write a
// tokenizer.json. The same corpus gives the same file for any number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "data/tokenizer/piece_counter.h"

namespace redline::data {

std::vector<TrainFamily> train_families();

struct TrainedBpe {
  std::vector<std::string> tokens;                            // by id, as bytes; the first 256 are the bytes
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;  // in order of rank
};

// Up to `vocabulary` tokens; fewer when nothing is left to merge. Ties go to the pair of lower ids. `progress` is told
// the number of tokens so far now and then.
TrainedBpe train_bpe(const std::vector<CountedPiece>& pieces, std::int64_t vocabulary,
                     const std::function<void(std::int64_t)>& progress);

// Special tokens get the ids behind the merged ones.
std::string tokenizer_json_of(const TrainedBpe& bpe, const TrainFamily& family,
                              const std::vector<std::string>& specials);

}  // namespace redline::data

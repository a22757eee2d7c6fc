// Measures the lengths of a corpus's documents: of all, or of a sample drawn by the seeded permutation. Statistics are
// made from them; no token is kept.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "data/open_corpus.h"

namespace redline::data {

// `doing` ("reading", "packing") is `done` of `of` along, in whatever unit suits it.
using Progress = std::function<void(std::string_view doing, double done, double of)>;

struct LengthSurvey {
  std::string source;  // "ping (generated)"
  // Of each document, in the order of the source. Never empty; no entry is below 2.
  std::vector<std::int64_t> lengths = {};
  bool shuffled = true;        // training reads their pieces in another order
  std::int64_t documents = 0;  // of the corpus, of which `lengths` may be a sample
  std::int64_t empty = 0;      // documents of no token or one, which training passes over; not in the counts above
  bool exact = true;
};

struct SurveyOptions {
  std::int64_t sample = 0;           // documents; 0, or more than there are: all
  std::int64_t of_endless = 20'000;  // documents of a source that has no end
  Progress progress;                 // may be empty
};

// The documents of `corpus.train`, none held out. Bad paths and data without a token are a UserError.
LengthSurvey survey_lengths(CorpusOptions corpus, const SurveyOptions& options, ThreadPool& pool);

}  // namespace redline::data

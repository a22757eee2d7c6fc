// Two ways to the lengths: ask a source that has documents by index, or read text from front to back and tokenize it.
#include "data/length_survey.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/words.h"
#include "data/document_encoder.h"
#include "data/input/text_input.h"
#include "data/permutation.h"
#include "data/tokenizer/tokenizer.h"

namespace redline::data {
namespace {

constexpr std::int64_t kBetweenReports = 1 << 14;  // documents
constexpr std::int64_t kBlockBytes = 1 << 18, kBlockDocuments = 1024;
constexpr std::size_t kBlocksPerThread = 4;  // between two reports: a megabyte of text for each thread

class Reporter {
 public:
  explicit Reporter(const Progress& progress) : progress_(progress) {}
  void operator()(std::string_view doing, std::int64_t done, std::int64_t of) const {
    if (progress_) progress_(doing, static_cast<double>(done), static_cast<double>(of));
  }

 private:
  const Progress& progress_;
};

// `documents` becomes how many there are with something to predict: counted, or judged by the sample.
void leave_out_empty(LengthSurvey& survey) {
  if (survey.lengths.empty()) return;
  const auto all = static_cast<double>(survey.lengths.size());
  survey.empty = static_cast<std::int64_t>(std::erase_if(survey.lengths, [](std::int64_t n) { return n < 2; }));
  survey.documents =
      std::llround(static_cast<double>(survey.documents) * static_cast<double>(survey.lengths.size()) / all);
}

LengthSurvey survey_source(const DocumentSource& source, const SurveyOptions& options, ThreadPool& pool) {
  const bool endless = source.documents() == 0;
  const std::int64_t population = endless ? options.of_endless : source.documents();
  LengthSurvey survey{.source = source.name(), .shuffled = !endless, .documents = population};
  survey.exact = options.sample == 0 || options.sample >= population;
  const std::int64_t count = survey.exact ? population : options.sample;

  survey.lengths.resize(static_cast<std::size_t>(count));
  const Reporter report(options.progress);
  for (std::int64_t begin = 0; begin < count; begin += kBetweenReports) {
    report("reading lengths", begin, count);
    const std::int64_t n = std::min(kBetweenReports, count - begin);
    pool.for_ranges(n, 256, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t i = begin + from; i < begin + to; ++i)
        survey.lengths[static_cast<std::size_t>(i)] =
            source.length(survey.exact ? i : shuffled_at(i, population, source.order_seed()));
    });
  }
  leave_out_empty(survey);
  return survey;
}

// Lengths of the documents of some blocks. A task of the pool takes every threads-th block, so that each has an encoder
// of its own, caches and all.
class Tokenizing {
 public:
  Tokenizing(const TextInput& input, const Tokenizer& tokenizer, const Chat* chat, ThreadPool& pool)
      : input_(input), pool_(pool) {
    for (int t = 0; t < pool.threads(); ++t)
      encoders_.push_back(std::make_unique<DocumentEncoder>(tokenizer, tokenizer.end_token(), chat));
  }

  // `wanted(n)`: whether the document with that number, counted from the first block's first, is to be tokenized.
  template <class Wanted>
  void append_lengths(const std::vector<TextBlock>& blocks, const Wanted& wanted, std::vector<std::int64_t>& lengths) {
    std::vector<std::vector<std::int64_t>> found(blocks.size());
    std::vector<std::int64_t> first(blocks.size());
    for (std::size_t b = 1; b < blocks.size(); ++b) first[b] = first[b - 1] + blocks[b - 1].documents();
    pool_.run(static_cast<std::int64_t>(encoders_.size()), [&](std::int64_t t) {
      std::vector<std::int32_t> tokens;
      for (std::size_t b = static_cast<std::size_t>(t); b < blocks.size(); b += encoders_.size()) {
        for (std::int64_t i = 0; i < blocks[b].documents(); ++i) {
          if (!wanted(first[b] + i)) continue;
          tokens.clear();
          encoders_[static_cast<std::size_t>(t)]->append(input_, blocks[b], i, tokens);
          found[b].push_back(static_cast<std::int64_t>(tokens.size()));
        }
      }
    });
    for (const auto& of_block : found) lengths.insert(lengths.end(), of_block.begin(), of_block.end());
  }

 private:
  const TextInput& input_;
  ThreadPool& pool_;
  std::vector<std::unique_ptr<DocumentEncoder>> encoders_;
};

// Numbers of the documents to tokenize, ascending; a pass over the files counts them.
std::vector<std::int64_t> choose_sample(TextInput& input, std::int64_t sample, std::uint64_t seed,
                                        std::int64_t& population, const Reporter& report) {
  TextBlock block;
  while (input.next(block, kBlockBytes, kBlockDocuments)) {
    population += block.documents();
    report("counting documents", input.bytes_read(), input.bytes_on_disk());
  }
  input.seek(0, 0);
  std::vector<std::int64_t> chosen;
  for (std::int64_t i = 0; i < std::min(sample, population); ++i) chosen.push_back(shuffled_at(i, population, seed));
  std::ranges::sort(chosen);
  return chosen;
}

LengthSurvey survey_stream(const CorpusOptions& corpus, const SurveyOptions& options, ThreadPool& pool) {
  const std::string name = corpus.tokenizer.empty() ? "bytes" : corpus.tokenizer;
  const auto tokenizer = open_tokenizer(name, "--tokenizer");
  const auto chat = open_chat(corpus.chat, name, *tokenizer, "data.chat");
  TextInput input(corpus.train, corpus.input, "data.train");
  const std::size_t files = input.files().size();
  LengthSurvey survey{.source = fmt::format("{}, tokenizer {}", counted(files, "file"), tokenizer->name())};
  const Reporter report(options.progress);
  std::vector<std::int64_t> chosen;
  std::int64_t population = 0;
  if (options.sample > 0) {
    chosen = choose_sample(input, options.sample, static_cast<std::uint64_t>(corpus.seed), population, report);
    survey.exact = static_cast<std::int64_t>(chosen.size()) == population;
  }

  Tokenizing tokenizing(input, *tokenizer, chat.get(), pool);
  std::vector<TextBlock> blocks;
  std::int64_t before = 0;
  for (bool more = true; more;) {
    blocks.clear();
    while (blocks.size() < kBlocksPerThread * static_cast<std::size_t>(pool.threads()) && more) {
      TextBlock block;
      more = input.next(block, kBlockBytes, kBlockDocuments);
      if (more) blocks.push_back(std::move(block));
    }
    tokenizing.append_lengths(
        blocks, [&](std::int64_t n) { return survey.exact || std::ranges::binary_search(chosen, before + n); },
        survey.lengths);
    for (const TextBlock& block : blocks) before += block.documents();
    report("tokenizing", input.bytes_read(), input.bytes_on_disk());
  }
  survey.documents = before;
  leave_out_empty(survey);
  return survey;
}

}  // namespace

LengthSurvey survey_lengths(CorpusOptions corpus, const SurveyOptions& options, ThreadPool& pool) {
  REDLINE_CHECK(!corpus.train.empty(), "data.train names something");
  corpus.eval = corpus.train;  // something else to evaluate on: nothing is held out from data.train
  const auto opened = open_training_corpus(corpus);
  const auto* source = dynamic_cast<const DocumentSource*>(opened.get());
  LengthSurvey survey = source ? survey_source(*source, options, pool) : survey_stream(corpus, options, pool);
  if (survey.lengths.empty()) fail_user("{}: there is no text in it", corpus.train[0]);
  return survey;
}

}  // namespace redline::data

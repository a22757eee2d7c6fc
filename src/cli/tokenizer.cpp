// redline tokenizer train.
#include <algorithm>
#include <mutex>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/thread_pool.h"
#include "base/words.h"
#include "cli/arguments.h"
#include "cli/command_group.h"
#include "cli/commands.h"
#include "cli/document_words.h"
#include "cli/output.h"
#include "cli/stop_at_once.h"
#include "config/load.h"
#include "data/input/text_input.h"
#include "data/tokenizer/train_bpe.h"
#include "data/utf8.h"
#include "report/bytes_progress.h"
#include "report/figures.h"

namespace redline::cli {
namespace {

// "merging: 42.0%, 12 s left", from two seconds on.
class Progress {
 public:
  explicit Progress(std::string what) : what_(std::move(what)) {}

  void show(double fraction) {
    const double seconds = steady_seconds() - start_;
    if (seconds < report::BytesProgress::kQuiet || fraction <= 0) return;
    const std::string left = report::duration(seconds * (1 - fraction) / fraction);
    line_.show(fmt::format("{}: {}, {} left", what_, report::percent(fraction), left));
  }

 private:
  std::string what_;
  double start_ = steady_seconds();
  report::LiveLine line_{stderr};
};

struct CountedText {
  std::int64_t bytes = 0, skipped = 0;
  std::string first_skipped;
};

// The documents to train on. A malformed one is passed over and counted, or ends the command.
class Documents {
 public:
  explicit Documents(const DocumentWords& words)
      : input_(words.inputs, words.format(), "redline tokenizer train"), skip_bad_(words.skip_bad()) {
    if (!skip_bad_) input_.check_files();
  }

  bool next(data::TextBlock& block, std::int64_t bytes, std::int64_t documents) {
    for (;;) {
      try {
        return input_.next(block, bytes, documents);
      } catch (const UserError& problem) {  // the input goes on with the next file
        stop_or_skip(problem);
      }
    }
  }
  void parse(const data::TextBlock& block, std::int64_t i, std::string& text) {
    try {
      input_.parse(block, i, text);
    } catch (const UserError& problem) {
      text.clear();
      stop_or_skip(problem);
    }
  }
  double share_read() const {
    return static_cast<double>(input_.bytes_read()) /
           static_cast<double>(std::max<std::int64_t>(input_.bytes_on_disk(), 1));
  }

  CountedText counted;

 private:
  void stop_or_skip(const UserError& problem) {
    if (!skip_bad_ && dynamic_cast<const data::NoSuchField*>(&problem)) throw data::NoSuchField(problem.what());
    if (!skip_bad_) fail_user("{} (--on-error skip passes over such input)", problem.what());
    const std::lock_guard lock(mutex_);
    if (counted.skipped++ == 0) counted.first_skipped = problem.what();
  }

  data::TextInput input_;
  bool skip_bad_;
  std::mutex mutex_;
};

// The texts of all inputs, to `counter`.
CountedText count_pieces(Documents& documents, ThreadPool& pool, data::PieceCounter& counter) {
  // Many small files are counted together: a call is split over the cores by its texts.
  constexpr std::int64_t kBatchBytes = 32 << 20, kBlockBytes = 16 << 20, kBlockDocuments = 1 << 16;
  Progress progress("reading");
  data::TextBlock block;
  std::vector<std::string> texts;
  for (bool more = true; more;) {
    texts.clear();
    std::int64_t gathered = 0;
    while (gathered < kBatchBytes && (more = documents.next(block, kBlockBytes, kBlockDocuments))) {
      const std::size_t first = texts.size();
      texts.resize(first + static_cast<std::size_t>(block.documents()));
      pool.for_ranges(block.documents(), 64, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i)
          documents.parse(block, i, texts[first + static_cast<std::size_t>(i)]);
      });
      gathered += static_cast<std::int64_t>(block.bytes.size());
    }
    for (const std::string& text : texts) documents.counted.bytes += static_cast<std::int64_t>(text.size());
    counter.add({texts.begin(), texts.end()});
    progress.show(documents.share_read());
  }
  return documents.counted;
}

data::TrainFamily family_of(const std::string& name) {
  std::vector<std::string> names;
  for (const data::TrainFamily& family : data::train_families()) {
    if (family.name == name) return family;
    names.emplace_back(family.name);
  }
  const std::string guess = config::nearest(name, names);
  fail_user("--pattern may be {}, not '{}'{}", fmt::join(names, ", "), name,
            guess.empty() ? "" : fmt::format("; did you mean '{}'?", guess));
}

void check_specials(const std::vector<std::string>& specials) {
  for (std::size_t i = 0; i < specials.size(); ++i) {
    const std::string& special = specials[i];
    if (special.empty() || special.size() > 1000 || !data::is_utf8(special))
      fail_user("--special takes a token of 1 to 1000 bytes of UTF-8");
    if (std::find(specials.begin(), specials.begin() + static_cast<std::ptrdiff_t>(i), special) !=
        specials.begin() + static_cast<std::ptrdiff_t>(i))
      fail_user("--special {} is given twice", special);
  }
}

int train(const Words& words) {
  Arguments arguments("tokenizer train", "train a byte-level BPE tokenizer",
                      "--vocab-size N --out FILE INPUT... [--pattern NAME] [--special TOKEN] [--text-field F]",
                      {"redline tokenizer train --vocab-size 32000 --out tokenizer.json books/",
                       "redline tokenizer train --vocab-size 8192 --pattern qwen --special '<|endoftext|>' --special "
                       "'<|pad|>' --out tokenizer.json corpus.txt"});
  std::int64_t vocabulary = 0;
  std::string out, pattern = "gpt2";
  DocumentWords input;
  std::vector<std::string> specials;
  input.declare(arguments);
  arguments.integer("--vocab-size", "N", vocabulary, 256, 10'000'000, "tokens in all, special ones included");
  arguments.text("--out", "FILE", out, "where the tokenizer.json goes");
  arguments.text("--pattern", "NAME", pattern,
                 "how text is split before merging: as gpt2, llama3 or qwen do (default: gpt2)");
  arguments.repeated("--special", "TOKEN", specials, "a special token; may be given again (default: <|endoftext|>)");
  if (!arguments.parse(words)) return kDone;
  if (vocabulary == 0) fail_user("redline tokenizer train needs --vocab-size N");
  if (out.empty()) fail_user("redline tokenizer train needs --out FILE");
  if (input.inputs.empty()) fail_user("redline tokenizer train needs text to train on: INPUT...");
  if (specials.empty()) specials = {"<|endoftext|>"};
  check_specials(specials);
  const auto special_count = static_cast<std::int64_t>(specials.size());
  if (vocabulary < 256 + special_count)
    fail_user("--vocab-size {} is too small: 256 bytes and {} need {}", vocabulary,
              counted(special_count, "special token"), 256 + special_count);
  const data::TrainFamily family = family_of(pattern);
  const Path out_path(out);
  Documents documents(input);
  real_files().create_folders(parent_of(out_path));
  check_output_file("--out", out, input.inputs);

  StopAtOnce stopping("stopped; no tokenizer was written");
  const double start = steady_seconds();
  ThreadPool pool;
  data::PieceCounter counter(family, specials, pool);
  const CountedText text = count_pieces(documents, pool, counter);
  if (text.bytes == 0)
    fail_user("redline tokenizer train: the input holds no text{}",
              text.skipped > 0 ? fmt::format(": all of it was passed over; the first: {}", text.first_skipped) : "");
  const double read = steady_seconds();
  data::TrainedBpe bpe;
  {
    Progress progress("merging");
    const double wanted = static_cast<double>(vocabulary - special_count);
    bpe = data::train_bpe(counter.take(), vocabulary - special_count, [&](std::int64_t tokens) {
      progress.show(static_cast<double>(tokens - 256) / (wanted - 256));
    });
  }
  stopping.hold();
  real_files().replace(out_path, data::tokenizer_json_of(bpe, family, specials));
  const auto made = static_cast<std::int64_t>(bpe.tokens.size()) + special_count;
  print(fmt::format("{}: {} ({}, {} special) from {:.1f} MB of text; read in {:.1f} s, merged in {:.1f} s\n", out,
                    counted(made, "token"), counted(bpe.merges.size(), "merge"), special_count,
                    static_cast<double>(text.bytes) * 1e-6, read - start, steady_seconds() - read));
  if (text.skipped > 0)
    print(fmt::format("passed over: {}, the first: {}\n", counted(text.skipped, "malformed part"), text.first_skipped));
  if (made < vocabulary) print(fmt::format("the text has nothing more to merge: {} tokens are all it gives\n", made));
  return kDone;
}

}  // namespace

int run_tokenizer(const Words& words) {
  static constexpr Command kCommands[] = {{"train", "a byte-level BPE tokenizer from text", train}};
  return run_group({"tokenizer",
                    "make a tokenizer; redline tokenize uses one",
                    kCommands,
                    {"redline tokenizer train --vocab-size 32000 --out tokenizer.json books/"}},
                   words);
}

}  // namespace redline::cli

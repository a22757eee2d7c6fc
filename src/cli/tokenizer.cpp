// redline tokenize, which uses a tokenizer, and redline tokenizer, which makes one.
#include "cli/tokenizer.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <system_error>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/thread_pool.h"
#include "base/words.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "config/load.h"
#include "data/input/text_input.h"
#include "data/tokenizer/convert_files.h"
#include "data/utf8.h"
#include "io/json.h"
#include "report/figures.h"
#include "report/live_line.h"

namespace redline::cli {
namespace {

// The bytes of all files; 0 where one is a pipe, or is not there, which opening it will tell.
std::uint64_t bytes_of(const std::vector<std::string>& files) {
  std::uint64_t bytes = 0;
  for (const std::string& file : files) {
    std::error_code unknown;
    const std::uintmax_t size = std::filesystem::file_size(file, unknown);
    if (unknown) return 0;
    bytes += size;
  }
  return bytes;
}

// A text that is encoded whole does not tell how far it is. Nothing while the input decides what comes when.
std::string words_for(const std::string& doing, const data::ConversionProgress& progress, std::uint64_t of,
                      double seconds) {
  const std::uint64_t read = progress.read, done = progress.converted;
  if (progress.waiting || read == 0) return {};
  if (of > 0 && done > 0) return report::BytesProgress::text(doing, done, of, seconds);
  return fmt::format("{}: {} read, {} so far", doing, report::bytes(static_cast<double>(read)),
                     report::duration(seconds));
}

// "merging: 42.0%, 12 s left", from two seconds on.
class Progress {
 public:
  explicit Progress(std::string what) : what_(std::move(what)) {}

  void show(double fraction) {
    const double seconds = steady_seconds() - start_;
    if (seconds < report::kQuietSeconds || fraction <= 0) return;
    line_.show(fmt::format("{}: {}{}", what_, report::percent(fraction), report::time_left(seconds, fraction)));
  }

 private:
  std::string what_;
  double start_ = steady_seconds();
  report::LiveLine line_{stderr};
};

// The documents to train on. A malformed one is passed over and counted, or ends the command.
class Documents {
 public:
  explicit Documents(const TextToCount& text)
      : input_(text.inputs, text.format, "redline tokenizer train"),
        skip_bad_(text.skip_bad),
        skipping_(text.skipping) {
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
    if (!skip_bad_) fail_user("{} ({} passes over such input)", problem.what(), skipping_);
    const std::lock_guard lock(mutex_);
    if (counted.skipped++ == 0) counted.first_skipped = problem.what();
  }

  data::TextInput input_;
  bool skip_bad_;
  std::string skipping_;
  std::mutex mutex_;
};

}  // namespace

CountedText count_text(const TextToCount& text, const data::TrainFamily& family,
                       const std::vector<std::string>& specials, std::int64_t most_bytes) {
  // Many small files are counted together: a call is split over the cores by its texts.
  constexpr std::int64_t kBatchBytes = 32 << 20, kBlockBytes = 16 << 20, kBlockDocuments = 1 << 16;
  constexpr std::size_t kSampleBytes = 1 << 20;
  Documents documents(text);
  ThreadPool pool;
  data::PieceCounter counter(family, specials, pool);
  Progress progress("reading");
  data::TextBlock block;
  std::vector<std::string> texts;
  CountedText& counted = documents.counted;
  for (bool more = true; more && counted.bytes < most_bytes;) {
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
    for (const std::string& document : texts) {
      counted.bytes += static_cast<std::int64_t>(document.size());
      if (counted.sample.size() < kSampleBytes) counted.sample += document.substr(0, kSampleBytes);
    }
    if (text.pieces) counter.add({texts.begin(), texts.end()});
    progress.show(documents.share_read());
    if (more) counted.share = documents.share_read();
  }
  if (counted.bytes < most_bytes) counted.share = 1;
  counted.pieces = counter.take();
  return std::move(counted);
}

data::TrainedBpe merge_pieces(const std::vector<data::CountedPiece>& pieces, std::int64_t vocabulary) {
  Progress progress("merging");
  const double wanted = static_cast<double>(vocabulary);
  return data::train_bpe(pieces, vocabulary, [&](std::int64_t tokens) {
    progress.show(static_cast<double>(tokens - 256) / (wanted - 256));
  });
}

namespace {

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

int train_tokenizer(const Words& words) {
  Arguments arguments("tokenizer train", "train a byte-level BPE tokenizer",
                      "--vocab-size N --out FILE INPUT... [--pattern NAME] [--special TOKEN] [--text-field F] [--json]",
                      {"redline tokenizer train --vocab-size 32000 --out tokenizer.json books/",
                       "redline tokenizer train --vocab-size 8192 --pattern qwen --special '<|endoftext|>' --special "
                       "'<|pad|>' --out tokenizer.json corpus.txt"});
  std::int64_t vocabulary = 0;
  std::string out, pattern = "gpt2";
  bool json = false;
  DocumentWords input;
  std::vector<std::string> specials;
  input.declare(arguments);
  arguments.integer("--vocab-size", "N", vocabulary, 256, 10'000'000, "tokens in all, special ones included");
  arguments.text("--out", "FILE", out, "where the tokenizer.json goes");
  arguments.text("--pattern", "NAME", pattern,
                 "how text is split before merging: as gpt2, llama3 or qwen do (default: gpt2)");
  arguments.repeated("--special", "TOKEN", specials, "a special token; may be given again (default: <|endoftext|>)");
  arguments.json(json);
  arguments.exits(kStopped, "stopped by a signal: no tokenizer was written");
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
  const TextToCount counting{.inputs = input.inputs, .format = input.format(), .skip_bad = input.skip_bad()};
  { const Documents look(counting); }  // says what is wrong with a file before a folder is made
  real_files().create_folders(parent_of(out_path));
  check_output_file("--out", out, kTokenizerFile, input.inputs);

  StopAtOnce stopping("stopped; no tokenizer was written");
  const double start = steady_seconds();
  const CountedText text = count_text(counting, family, specials);
  if (text.bytes == 0)
    fail_user("redline tokenizer train: the input holds no text{}",
              text.skipped > 0 ? fmt::format(": all of it was passed over; the first: {}", text.first_skipped) : "");
  const double read = steady_seconds();
  const data::TrainedBpe bpe = merge_pieces(text.pieces, vocabulary - special_count);
  stopping.hold();
  real_files().replace(out_path, data::tokenizer_json_of(bpe, family, specials));
  const auto made = static_cast<std::int64_t>(bpe.tokens.size()) + special_count;
  const double merged = steady_seconds();
  if (json) {
    print_json({{"tokenizer", out},
                {"pattern", pattern},
                {"tokens", made},
                {"asked", vocabulary},
                {"merges", bpe.merges.size()},
                {"special", specials},
                {"bytes", text.bytes},
                {"skipped", text.skipped},
                {"first_skipped", text.first_skipped},
                {"read_seconds", read - start},
                {"merge_seconds", merged - read}});
    return kDone;
  }
  print(fmt::format("{}: {} ({}, {} special) from {:.1f} MB of text; read in {:.1f} s, merged in {:.1f} s\n", out,
                    counted(made, "token"), counted(bpe.merges.size(), "merge"), special_count,
                    static_cast<double>(text.bytes) * 1e-6, read - start, merged - read));
  if (text.skipped > 0)
    print(fmt::format("passed over: {}, the first: {}\n", counted(text.skipped, "malformed part"), text.first_skipped));
  if (made < vocabulary) print(fmt::format("the text has nothing more to merge: {} tokens are all it gives\n", made));
  return kDone;
}

}  // namespace

int run_tokenize(const Words& words) {
  Arguments arguments("tokenize", "text to token ids, and back", "--tokenizer FILE [--decode] [--jsonl] [FILE...]",
                      {"redline tokenize --tokenizer tokenizer.json book.txt > book.ids",
                       "redline tokenize --tokenizer tokenizer.json --decode book.ids",
                       "echo '{\"text\": \"Hello\"}' | redline tokenize --tokenizer llama2.model --jsonl"});
  std::string name;
  std::vector<std::string> files;
  data::Conversion conversion;
  arguments.words("FILE...", files, "each is one text, whose ids become one line; none, or -: standard input");
  arguments.text("--tokenizer", "FILE", name,
                 "a tokenizer.json, a sentencepiece .model, a folder with one, bytes or ping");
  arguments.flag("--decode", conversion.decode, "ids to text: each line of ids becomes its text");
  arguments.flag("--jsonl", conversion.jsonl,
                 "lines of {\"text\": ...} become lines of {\"ids\": [...]}; with --decode, back");
  arguments.exits(kStopped, "stopped by a signal: whole lines, and the output ends before the input does");
  if (!arguments.parse(words)) return kDone;
  if (name.empty()) fail_user("redline tokenize needs --tokenizer FILE");
  if (files.empty()) files = {"-"};
  conversion.any_bytes = name == "bytes";

  StopAtOnce stopping("stopped; the output ends before the input does");
  const auto tokenizer = data::open_tokenizer(name, "--tokenizer");
  data::ConversionProgress progress;
  report::LiveLine live(stderr);
  std::optional<report::BackgroundLine> shown;  // on a terminal the output itself shows how far it is
  if (::isatty(STDOUT_FILENO) != 1)
    shown.emplace(live, [&, of = bytes_of(files)](double seconds) {
      return words_for(conversion.decode ? "decoding" : "tokenizing", progress, of, seconds);
    });
  // Whole lines reach the output, and a signal that comes meanwhile is heard after them.
  const auto print_whole = [&](std::string_view lines) {
    stopping.hold();
    print_data(lines);
    flush_output();
    stopping.release();
    return !output_failed();
  };
  data::convert_files(*tokenizer, files, conversion, print_whole, progress);
  return kDone;
}

int run_tokenizer(const Words& words) {
  static constexpr Command kCommands[] = {{"train", "a byte-level BPE tokenizer from text", train_tokenizer}};
  return run_group({"tokenizer",
                    "make a tokenizer; redline tokenize uses one",
                    kCommands,
                    {"redline tokenizer train --vocab-size 32000 --out tokenizer.json books/"}},
                   words);
}

}  // namespace redline::cli

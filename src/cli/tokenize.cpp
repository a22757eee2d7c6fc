// redline tokenize.
#include <unistd.h>

#include <optional>
#include <system_error>

#include "base/error.h"
#include "base/files.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/stop_at_once.h"
#include "data/tokenizer/convert_files.h"
#include "report/background_line.h"
#include "report/figures.h"

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
  // Whole lines reach the output, and a signal that comes meanwhile is heard behind them.
  const auto print_whole = [&](std::string_view lines) {
    stopping.hold();
    print(lines);
    flush_output();
    stopping.release();
    return !output_failed();
  };
  data::convert_files(*tokenizer, files, conversion, print_whole, progress);
  return kDone;
}

}  // namespace redline::cli

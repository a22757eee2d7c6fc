// Progress and summary of weights on their way from one folder to another.
#include "cli/transfer.h"

#include "base/clock.h"
#include "base/words.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "io/json.h"
#include "report/figures.h"

namespace redline::cli {

Transfer::Transfer(std::string doing, infer::WriteWeights& options)
    : progress_(std::move(doing), 0), start_(steady_seconds()), line_(stderr) {
  options.stop = &signals_.caught();
  options.progress = [this](std::uint64_t done, std::uint64_t of) { progress_.show(line_, done, of); };
}

int Transfer::run(const std::string& checkpoint, const std::string& out, bool json,
                  const std::function<infer::Transferred(const infer::Checkpoint&)>& move, bool average) {
  const auto use = [&](const infer::Checkpoint& from) {
    infer::Transferred transferred;
    try {
      transferred = move(from);
    } catch (...) {
      line_.clear();  // before something is said about it
      throw;
    }
    line_.clear();
    tell(from, out, transferred, json);
  };
  try {
    infer::use_checkpoint(real_files(), checkpoint, use, average);
    return kDone;
  } catch (const infer::Stopped&) {
    line_.keep("stopped; nothing is left of " + out);
    return kStopped;
  }
}

void Transfer::tell(const infer::Checkpoint& from, const std::string& out, const infer::Transferred& transferred,
                    bool json) const {
  const double seconds = steady_seconds() - start_;
  const infer::WrittenWeights& w = transferred.weights;
  if (json) {
    print_json({{"from", from.folder.string()},
                {"folder", out},
                {"family", from.model.family},
                {"parameters", w.parameters},
                {"bytes", w.bytes},
                {"shards", w.shards},
                {"average", from.average},
                {"tokenizer_files", transferred.tokenizer_files},
                {"note", transferred.note},
                {"seconds", seconds}});
    return;
  }
  print(fmt::format("{}: {} with {} parameters, {} in {}, from {}{} in {}\n", out, from.model.family,
                    report::grouped(w.parameters), report::bytes(static_cast<double>(w.bytes)),
                    counted(w.shards, "file"), from.average ? "the average in " : "", from.folder.string(),
                    report::duration(seconds)));
  if (!transferred.tokenizer_files.empty())
    print(fmt::format("  tokenizer: {}\n", fmt::join(transferred.tokenizer_files, ", ")));
  if (!transferred.note.empty()) print(fmt::format("  {}\n", transferred.note));
}

}  // namespace redline::cli

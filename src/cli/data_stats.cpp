// redline data stats.
#include "report/data_stats.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/config_words.h"
#include "cli/output.h"
#include "cli/stop_at_once.h"
#include "config/load.h"
#include "data/from_config.h"
#include "data/statistics.h"
#include "io/json.h"
#include "model/lowering.h"
#include "program/planner.h"
#include "report/figures.h"
#include "report/live_line.h"

namespace redline::cli {
namespace {

constexpr std::int64_t kMostTokens = 1 << 24, kMost = std::int64_t{1} << 40;

struct Given {
  std::vector<std::string> words;
  std::string preset, model, tokenizer, html;
  std::int64_t seq_len = 0, batch_size = 0, buckets = 0, documents = 20'000, sample = 0;
  bool json = false;

  bool has_model() const { return !preset.empty() || !model.empty(); }
  std::string model_name() const { return model.empty() ? preset : Path(model).stem().string(); }
};

void declare(Arguments& arguments, Given& given) {
  arguments.words(
      "DATA, key=value", given.words,
      "what data.train takes: a prepared folder, token or text files, .jsonl, .parquet, \"ping\"; then keys to change");
  arguments.integer("--seq-len", "N", given.seq_len, 1, kMostTokens, "tokens of a row (default: those of the model)");
  arguments.integer("--batch-size", "N", given.batch_size, 1, kMostTokens,
                    "rows of a batch, which is what is packed (default: those of the model, or 8)");
  arguments.text("--preset", "NAME", given.preset,
                 "take the rows of a shipped model and count its FLOPs; `redline config --presets` lists them");
  arguments.text("--model", "CONFIG", given.model, "the same for a TOML file");
  arguments.text("--tokenizer", "FILE", given.tokenizer,
                 "for text: a tokenizer.json, a sentencepiece .model, a folder with one, bytes or ping");
  arguments.integer("--buckets", "K", given.buckets, 1, 256,
                    "find the best edges of at most so many buckets (default: as many as are usual)");
  arguments.integer("--documents", "N", given.documents, 1, kMost,
                    "documents of a source without end, such as ping (default: 20000)");
  arguments.integer("--sample", "N", given.sample, 1, kMost,
                    "measure only so many documents, drawn with a fixed seed (default: all)");
  arguments.text("--html", "FILE", given.html, "write a page with plots as well");
  arguments.flag("--json", given.json, "print one JSON document");
}

// The configuration that training would have: the model's, or the defaults, with what was given in its place.
config::Config settings_of(const Given& given) {
  if (!given.preset.empty() && !given.model.empty())
    fail_user("--preset {} and --model {}: one model at a time", given.preset, given.model);
  config::Sources sources{given.model, given.preset, {}};
  std::vector<std::string> data;
  for (const std::string& word : given.words)
    (word.find('=') != word.npos && !real_files().exists(word) ? sources.overrides : data).push_back(word);
  if (data.empty())
    fail_user("redline data stats needs DATA: a prepared folder, text files, a .jsonl, a .parquet, or \"ping\"");
  config::Config c = load_config(sources);
  if (!given.has_model()) c.train.batch_size = 8;
  c.data.train = data;
  if (!c.data.weights.empty())
    log::note("data.weights are left aside: what is measured are the documents of DATA as they stand");
  c.data.weights.clear();
  if (c.data.documents == 0) c.data.documents = given.documents;
  if (!given.tokenizer.empty()) c.data.tokenizer = given.tokenizer;
  if (given.seq_len > 0) c.train.seq_len = given.seq_len;
  if (given.batch_size > 0) c.train.batch_size = given.batch_size;
  if (given.seq_len == 0 && !given.has_model())
    fail_user("redline data stats needs --seq-len N: the tokens of a row, or a model that says (--preset NAME)");
  if (c.train.seq_len > kMost / c.train.batch_size || c.data.max_segments > kMost / c.train.batch_size)
    fail_user("--batch-size {}: a batch of so many rows is more than any machine holds", c.train.batch_size);
  return c;
}

data::ModelCost cost_of(const config::Config& c) {
  model::LoweringOptions options = model::lowering_options(c, device::Kind::cpu);
  options.batch = {1, 64, 1};  // products follow the slots, whatever the shape
  options.accumulate = false;
  const model::LoweredModel lowered = model::lower(c.model, options);
  const program::ModelFlops flops = program::model_flops(lowered.set.find(model::kFirst));
  return {flops.per_slot_products / static_cast<double>(options.batch.tokens()), flops.per_pair};
}

// "packing, 42.0%, eta 12 s", each stage with its own clock.
class ShowProgress {
 public:
  void operator()(std::string_view doing, double done, double of) {
    if (doing != doing_) {
      doing_ = doing;
      started_ = steady_seconds();
    }
    const double seconds = steady_seconds() - started_;
    line_.show(fmt::format("{}, {}{}", doing, report::percent(of > 0 ? done / of : 1),
                           seconds > 0.5 ? report::eta(seconds, done, of) : ""));
  }

 private:
  report::LiveLine line_{stderr};
  std::string doing_;
  double started_ = 0;  // on steady_seconds()
};

}  // namespace

int run_data_stats(const Words& words) {
  Arguments arguments("data stats", "how long documents are, what padding would waste, and what packing saves",
                      "DATA... --seq-len N [key=value ...] [--preset NAME] [--html FILE] [--json]",
                      {"redline data stats ping --seq-len 1024",
                       "redline data stats corpus/ --seq-len 2048 --preset llama-1.36b --html lengths.html",
                       "redline data stats web.jsonl.zst --tokenizer tokenizer.json --seq-len 4096 --sample 100000"});
  Given given;
  declare(arguments, given);
  if (!arguments.parse(words)) return kDone;
  StopAtOnce stopping("stopped; nothing was written");
  const config::Config c = settings_of(given);
  if (!given.html.empty()) check_output_file("--html", given.html, given.words);

  data::AnalysisSettings settings;
  settings.shape = model::batch_shape(c);
  settings.truncate = c.data.long_documents == "truncate";
  settings.edges = c.data.buckets;
  settings.buckets = given.buckets;
  if (given.has_model()) settings.model = cost_of(c);

  ThreadPool pool;
  data::LengthSurvey survey;
  data::Analysis analysis;
  {
    ShowProgress show;
    settings.progress = std::ref(show);
    survey =
        data::survey_lengths(data::corpus_options(c.data), {given.sample, given.documents, settings.progress}, pool);
    analysis = data::analyse(survey, settings, pool);
  }
  const report::DataStats stats{survey, settings, analysis, given.has_model() ? given.model_name() : ""};
  stopping.hold();
  if (!given.html.empty()) real_files().replace(given.html, report::data_stats_page(stats));
  if (given.json) {
    print_json(report::data_stats_json(stats));
    return kDone;
  }
  print(report::data_stats_text(stats, has_blocks()));
  if (!given.html.empty()) print(fmt::format("\npage     {}\n", given.html));
  return kDone;
}

}  // namespace redline::cli

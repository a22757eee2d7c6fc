// redline train.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/words.h"
#include "cli/commands.h"
#include "cli/config.h"
#include "cli/first_run.h"
#include "cli/measuring.h"
#include "cli/output.h"
#include "cli/ranks.h"
#include "config/keys.h"
#include "io/json.h"
#include "model/family.h"
#include "model/hf_config.h"
#include "perf/batch_size.h"
#include "perf/fit.h"
#include "perf/fp8_choice.h"
#include "perf/peak.h"
#include "perf/scale.h"
#include "report/json_rows.h"
#include "report/run_record.h"
#include "report/run_summary.h"
#include "report/sinks.h"
#include "train/ends.h"
#include "train/on_ranks.h"
#include "train/recipe.h"
#include "train/run_folder.h"
#include "train/signals.h"
#include "train/trainer.h"

namespace redline::cli {
namespace {

// runs/NAME-YYYYmmdd-HHMMSS; a second run within the same second gets a number.
Path new_folder(FileSystem& files, const std::string& name) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &local);
  const std::string folder = fmt::format("runs/{}-{}", name, stamp);
  Path path = folder;
  for (int n = 2; files.exists(path); ++n) path = fmt::format("{}-{}", folder, n);
  return path;
}

struct Choice {
  config::Config config;
  Path folder;
  bool own_config = false;              // the run's config.toml, and what the command line changes of it
  std::vector<std::string> notes = {};  // on what was filled in
  bool first_run = false;               // on a folder of text
  bool explains_end = false;            // such a run, or one that goes on
  std::string tokenizer = {};           // of a first run: to be written
};

// A run that is older than a default goes on as it began, whatever file or preset it is continued with, and what it
// found out when it began stays so: its vocabulary, and the tokenizer of its weights.
void keep_as_begun(FileSystem& files, const Path& run, config::Config& config) {
  const std::optional<config::Config> before = train::config_of_run(files, run);
  if (!before) return;
  if (!config.origins.known("model.vocab")) {
    config.model.vocab = before->model.vocab;
    config.origins.set("model.vocab", run.string(), true);
  }
  if (!config.model.init_from.empty() && config.data.tokenizer.empty()) config.data.tokenizer = before->data.tokenizer;
  std::string kept;
  for (const std::string& name : config::keep_old_meanings(*before, config))
    kept += fmt::format("{}{} = {}", kept.empty() ? "" : ", ", name,
                        config::literal(config::read(*config::find_key(name), config)));
  if (!kept.empty()) log::note("{} goes on with {}, as it began; to change that, give the key", run.string(), kept);
}

// The command line's requests beside the configuration.
struct TrainRequest {
  std::string out, device = "auto";
  std::int64_t from_step = -1;
  bool resume = false, allow_change = false, dry_run = false, json = false;
};

// A new run's folder holds no run, and no tokenizer either: a run keeps its own there, and nothing else.
void require_new(FileSystem& files, const Path& folder) {
  if (train::holds_run(files, folder))
    fail_user("{} already holds a run; continue it with --resume, or choose another --out", folder.string());
  const Path kept = folder / train::kTokenizer;
  std::error_code error;
  if (!files.exists(kept) || (std::filesystem::is_directory(kept, error) && files.list(kept).empty())) return;
  fail_user(
      "{} is there already, and of no run; a run keeps its own tokenizer under that name: move it away, or choose "
      "another --out",
      kept.string());
}

// The configuration of a run on a folder of text, where that is what the word before the keys names.
std::optional<Choice> choose_for_text(FileSystem& files, config::Sources sources, const TrainRequest& asked) {
  const std::string word = std::exchange(sources.file, "");
  std::error_code error;
  if (word.empty() || !std::filesystem::is_directory(word, error)) return {};
  if (asked.resume)
    fail_user("--resume goes on with the run in {}, which has its text in its own configuration: leave {} out",
              asked.out.empty() ? "--out DIR" : asked.out, word);
  if (sources.preset.empty()) sources.preset = "none";
  Choice choice{{}, asked.out.empty() ? new_folder(files, name_of_text(word)) : Path(asked.out)};
  require_new(files, choice.folder);
  const std::optional<TextFolder> text = find_text(files, word, asked_for(sources), choice.folder);
  const FirstRun first =
      choose_first_run(*text, sources, {.folder = choice.folder, .device = asked.device, .dry_run = asked.dry_run});
  choice.notes = first.notes;
  choice.tokenizer = first.tokenizer;
  choice.first_run = choice.explains_end = true;
  choice.config = config::load(sources, [&](config::Config& config) {
    first.complete(config);
    model::complete_model(files)(config);
    std::ranges::move(train::complete_recipe(config), std::back_inserter(choice.notes));
  });
  if (asked.dry_run) config::stand_in_for_data(choice.config);
  return choice;
}

Choice choose(FileSystem& files, const ConfigWords& words, const TrainRequest& asked) {
  const std::string& out = asked.out;
  const bool resume = asked.resume;
  config::Sources sources = sources_of(words);
  if (resume && out.empty()) {
    const bool names_run = !sources.file.empty() && train::holds_run(files, sources.file);
    fail_user("--resume needs the run to continue: --out {}", names_run ? sources.file : "DIR, as the run printed it");
  }
  if (files.exists(out) && !std::filesystem::is_directory(out)) fail_user("--out {}: not a folder", out);
  if (std::optional<Choice> of_text = choose_for_text(files, sources, asked)) return *std::move(of_text);
  const Path run_config = Path(out) / train::kRunConfig;
  // A run that goes on and is given no configuration keeps its own. Where there is none, the built-in one is not
  // what anybody meant: the folder may be misspelt.
  const bool own = resume && sources.file.empty() && sources.preset.empty();
  if (own) {
    if (!files.exists(run_config) && !train::holds_run(files, out))
      fail_user(
          "--resume: there is no run in {}; name the folder of one, give the configuration to begin with, or leave "
          "--resume out",
          out);
    train::read_run_config(files, out);  // says what to do where it cannot be used
    sources.file = run_config.string();
    sources.of_run = true;
  }
  // A run that goes on has its model already: the folder that it began with may be gone.
  config::Complete complete = model::complete_model(files);
  if (resume && files.exists(run_config))
    complete = [&](config::Config& config) {
      if (!config.model.init_from.empty())
        model::take_model(config, train::read_run_config(files, out).model, run_config.string());
      if (!own) keep_as_begun(files, out, config);
      model::settle_family(config);
    };
  std::vector<std::string> notes;
  Choice choice{config::load(sources,
                             [&](config::Config& config) {
                               complete(config);
                               if (own) return;
                               const config::Config asked_for = config;
                               notes = train::complete_recipe(config);
                               if (!resume || !files.exists(run_config)) return;
                               // What nobody wrote, a run that goes on has as it began.
                               notes.clear();
                               const config::Config begun = train::read_run_config(files, out);
                               for (const std::string& name : config::differing_keys(asked_for, config)) {
                                 const config::Key& key = *config::find_key(name);
                                 config::assign(key, config::read(key, begun), run_config.string(), config);
                               }
                             }),
                out.empty() ? new_folder(files, name_of(sources)) : Path(out), own};
  if (!asked.dry_run) {
    config::require_data(choice.config);
  } else if (config::stand_in_for_data(choice.config)) {
    constexpr std::int64_t kStandIn = 1000;
    config::Train& t = choice.config.train;
    const bool ends = train::total_steps(t) > 0 || t.max_hours > 0;
    if (!ends) t.max_steps = kStandIn;
    notes.push_back(fmt::format(
        "data.train names nothing: random tokens take its place in a dry run{}; train will ask for it",
        ends ? "" : fmt::format(", and {} steps that of train.epochs, which are counted in the data", kStandIn)));
  }
  if (!train::holds_run(files, choice.folder)) require_new(files, choice.folder);
  choice.notes = std::move(notes);
  choice.explains_end = own && choice.config.origins.prefix({"data.train"}).starts_with(config::kChosen);
  std::string& tokenizer = choice.config.data.tokenizer;
  if (const Path kept = choice.folder / train::kTokenizer;
      resume && !choice.config.origins.on_command_line("data.tokenizer") && tokenizer.starts_with('/') &&
      !files.exists(tokenizer) && files.exists(kept)) {
    log::note("data.tokenizer: there is no {} any more; the run goes on with its own copy, {}", tokenizer,
              kept.string());
    tokenizer = kept.string();
  }
  return choice;
}

// Numbers in place of train.batch_size = "auto". A run that goes on keeps what it was given when it began; a folder
// that may not be used is refused before anything is searched.
std::string put_batch_size(train::TrainOptions& options, device::Device& device, FileSystem& files,
                           const Ranks& ranks) {
  options.batch_was_chosen = true;
  if (options.resume && files.exists(options.folder / train::kRunConfig)) {
    const config::Config begun = train::read_run_config(files, options.folder);
    config::Config shared = begun;
    shared.parallel.sequence = options.config.parallel.sequence;
    train::share_micro_batches(shared, ranks.count(), &begun, false);
    options.config = perf::adopt_batch_size(options.config, shared);
    return fmt::format("train.batch_size = auto: {}, as the run began", in_words(perf::setting_of(options.config)));
  }
  train::check_folder(options, files);
  return resolve_batch_size(options.config, device, !options.dry_run, options.stop, ranks.count(),
                            ranks.on_this_machine());
}

// The list of products that take fp8, likewise.
void put_fp8_products(train::TrainOptions& options, device::Device& device, FileSystem& files) {
  if (options.resume && files.exists(options.folder / train::kRunConfig))
    options.config = perf::adopt_fp8_products(options.config, train::read_run_config(files, options.folder));
  else
    train::check_folder(options, files);
  perf::Fp8Choice choice = perf::settle_fp8(options.config, device, !options.dry_run);
  options.config = std::move(choice.config);
  options.fp8_reasons = std::move(choice.reasons);
}

// The choice of where bytes lie, for the ranks that did not make it.
io::Json to_json(const config::Placement& p) {
  return {{"moments", p.moments},     {"moment_layers", p.moment_layers},
          {"masters", p.masters},     {"averages", p.averages},
          {"copies", p.copies},       {"gradients", p.gradients},
          {"weights", p.weights},     {"residuals", p.residuals},
          {"recompute", p.recompute}, {"recompute_layers", p.recompute_layers}};
}
config::Placement placement_of(const io::Json& json) {
  return {.moments = json.at("moments").get<bool>(),
          .masters = json.at("masters").get<bool>(),
          .averages = json.at("averages").get<bool>(),
          .moment_layers = json.at("moment_layers").get<std::int64_t>(),
          .gradients = json.at("gradients").get<bool>(),
          .weights = json.at("weights").get<bool>(),
          .residuals = json.at("residuals").get<bool>(),
          .copies = json.at("copies").get<bool>(),
          .recompute = json.at("recompute").get<std::string>(),
          .recompute_layers = json.at("recompute_layers").get<std::int64_t>()};
}

// What every rank has room for, on rank 0, which places bytes for all of them; on another rank, its own.
perf::Room room_of_all(const perf::Room& own, Ranks& ranks) {
  if (ranks.alone()) return own;
  std::vector<perf::Room> rooms = {own};
  const io::Json mine = {{"device", own.device}, {"host", own.host}, {"together", own.together}};
  for (const std::string& each : ranks.communicator()->gather(mine.dump())) {
    const io::Json json = io::Json::parse(each);
    rooms.push_back({json.at("device").get<std::int64_t>(), json.at("host").get<std::int64_t>(),
                     json.at("together").get<std::int64_t>()});
  }
  return perf::least_of(rooms);
}

// The run's folder as this command finds it. A run that ends by its user's mistake before its first step, such as a bad
// document, has nothing to keep: its files go, so that the mended command finds the folder as this one did.
class FolderAsFound final : public train::Observer {
 public:
  FolderAsFound(FileSystem& files, const Path& folder)
      : files_(files), folder_(folder), there_(files.exists(folder)), held_run_(train::holds_run(files, folder)) {
    if (there_) before_ = files.list(folder);
  }
  ~FolderAsFound() override {  // with a tokenizer for a run that did not come to be
    if (!taken_) put_back();
  }
  FolderAsFound(const FolderAsFound&) = delete;
  FolderAsFound& operator=(const FolderAsFound&) = delete;

  // Writes the tokenizer of a first run, which is all that there is of it until the run takes the folder.
  void write_tokenizer(const std::string& text) {
    wrote_tokenizer_ = true;
    files_.create_folders(first_tokenizer(folder_).parent_path());
    files_.replace(first_tokenizer(folder_), text);
  }

  void on(const train::Event& event) override {
    hear(
        event, [&](const train::Stepped&) { stepped_ = true; }, [&](const train::Saved&) { stepped_ = true; });
  }
  void took_folder() { taken_ = true; }  // one that this run has not taken may be another's by now

  // On the thread of the run, or beside it where another rank ends all.
  void put_back() const {
    if (held_run_ || stepped_ || !(taken_ || wrote_tokenizer_)) return;
    if (!taken_ && train::holds_run(files_, folder_)) return;  // another's by now
    const Path kept = folder_ / train::kTokenizer;
    const auto was_there = [&](const std::string& name) { return std::ranges::find(before_, name) != before_.end(); };
    try {
      if (!there_ && taken_) return files_.remove_all(folder_);
      if (was_there(train::kTokenizer))  // and empty (require_new)
        for (const std::string& name : files_.list(kept)) files_.remove_all(kept / name);
      for (const std::string& name : files_.list(folder_))
        if (!was_there(name) && (taken_ || name == train::kTokenizer)) files_.remove_all(folder_ / name);
      if (!there_ && files_.list(folder_).empty()) files_.remove_all(folder_);
    } catch (const std::exception& e) {  // the error that ended the run says more
      log::warn("{}: what the run left there stays: {}", folder_.string(), e.what());
    }
  }

 private:
  FileSystem& files_;
  Path folder_;
  bool there_, held_run_;
  std::atomic<bool> taken_ = false, stepped_ = false;
  bool wrote_tokenizer_ = false;
  std::vector<std::string> before_;
};

// A file called "stop" in the run's folder stops the run, as SIGTERM does: for whoever cannot reach the process, a page
// in a browser or another machine. It goes once it is heard; one that was there before the run began asks for nothing.
class StopFile final : public train::Observer {
 public:
  StopFile(FileSystem& files, const Path& folder, const StopFlag& stop)
      : files_(files), file_(folder / train::kStopFile), stop_(stop) {}
  const std::string& words() const { return words_; }  // of a run that it stopped

  void on(const train::Event& event) override {
    hear(
        event, [&](const train::Started&) { heard(); },
        [&](const train::Stepped&) {
          if (steady_seconds() < next_look_ || !heard() || stop_ != 0) return;
          words_ = fmt::format("the file {}", file_.string());
          std::raise(SIGTERM);
        });
  }

 private:
  bool heard() {
    constexpr double kBetweenLooks = 1;
    next_look_ = steady_seconds() + kBetweenLooks;
    if (!files_.exists(file_)) return false;
    try {
      files_.remove_all(file_);
    } catch (const std::exception& e) {
      log::warn("{}: cannot be removed, and is to be before the run goes on: {}", file_.string(), e.what());
    }
    return true;
  }

  FileSystem& files_;
  Path file_;
  const StopFlag& stop_;
  std::string words_;
  double next_look_ = 0;
};

// Rank 0 chooses; what the others need to know of it goes to them as words.
Choice choose_together(FileSystem& files, const ConfigWords& words, const TrainRequest& asked, Ranks& ranks) {
  if (ranks.alone()) return choose(files, words, asked);
  if (const std::string word = sources_of(words).file; !word.empty() && std::filesystem::is_directory(word))
    fail_user("{}: a folder; several ranks train with a configuration: give one, with data.train={}", word, word);
  Choice choice;
  std::string said;
  if (ranks.leads()) {
    choice = choose(files, words, asked);
    said = io::Json{{"config", config::dump(train::as_kept(choice.config))},
                    {"folder", std::filesystem::absolute(choice.folder).string()},
                    {"own_config", choice.own_config}}
               .dump();
  }
  said = ranks.broadcast(said);
  if (ranks.leads()) return choice;
  const io::Json json = io::Json::parse(said);
  return {config::parse(json.at("config").get<std::string>(), "rank 0", model::settle_family),
          json.at("folder").get<std::string>(), json.at("own_config").get<bool>()};
}

// How ranks share the state, in place of "auto".
void settle_mode(config::Config& c, device::Device& device, const Ranks& ranks, train::Observer& observer) {
  if (c.parallel.mode != "auto") return;
  const perf::RankMachine machine = perf::rank_machine(device, c.parallel, ranks.count(), ranks.on_this_machine());
  const perf::ModeChoice way = perf::choose_mode(c, machine, ranks.count());
  observer.on(train::Note{fmt::format("parallel.mode = auto: {}, {}", way.name(), way.why)});
  perf::set_mode(c, way, ranks.count());
}

// What "auto" chose when the run began stays so while it goes on with as many ranks, so that its bits do. For others it
// is open again, as it is for whoever says "auto" or names another network.
void keep_mode(config::Config& c, const config::Config* begun, std::int64_t ranks) {
  const bool as_many = begun && std::max<std::int64_t>(begun->parallel.ranks, 1) * begun->parallel.sequence == ranks;
  const bool said = c.origins.on_command_line("parallel.mode") || c.origins.on_command_line("parallel.shards");
  perf::reopen_mode(c);
  if (!as_many || said || c.parallel.mode != "auto" || c.parallel.network != begun->parallel.network) return;
  for (const char* const name : {"parallel.mode", "parallel.shards"}) {
    if (!perf::was_chosen(*begun, name)) continue;
    const config::Key& key = *config::find_key(name);
    std::string place = begun->origins.prefix({name});
    place.resize(place.size() - std::string_view(": ").size());
    config::assign(key, config::read(key, *begun), place, c);
  }
}

// Whether the session before this restart, or one of the restarts before it, went on from the step. A launcher gives
// the words that the run was begun with at every restart, and only the first of them means --from-step. Without any
// events nothing is known, and a restart that nobody typed sets no newer checkpoints aside.
bool went_back_before(FileSystem& files, const Path& run, std::int64_t step) {
  bool before = true;
  std::vector<std::string> problems;
  const Path events = run / "events.jsonl";
  report::JsonRows(files, events, problems).read_objects([&](const io::Json& row) {
    if (report::text_or(row, "kind") == "started")
      before = report::integer_or(row, "first_step", 0) == step || (before && !report::text_or(row, "restart").empty());
    return true;
  });
  return before;
}

// The end of a run for a script: "run" is what `redline report --json` says of it, null where nothing was written.
io::Json result_as_json(FileSystem& files, const Path& folder, const train::TrainResult& result) {
  constexpr const char* kOutcomes[] = {"finished", "stopped", "already finished", "dry run"};
  io::Json run = nullptr;
  if (result.outcome != train::Outcome::dry_run && files.exists(folder / "metrics.jsonl")) {
    try {
      const report::RunRecord record = report::read_run(files, folder);
      run = report::to_json(record, report::summarise(record, {}));
    } catch (const std::exception& e) {  // the run itself is done
      log::warn("--json: {}", e.what());
    }
  }
  return {{"folder", folder.string()},
          {"outcome", kOutcomes[static_cast<std::size_t>(result.outcome)]},
          {"steps", result.steps},
          {"eval_loss", result.eval_loss ? io::Json(*result.eval_loss) : io::Json(nullptr)},
          {"run", std::move(run)}};
}

int train_as(const TrainRequest& asked, const ConfigWords& words, Ranks& ranks) {
  FileSystem& files = real_files();
  train::StartLaps start(train::process_began());
  Choice choice = choose_together(files, words, asked, ranks);
  if (choice.first_run) start.lap("choices");
  if (ranks.leads()) {  // which knows where each key was written; the others hear what comes of it
    std::optional<config::Config> begun;
    if (asked.resume) begun = train::config_of_run(files, choice.folder);
    keep_mode(choice.config, begun ? &*begun : nullptr, ranks.count());
    train::require_for_ranks(choice.config, ranks.count());
    const bool given = asked.allow_change && ranks.restart().empty() &&
                       (!choice.own_config || choice.config.origins.on_command_line("train.accumulate"));
    train::share_micro_batches(choice.config, ranks.count(), begun ? &*begun : nullptr, given);
  }
  const auto device = device::open_device(asked.device);
  if (!asked.dry_run) program::load_libraries(*device);
  if (words.tier == "fastest" && device->kind() == device::Kind::cpu && choice.config.precision.matmul == "fp8")
    fail_user("--tier fastest takes products in fp8, which the CPU only simulates; use --tier fast here");
  using Asks = train::StopSignals::Asked;  // ranks stop after the same step, and drop none
  const train::StopSignals signals(ranks.alone() ? Asks::to_stop_then_to_drop : Asks::to_stop);
  const perf::Peak peak = ranks.leads() ? perf::find_peak(*device) : perf::Peak{};
  const double began = steady_seconds();
  constexpr double kWorthMeasuringAgain = 60;  // seconds of a run, of which a measurement takes less than a hundredth

  std::optional<report::Sinks> sinks;
  std::optional<FolderAsFound> as_found;
  StopFile stop_file(files, choice.folder, signals.caught());
  FirstRunEnd first_end;
  train::TrainOptions options;
  if (ranks.leads()) {
    if (!asked.dry_run) as_found.emplace(files, choice.folder);
    if (as_found && !choice.tokenizer.empty()) as_found->write_tokenizer(choice.tokenizer);
    sinks.emplace(files, choice.config, choice.folder, fmt::format("redline {}", version()), asked.dry_run,
                  asked.json ? stderr : stdout);
    options.observers = {&sinks->observer()};
    if (as_found) options.observers.insert(options.observers.end(), {&*as_found, &stop_file});
    if (choice.explains_end) options.observers.push_back(&first_end);
    if (as_found) options.took_folder = [&] { as_found->took_folder(); };
    for (const std::string& note : choice.notes) sinks->observer().on(train::Note{note});
  }
  options.config = choice.config;
  options.folder = choice.folder;
  options.resume = asked.resume;
  if (asked.from_step >= 0) options.from_step = asked.from_step;
  if (ranks.leads() && options.from_step && !ranks.restart().empty() &&
      went_back_before(files, choice.folder, *options.from_step)) {
    sinks->observer().on(
        train::Note{fmt::format("--from-step {}: the run went back there before {}; it goes on from its newest "
                                "checkpoint",
                                *options.from_step, ranks.restart())});
    options.from_step.reset();
  }
  options.allow_change = asked.allow_change;
  options.own_config = choice.own_config;
  options.dry_run = asked.dry_run;
  options.peak_flops = peak.flops;
  options.peak_source = peak.source;
  options.peak_was_measured = peak.measured;
  options.stop = &signals.caught();
  options.drop = &signals.drop();
  options.stop_words = &stop_file.words();
  const auto monitor =
      device->kind() == device::Kind::cpu || asked.dry_run ? nullptr : device::GpuMonitor::open(device->bus_id());
  options.gpu = monitor.get();
  options.start = start;
  options.start->lap("device");
  options.restart = ranks.restart();
  std::optional<Ranks::AtEnd> at_end;  // declared after what it uses; this thread's own end is below
  at_end.emplace(ranks, [&](const std::string& sentence, int status) {
    if (sinks) sinks->record_failure(sentence);
    if (as_found && status == kBadInput) as_found->put_back();
  });
  try {
    if (options.config.train.automatic_batch_size && ranks.leads())
      sinks->observer().on(train::Note{put_batch_size(options, *device, files, ranks)});
    options.start->lap("batch size");
    if (options.config.precision.matmul == "fp8" && ranks.leads()) put_fp8_products(options, *device, files);
    options.start->lap("products in fp8");
    const perf::Room room =
        room_of_all(perf::room_on(options.config, *device, std::max(ranks.on_this_machine(), 1)), ranks);
    const auto place = [&](const dist::Sharing& sharing) {
      const std::string moved = perf::place_to_fit(options.config, *device, room, sharing);
      if (!moved.empty()) sinks->observer().on(train::Note{moved});
    };
    if (ranks.alone()) place({});
    if (!ranks.alone()) {
      const auto sharing = [&] { return dist::mode_named(options.config.parallel.mode); };
      if (ranks.leads()) {
        settle_mode(options.config, *device, ranks, sinks->observer());
        place(dist::sharing_of(options.config.parallel, 0, ranks.count(), sharing()));
      }
      // What rank 0 has found in place of "auto".
      const io::Json settled = io::Json::parse(ranks.broadcast(io::Json{
          {"config", config::dump(train::as_kept(options.config))},
          {"placement", to_json(options.config.memory.placement)}}.dump()));
      if (!ranks.leads()) {
        options.config = config::parse(settled.at("config").get<std::string>(), "rank 0", model::settle_family);
        options.config.memory.placement = placement_of(settled.at("placement"));
      }
      ranks.connect(*device, options.config.parallel.timeout);
      options.team = ranks.team(sharing(), options.config.parallel);
    }
    options.start->lap("plan");
    const train::TrainResult result = train::train(options, *device, files);
    at_end.reset();
    if (sinks && peak.measured && steady_seconds() - began > kWorthMeasuringAgain)
      if (const std::string noise = perf::peaks_differ(peak, perf::find_peak(*device)); !noise.empty())
        log::note("{}", noise);
    if (result.outcome == train::Outcome::dry_run && sinks)
      sinks->observer().on(train::Finished{"dry run: nothing was trained and nothing was written"});
    if ((asked.json || choice.explains_end) && sinks) sinks.reset();  // its files are whole from here on
    if (choice.explains_end && result.outcome == train::Outcome::finished) {
      const std::string words_at_end = first_end.write(files, choice.folder, options.config);
      if (!asked.json) print(words_at_end);
    }
    if (asked.json && ranks.leads()) print_json(result_as_json(files, choice.folder, result));
    return result.outcome == train::Outcome::stopped ? kStopped : kDone;
  } catch (const UserError& e) {
    at_end.reset();
    if (sinks) sinks->record_failure(e.what());
    sinks.reset();  // its files are closed
    if (as_found) as_found->put_back();
    throw;
  } catch (const std::exception& e) {
    at_end.reset();
    if (sinks) sinks->record_failure(e.what());
    throw;
  }
}

}  // namespace

int run_train(const Words& words) {
  Arguments arguments(
      "train", "train a model; with no configuration, the built-in quick one",
      "[CONFIG | DIR] [key=value ...] [--out DIR] [--resume] [--json]",
      {"redline train", "redline train my_texts/ train.max_hours=1   a folder of text; the rest is chosen, and said",
       "redline train my.toml optim.lr=1e-3 train.max_steps=500 --out runs/a",
       "redline train --resume --out runs/a        continue a run that was stopped",
       "redline train --preset ping-95m --dry-run  memory and settings, without a step"});
  ConfigWords config;
  TrainRequest asked;
  config.declare(arguments, true);
  arguments.text("--out", "DIR", asked.out, "the run's folder (default: runs/NAME-TIME)");
  arguments.flag("--resume", asked.resume,
                 "continue the run in --out from its newest whole checkpoint; nothing else need be given again");
  arguments.integer("--from-step", "N", asked.from_step, 1, std::numeric_limits<std::int64_t>::max(),
                    "with --resume: continue from the checkpoint of step N instead; newer ones are set aside");
  arguments.flag("--allow-change", asked.allow_change,
                 "resume with another batch, other data or another precision than the run had; says what that changes");
  arguments.device(asked.device);
  arguments.flag("--dry-run", asked.dry_run, "do everything but the first step; writes nothing");
  arguments.json(asked.json, "print one JSON document at the end; what the console shows goes to standard error");
  arguments.exits(kDone, "the run is finished");
  arguments.exits(kFailed, "the machine failed, or a loss is not finite; the last checkpoint stays");
  arguments.exits(kStopped, "stopped by a signal: the steps so far are saved, and --resume goes on");
  if (!arguments.parse(words)) return kDone;
  if (asked.allow_change && !asked.resume) fail_user("--allow-change is for a run that goes on: it needs --resume");
  if (asked.from_step >= 0 && !asked.resume) fail_user("--from-step is for a run that goes on: it needs --resume");

  Ranks ranks(words);
  return ranks.run([&] { return train_as(asked, config, ranks); });
}

}  // namespace redline::cli

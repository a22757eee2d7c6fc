// The files of a checkpoint and what is in them; io/checkpoint_folder.h decides how they reach the disk.
#include "train/checkpoint.h"

#include <algorithm>
#include <list>
#include <map>
#include <numeric>

#include "base/dtype.h"
#include "base/hash.h"
#include "base/words.h"
#include "config/load.h"
#include "data/from_config.h"
#include "data/open_corpus.h"
#include "data/tokenizer/chat.h"
#include "io/checkpoint_folder.h"
#include "io/json.h"
#include "model/hf_config.h"
#include "model/state_files.h"
#include "model/weights.h"

namespace redline::train {
namespace {

constexpr int kFormat = 3;  // 1 had another state of the loader, 2 hashed the ends of the data's files alone
constexpr const char* kState = "state.json";

std::uint64_t write_text(FileSystem& files, const Path& path, const std::string& text) {
  const auto file = files.create(path);
  file->write(text);
  file->sync();
  file->close();
  return hash64(text);
}

io::Json to_json(const data::DataIdentity& d) {
  io::Json json = {{"contents", hex64(d.contents)}, {"stamp", hex64(d.stamp)}};
  if (d.whole) json["whole"] = hex64(*d.whole);
  return json;
}

std::uint64_t hash_from(const std::string& text) { return std::stoull(text, nullptr, 16); }

data::DataIdentity identity_from(const io::Json& json, const std::string& file) {
  data::DataIdentity d;
  d.contents = hash_from(io::string_at(json, "contents", file));
  d.stamp = hash_from(io::string_at(json, "stamp", file));
  if (json.contains("whole")) d.whole = hash_from(io::string_at(json, "whole", file));
  return d;
}

io::Json to_json(const EndsState& e) {
  io::Json json = {{"seconds", e.seconds}};
  if (e.best_loss)
    json.update({{"best_loss", *e.best_loss}, {"best_step", e.best_step}, {"evaluations_since", e.evaluations_since}});
  if (e.hours_over > 0) json["hours_over"] = e.hours_over;
  if (e.fitted_steps > 0) json.update({{"fitted_steps", e.fitted_steps}, {"fitted_hours", e.fitted_hours}});
  return json;
}

EndsState ends_from(const io::Json& json) {
  EndsState e;
  e.seconds = json.value("seconds", 0.0);
  if (json.contains("best_loss")) e.best_loss = json.at("best_loss").get<double>();
  e.best_step = json.value("best_step", std::int64_t{0});
  e.evaluations_since = json.value("evaluations_since", std::int64_t{0});
  e.hours_over = json.value("hours_over", 0.0);
  e.fitted_steps = json.value("fitted_steps", std::int64_t{0});
  e.fitted_hours = json.value("fitted_hours", 0.0);
  return e;
}

io::Json to_json(const data::FeedPlace& place) {
  return {{"epoch", place.epoch}, {"window", place.window}, {"ordinal", place.ordinal}, {"position", place.position}};
}

data::FeedPlace place_from(const io::Json& json, const std::string& file) {
  return {io::integer_at(json, "epoch", file), io::integer_at(json, "window", file),
          io::integer_at(json, "ordinal", file), io::integer_at(json, "position", file)};
}

io::Json to_json(const RunState& state) {
  const data::LoaderState& l = state.loader;
  io::Json waiting = io::Json::array();
  for (const data::PieceId& piece : l.waiting) {
    waiting.push_back({piece.document, piece.begin});
    if (!l.sources.empty()) waiting.back().push_back(piece.source);
  }
  io::Json loader = {{"order", l.order}};
  loader.update(to_json(l.next));
  loader.update({{"truncated_tokens", l.truncated_tokens},
                 {"empty_documents", l.empty_documents},
                 {"waiting", std::move(waiting)}});
  for (const data::SourcePlace& source : l.sources) {
    io::Json& place = loader["sources"].emplace_back(to_json(source.next));
    place["tokens"] = source.tokens;
  }
  io::Json json = {{"format", kFormat},           {"step", state.step},          {"tokens", state.tokens},
                   {"data", to_json(state.data)}, {"ends", to_json(state.ends)}, {"guard", to_json(state.guard)},
                   {"loader", std::move(loader)}};
  if (state.eval) json["eval"] = to_json(*state.eval);
  return json;
}

RunState state_from(const io::Json& json, const std::string& file) {
  const std::int64_t format = io::integer_at(json, "format", file);
  if (format < 1 || format > kFormat)
    fail_user("{}: checkpoint format {}, and this redline knows no format above {}; resume with the one that wrote it",
              file, format, kFormat);
  RunState state;
  state.step = io::integer_at(json, "step", file);
  state.tokens = io::integer_at(json, "tokens", file);
  if (json.contains("ends")) state.ends = ends_from(json.at("ends"));
  state.guard.drawn = state.step;
  if (json.contains("guard")) state.guard = guard_state_from(json.at("guard"), file);
  if (format < 3) {
    state.data.contents = hash_from(io::string_at(json, "data", file));
    state.data.ends_only = true;
    return state;
  }
  state.data = identity_from(json.at("data"), file);
  if (json.contains("eval")) state.eval = identity_from(json.at("eval"), file);
  return state;
}

data::LoaderState loader_from(const io::Json& json, const std::string& file) {
  if (const std::int64_t format = io::integer_at(json, "format", file); format < 2)
    fail_user("{}: checkpoint format {}, whose place in the data this redline cannot read", file, format);
  const io::Json& loader = json.at("loader");
  data::LoaderState l;
  l.order = loader.contains("order") ? io::integer_at(loader, "order", file) : 1;
  l.next = place_from(loader, file);
  l.truncated_tokens = io::integer_at(loader, "truncated_tokens", file);
  l.empty_documents = io::integer_at(loader, "empty_documents", file);
  for (const io::Json& piece : loader.at("waiting"))
    l.waiting.push_back({piece.at(0).get<std::int64_t>(), piece.at(1).get<std::int64_t>(),
                         piece.size() > 2 ? piece.at(2).get<std::int64_t>() : 0});
  if (loader.contains("sources"))
    for (const io::Json& source : loader.at("sources"))
      l.sources.push_back({place_from(source, file), io::integer_at(source, "tokens", file)});
  return l;
}

std::string room_in(const Path& folder) {
  std::error_code unknown;
  const std::uintmax_t bytes = std::filesystem::space(folder, unknown).available;
  return unknown ? std::string() : fmt::format(" and {} are free", in_bytes(static_cast<std::int64_t>(bytes)));
}

// Runs `write`; where the disk is full, the error says what takes the room.
template <class Write>
void with_advice_on_room(FileSystem& files, const Path& parent, std::int64_t bytes, const Write& write) {
  try {
    write();
  } catch (const MachineError& e) {
    const std::string reason = e.what();
    const auto says = [&](const char* words) { return reason.find(words) != reason.npos; };
    if (!says("o space left") && !says("quota")) throw;
    fail_machine(
        "{}: {}{}; delete what is not needed there (older checkpoints, other runs), or set checkpoint.keep and "
        "checkpoint.keep_every to keep fewer than {}, then go on with --resume",
        reason, checkpoints_in_words(bytes, 1), room_in(parent), counted(files.list(parent).size() + 1, "checkpoint"));
  }
}

// Returns read(state), or throws a UserError that names the file.
template <class Read>
auto read_state(FileSystem& files, const Path& folder, const Read& read) {
  const Path path = folder / kState;
  const io::Json json = io::read_json(files, path);
  try {
    return read(json, path.string());
  } catch (const io::Json::exception& e) {
    fail_user("{}: not the state of a run: {}", path.string(), e.what());
  } catch (const std::logic_error&) {  // a hash that is no number
    fail_user("{}: not the state of a run: a hash of the data is no number", path.string());
  }
}

}  // namespace

std::int64_t checkpoints_kept(const config::Checkpoint& settings, std::int64_t steps) {
  // Saved are the multiples of `every` and the last step, and by time any step. The newest of them stay in any case,
  // and the one before the last as that which the guard holds to be good.
  const std::int64_t every = settings.every > 0 ? settings.every : std::max<std::int64_t>(steps, 1);
  const std::int64_t saved = (steps + every - 1) / every,
                     newest = std::min(std::max<std::int64_t>(settings.keep, 2), settings.minutes > 0 ? steps : saved);
  if (settings.keep_every == 0) return newest;
  // Earlier multiples of `every` stay where they are multiples of `keep_every`: every n-th.
  const std::int64_t n = settings.keep_every / std::gcd(every, settings.keep_every);
  return newest + (saved - newest) / n;
}

std::string in_bytes(std::int64_t bytes) {
  if (bytes < 10 << 20) return fmt::format("{:.1f} KiB", static_cast<double>(bytes) * 0x1p-10);
  if (bytes < std::int64_t{1} << 30) return fmt::format("{:.1f} MiB", static_cast<double>(bytes) * 0x1p-20);
  return fmt::format("{:.2f} GiB", gib(bytes));
}

std::string checkpoints_in_words(std::int64_t bytes_of_one, std::int64_t kept) {
  const std::string all = kept > 1 ? fmt::format(", the {} that are kept {}", kept, in_bytes(kept * bytes_of_one)) : "";
  return fmt::format("a checkpoint takes {}{}", in_bytes(bytes_of_one), all);
}

RunTokens run_tokens(FileSystem& files, const config::Config& config, const data::Corpus& documents) {
  RunTokens tokens{documents.end_token(), documents.beginning().value_or(std::vector<std::int32_t>()), {}};
  const std::optional<std::string> name = data::data_tokenizer(data::corpus_options(config.data));
  if (!name) return tokens;
  const auto tokenizer = data::open_tokenizer(*name, "data.tokenizer");
  tokens.files = data::tokenizer_files(files, *name);
  const data::TokenizerFiles source = tokens.files;
  data::describe_use(tokens.files, tokenizer.get(),
                     {tokens.end, config.model.pad_token, std::max(config.model.max_positions, config.train.seq_len),
                      documents.beginning()});
  if (config.data.chat == "chatml" || config.data.chat == "llama3")  // so that others ask the model as it was taught
    data::keep_chat_template(tokens.files,
                             config.data.chat == "chatml" ? data::chatml_template() : data::llama3_template());
  tokens.kept = tokens.files;
  if (const auto json = source.find(data::kTokenizerJson); json != source.end())
    tokens.kept[data::kTokenizerJson] = json->second;
  return tokens;
}

CheckpointContent checkpoint_content(const model::Engine& engine, const config::Config& config, const RunState& state,
                                     const RunTokens& tokens) {
  CheckpointContent content;
  content.step = state.step;
  model::HfDetails details{.max_positions = std::max(config.model.max_positions, config.train.seq_len)};
  details.dtype = engine.programs().at(engine.lowered().at(optim::kParameters)).dtype;
  if (tokens.end) details.eos = *tokens.end;
  if (!tokens.beginning.empty()) details.bos = tokens.beginning.back();
  content.texts = {{"config.json", model::hf_config(config.model, details).dump(2) + "\n"},
                   {"generation_config.json", model::hf_generation(config.model, details).dump(2) + "\n"},
                   {"config.toml", config::dump(config)},
                   {kState, to_json(state).dump() + "\n"}};  // on one line: a thousand documents may wait
  for (const auto& [name, text] : tokens.files) content.texts[name] = text;
  const optim::StateTable& table = engine.lowered().state;
  for (const std::string& file : model::state_files(table))
    content.tensors[file] = model::tensors_to_write(engine.lowered(), file, engine.options().sharing.rank);
  content.bytes = model::state_bytes(table);
  return content;
}

void write_checkpoint(FileSystem& files, const Path& parent, const CheckpointContent& content,
                      const model::ReadTensors& read) {
  with_advice_on_room(files, parent, content.bytes, [&] {
    io::write_checkpoint(files, parent, content.step, [&](const Path& folder) {
      std::map<std::string, std::uint64_t> hashes;
      for (const auto& [name, text] : content.texts) hashes[name] = write_text(files, folder / name, text);
      for (const auto& [name, tensors] : content.tensors)
        hashes[name] = model::write_state(tensors, read, files, folder / name);
      return hashes;
    });
  });
}

void write_checkpoint(FileSystem& files, const Path& parent, const CheckpointContent& content,
                      const model::ReadTensors& read, io::Communicator& ranks, const OpenStretches& open) {
  const bool first = ranks.rank() == 0;
  io::SharedFill fill;
  fill.prepare = [&](const Path& folder) {
    for (const auto& [name, tensors] : content.tensors) model::make_state_file(tensors, files, folder / name);
  };
  fill.write = [&](const Path& folder) {
    std::map<std::string, io::FileHashes> hashes;
    if (first)
      for (const auto& [name, text] : content.texts)
        hashes[name] = {{0, text.size(), hex64(write_text(files, folder / name, text))}};
    for (const auto& [name, tensors] : content.tensors)
      hashes[name] = model::write_state_part(tensors, read, open, folder / name, first);
    return hashes;
  };
  with_advice_on_room(files, parent, content.bytes,
                      [&] { io::write_checkpoint(files, parent, content.step, ranks, fill); });
}

std::string missing_from_checkpoint(FileSystem& files, const Path& folder, const optim::StateTable& table) {
  const std::map<std::string, io::FileHashes> named = io::checkpoint_hashes(files, folder);
  std::vector<std::string> needed = model::state_files(table);
  needed.insert(needed.begin(), kState);
  for (const std::string& name : needed)
    if (name != optim::kFp8File && name != optim::kAverageFile && !named.contains(name))
      return fmt::format("{} names no {}", (folder / io::kManifest).string(), name);
  return {};
}

bool has_file(FileSystem& files, const Path& folder, const std::string& name) {
  return io::checkpoint_hashes(files, folder).contains(name);
}

RunState read_run_state(FileSystem& files, const Path& folder) { return read_state(files, folder, state_from); }

data::LoaderState read_loader_state(FileSystem& files, const Path& folder) {
  return read_state(files, folder, loader_from);
}

void load_tensors(const Path& folder, model::Engine& engine, const model::LoadProgress& progress,
                  const std::vector<std::string>& without) {
  const io::WeightFiles weights(real_files(), folder);
  std::vector<model::Engine::FileToLoad> all = model::weights_to_load(engine, weights);
  std::list<io::WeightFiles::File> others;  // they stay where they are
  for (const std::string& name : model::state_files(engine.lowered().state))
    if (name != io::kWeightsFile && std::ranges::find(without, name) == without.end())
      all.push_back(
          model::state_to_load(engine, others.emplace_back(io::open_hashed(real_files(), folder, name)), name));
  engine.load(all, progress);
  for (const io::WeightFiles::File& file : others) model::convert_moments(engine, *file.reader);
}

}  // namespace redline::train

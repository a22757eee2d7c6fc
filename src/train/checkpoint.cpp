// The files of a checkpoint and what is in them; io/checkpoint_folder.h decides how they reach the disk.
#include "train/checkpoint.h"

#include <algorithm>
#include <map>

#include "base/hash.h"
#include "config/load.h"
#include "io/checkpoint_folder.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/hf_config.h"

namespace redline::train {
namespace {

constexpr int kFormat = 2;  // 1 had another state of the loader
constexpr const char *kModel = "model.safetensors", *kOptimizer = "optimizer.safetensors", *kState = "state.json";
constexpr const char *kMoment1 = "exp_avg.", *kMoment2 = "exp_avg_sq.";

void add(std::vector<io::TensorToWrite>& out, const std::string& prefix, model::Engine& engine, model::Flat which) {
  const std::span<const float> flat = engine.read(which);
  for (const model::StoredParameter& p : engine.layout().stored)
    out.push_back(
        {prefix + p.name, DType::f32, p.shape,
         std::as_bytes(flat.subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.elements)))});
}

std::uint64_t write_text(FileSystem& files, const Path& path, const std::string& text) {
  const auto file = files.create(path);
  file->write(text);
  file->sync();
  file->close();
  return hash64(text);
}

io::Json to_json(const RunState& state) {
  const data::LoaderState& l = state.loader;
  io::Json waiting = io::Json::array();
  for (const auto& piece : l.waiting) waiting.push_back({piece.document, piece.begin});
  return {{"format", kFormat},
          {"step", state.step},
          {"tokens", state.tokens},
          {"data", hex64(state.data)},
          {"loader",
           {{"epoch", l.next.epoch},
            {"window", l.next.window},
            {"ordinal", l.next.ordinal},
            {"position", l.next.position},
            {"truncated_tokens", l.truncated_tokens},
            {"empty_documents", l.empty_documents},
            {"waiting", std::move(waiting)}}}};
}

RunState state_from(const io::Json& json, const std::string& file) {
  if (const std::int64_t format = io::integer_at(json, "format", file); format != kFormat)
    fail_user(
        "{}: checkpoint format {}, and this redline resumes from format {}; finish the run with the redline that "
        "began it",
        file, format, kFormat);
  RunState state;
  state.step = io::integer_at(json, "step", file);
  state.tokens = io::integer_at(json, "tokens", file);
  state.data = std::stoull(io::string_at(json, "data", file), nullptr, 16);
  const io::Json& loader = json.at("loader");
  data::LoaderState& l = state.loader;
  l.next.epoch = io::integer_at(loader, "epoch", file);
  l.next.window = io::integer_at(loader, "window", file);
  l.next.ordinal = io::integer_at(loader, "ordinal", file);
  l.next.position = io::integer_at(loader, "position", file);
  l.truncated_tokens = io::integer_at(loader, "truncated_tokens", file);
  l.empty_documents = io::integer_at(loader, "empty_documents", file);
  for (const io::Json& piece : loader.at("waiting"))
    l.waiting.push_back({piece.at(0).get<std::int64_t>(), piece.at(1).get<std::int64_t>()});
  return state;
}

model::Engine::FileToLoad moments_to_load(const io::WeightFiles::File& file, const model::Engine& engine) {
  std::map<std::string, model::Engine::FlatTarget> places;
  for (const model::StoredParameter& p : engine.layout().stored)
    for (const auto& [prefix, which] : {std::pair{kMoment1, model::Flat::moment1}, {kMoment2, model::Flat::moment2}}) {
      const io::StoredTensor& t = file.reader->at(prefix + p.name);
      if (t.shape != p.shape)
        fail_user("{}: {} has another shape than the model's {}; resume with the model that the run began with",
                  file.reader->path().string(), t.name, p.name);
      places[t.name] = {which, p.offset};
    }
  model::Engine::FileToLoad moments{&file};
  for (const io::StoredTensor& t : file.reader->tensors())
    if (const auto it = places.find(t.name); it != places.end()) {
      moments.tensors.push_back(&t);
      moments.targets.push_back(it->second);
    }
  return moments;
}

}  // namespace

void save_checkpoint(FileSystem& files, const Path& parent, model::Engine& engine, const config::Config& config,
                     const RunState& state) {
  io::write_checkpoint(files, parent, state.step, [&](const Path& folder) {
    std::map<std::string, std::uint64_t> hashes;
    const auto text = [&](const char* name, const std::string& content) {
      hashes[name] = write_text(files, folder / name, content);
    };
    const model::HfDetails details{.max_positions = std::max(config.model.max_positions, config.train.seq_len)};
    text("config.json", model::hf_config(config.model, details).dump(2) + "\n");
    text("config.toml", config::dump(config));
    text(kState, to_json(state).dump() + "\n");  // on one line: a thousand documents may wait

    std::vector<io::TensorToWrite> tensors;
    add(tensors, "", engine, model::Flat::parameters);
    hashes[kModel] = io::write_safetensors(files, folder / kModel, tensors, {{"format", "pt"}});
    tensors.clear();
    add(tensors, kMoment1, engine, model::Flat::moment1);
    add(tensors, kMoment2, engine, model::Flat::moment2);
    hashes[kOptimizer] = io::write_safetensors(files, folder / kOptimizer, tensors, {{"format", "pt"}});
    return hashes;
  });
}

std::string missing_from_checkpoint(FileSystem& files, const Path& folder) {
  const std::map<std::string, std::string> named = io::checkpoint_hashes(files, folder);
  for (const char* name : {kState, kModel, kOptimizer})
    if (!named.contains(name)) return fmt::format("{} names no {}", (folder / io::kManifest).string(), name);
  return {};
}

RunState read_run_state(FileSystem& files, const Path& folder) {
  const Path path = folder / kState;
  const io::Json json = io::read_json(files, path);
  try {
    return state_from(json, path.string());
  } catch (const io::Json::exception& e) {
    fail_user("{}: not the state of a run: {}", path.string(), e.what());
  } catch (const std::logic_error&) {  // a fingerprint that is no number
    fail_user("{}: not the state of a run: \"data\" is no fingerprint", path.string());
  }
}

void load_tensors(const Path& folder, model::Engine& engine, const model::LoadProgress& progress) {
  const io::WeightFiles weights(real_files(), folder);
  const io::WeightFiles::File moments = io::open_hashed(real_files(), folder, kOptimizer);
  std::vector<model::Engine::FileToLoad> all = model::weights_to_load(engine, weights);
  all.push_back(moments_to_load(moments, engine));
  engine.load(all, progress);
}

}  // namespace redline::train

// What stands in the two kinds of folders beside the weights.
#include "infer/hf_folders.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "infer/tokenizer_files.h"
#include "io/checkpoint_folder.h"
#include "io/new_folder.h"
#include "model/family.h"
#include "model/hf_config.h"

namespace redline::infer {
namespace {

constexpr const char *kConfig = "config.json", *kGeneration = "generation_config.json";

using Hashes = std::map<std::string, std::uint64_t>;

// An id, or a list of them, as a source's files have it; null where it is missing or is none of this model.
io::Json token_ids(const io::Json& json, const char* key, std::int64_t vocab) {
  const auto it = json.find(key);
  if (it == json.end()) return nullptr;
  const auto is_id = [&](const io::Json& id) {
    return id.is_number_integer() && id.get<std::int64_t>() >= 0 && id.get<std::int64_t>() < vocab;
  };
  if (it->is_array() ? std::ranges::all_of(*it, is_id) : is_id(*it)) return *it;
  return nullptr;
}

model::HfDetails details_of(FileSystem& files, const Checkpoint& c, const TokenizerFiles& tokenizer, DType dtype) {
  const io::Json source = io::read_json(files, c.folder / kConfig);
  model::HfDetails d{.max_positions = c.max_positions, .dtype = dtype};
  d.bos = token_ids(source, "bos_token_id", c.model.vocab);
  d.eos = token_ids(source, "eos_token_id", c.model.vocab);
  if (d.eos.is_null() && tokenizer.tokenizer && tokenizer.tokenizer->end_token())
    d.eos = *tokenizer.tokenizer->end_token();
  return d;
}

Hashes write_texts(FileSystem& files, const Checkpoint& c, const model::HfDetails& details, io::NewFolder& folder) {
  Hashes hashes;
  hashes[kConfig] = folder.write(kConfig, model::hf_config(c.model, details).dump(2) + "\n");
  if (const Path own = c.folder / kGeneration; files.exists(own)) {
    hashes[kGeneration] = folder.copy(own, kGeneration);
    return hashes;
  }
  io::Json generation = io::Json::object();
  if (!details.bos.is_null()) generation["bos_token_id"] = details.bos;
  if (!details.eos.is_null()) generation["eos_token_id"] = details.eos;
  hashes[kGeneration] = folder.write(kGeneration, generation.dump(2) + "\n");
  return hashes;
}

// All files but a manifest; the weights last, since their hash is known at their end.
Moved fill(FileSystem& files, const Checkpoint& c, io::NewFolder& folder, const WriteWeights& options, Hashes& hashes) {
  const io::WeightFiles weights = io::reading_weights([&] { return io::WeightFiles(files, c.folder); });
  io::reading_weights([&] { model::check_size(weights, c.model); });
  const model::FlatLayout layout = model::lay_out(model::family_of(c.model).table(c.model));
  const auto matched = io::reading_weights([&] { return model::match_weights(weights, c.model, layout); });
  const TokenizerFiles tokenizer = find_tokenizer_files(files, c);

  Moved moved;
  moved.note = tokenizer.note;
  hashes = write_texts(files, c, details_of(files, c, tokenizer, options.dtype), folder);
  for (const auto& [name, hash] : copy_tokenizer(tokenizer, folder)) {
    hashes[name] = hash;
    moved.tokenizer_files.push_back(name);
  }
  moved.weights = io::reading_weights([&] { return write_weights(files, folder.path(), matched, options); });
  hashes.insert(moved.weights.hashes.begin(), moved.weights.hashes.end());
  return moved;
}

}  // namespace

Moved export_model(FileSystem& files, const Checkpoint& checkpoint, const Path& out, const WriteWeights& options) {
  io::NewFolder folder(files, out, "--out");
  Hashes hashes;
  Moved moved = fill(files, checkpoint, folder, options, hashes);
  folder.complete();
  return moved;
}

Moved import_model(FileSystem& files, const Checkpoint& source, const Path& out, const WriteWeights& options) {
  io::NewFolder folder(files, out, "--out");
  WriteWeights whole = options;
  whole.dtype = DType::f32;
  whole.shard_bytes = std::numeric_limits<std::int64_t>::max();
  Hashes hashes;
  Moved moved = fill(files, source, folder, whole, hashes);
  io::write_manifest(files, folder.path(), 0, hashes);
  folder.complete();
  return moved;
}

}  // namespace redline::infer

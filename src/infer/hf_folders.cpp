// Reads and writes the files beside the weights, in both kinds of folders.
#include "infer/hf_folders.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/files.h"
#include "data/tokenizer/tokenizer_files.h"
#include "infer/model_tokenizer.h"
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

struct Tokens {
  std::shared_ptr<const data::Tokenizer> tokenizer;  // null: none, or redline cannot read it
  data::TokenizerFiles files;
  std::string note;  // why there are no files, or why they are only copied
};

// A tokenizer beside the weights goes along as it is, even one that redline cannot read.
Tokens tokens_of(FileSystem& files, const Checkpoint& c, const std::string& given) {
  Tokens tokens;
  if (given.empty() && data::holds_tokenizer(files, c.folder)) {
    tokens.files = data::tokenizer_files(files, c.folder.string());
    try {
      tokens.tokenizer = tokenizer_of(files, c, {}).tokenizer;
    } catch (const UserError& e) {
      tokens.note = fmt::format("the tokenizer's files are copied, but redline cannot read them: {}", e.what());
    }
  } else {
    const ModelTokenizer found = tokenizer_of(files, c, given);
    tokens.tokenizer = found.tokenizer;
    tokens.note = found.why_none;
    if (found.tokenizer) tokens.files = data::tokenizer_files(files, found.name);
  }
  if (tokens.tokenizer) data::require_fits(*tokens.tokenizer, c.model.vocab, c.folder.string());
  if (!tokens.files.empty() && !tokens.files.contains("tokenizer_config.json"))
    data::describe_use(
        tokens.files, tokens.tokenizer.get(),
        {tokens.tokenizer ? tokens.tokenizer->end_token() : std::nullopt, c.model.pad_token, c.max_positions});
  return tokens;
}

model::HfDetails details_of(FileSystem& files, const Checkpoint& c, const Tokens& tokens, DType dtype) {
  const io::Json source = io::read_json(files, c.folder / kConfig);
  model::HfDetails d{.max_positions = c.max_positions, .dtype = dtype};
  d.bos = token_ids(source, "bos_token_id", c.model.vocab);
  d.eos = token_ids(source, "eos_token_id", c.model.vocab);
  if (d.eos.is_null() && tokens.tokenizer && tokens.tokenizer->end_token()) d.eos = *tokens.tokenizer->end_token();
  return d;
}

Hashes write_texts(FileSystem& files, const Checkpoint& c, const model::HfDetails& details, io::NewFolder& folder) {
  Hashes hashes;
  hashes[kConfig] = folder.write(kConfig, model::hf_config(c.model, details).dump(2) + "\n");
  const Path own = c.folder / kGeneration;
  hashes[kGeneration] = files.exists(own)
                            ? folder.write(kGeneration, read_at_most(files, own, io::kMostJsonBytes))
                            : folder.write(kGeneration, model::hf_generation(c.model, details).dump(2) + "\n");
  return hashes;
}

// All files but a manifest; the weights last, since their hash is known at their end.
Transferred fill(FileSystem& files, const Checkpoint& c, const Tokens& tokens, io::NewFolder& folder,
                 const WriteWeights& options, Hashes& hashes) {
  const io::WeightFiles weights = io::reading_weights([&] { return c.weights(files); });
  io::reading_weights([&] { model::check_size(weights, c.model); });
  const model::FlatLayout layout = model::lay_out(model::family_of(c.model).table(c.model));
  const auto matched = io::reading_weights([&] { return model::match_weights(weights, c.model, layout); });

  Transferred transferred;
  transferred.note = tokens.note;
  hashes = write_texts(files, c, details_of(files, c, tokens, options.dtype), folder);
  for (const auto& [name, text] : tokens.files) {
    hashes[name] = folder.write(name, text);
    transferred.tokenizer_files.push_back(name);
  }
  transferred.weights = io::reading_weights([&] { return write_weights(files, folder.path(), matched, options); });
  hashes.insert(transferred.weights.hashes.begin(), transferred.weights.hashes.end());
  return transferred;
}

}  // namespace

Transferred export_model(FileSystem& files, const Checkpoint& checkpoint, const Path& out, const WriteWeights& options,
                         const std::string& tokenizer) {
  io::NewFolder folder(files, out, "--out");
  Hashes hashes;
  Transferred transferred = fill(files, checkpoint, tokens_of(files, checkpoint, tokenizer), folder, options, hashes);
  folder.complete();
  return transferred;
}

Transferred import_model(FileSystem& files, const Checkpoint& source, const Path& out, const WriteWeights& options) {
  io::NewFolder folder(files, out, "--out");
  WriteWeights whole = options;
  whole.dtype = DType::f32;
  whole.shard_bytes = std::numeric_limits<std::int64_t>::max();
  Hashes hashes;
  Transferred transferred = fill(files, source, tokens_of(files, source, {}), folder, whole, hashes);
  io::write_manifest(files, folder.path(), 0, hashes);
  folder.complete();
  return transferred;
}

}  // namespace redline::infer

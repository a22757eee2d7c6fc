// Writes weights, converted, in one file or in shards with an index; and the files beside them, in both kinds of
// folders.
#include "infer/hf_folders.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/thread_pool.h"
#include "data/tokenizer/tokenizer.h"
#include "io/checkpoint_folder.h"
#include "io/json.h"
#include "io/new_folder.h"
#include "io/safetensors.h"
#include "io/tensor_stream.h"
#include "model/family.h"
#include "model/hf_config.h"
#include "model/weights.h"

namespace redline::infer {
namespace {

using Shard = std::vector<io::TensorToWrite>;

std::int64_t bytes_of(const io::StoredTensor& t, DType dtype) {
  return t.elements() * static_cast<std::int64_t>(size_of(dtype));
}

std::vector<Shard> deal(std::span<const model::MatchedFile> matched, const WriteWeights& options) {
  std::vector<Shard> shards(1);
  std::int64_t size = 0;
  for (const model::MatchedFile& m : matched)
    for (const io::StoredTensor* t : m.tensors) {
      const std::int64_t bytes = bytes_of(*t, options.dtype);
      if (!shards.back().empty() && bytes > options.shard_bytes - size) {
        shards.emplace_back();
        size = 0;
      }
      shards.back().push_back({t->name, options.dtype, t->shape, {}});
      size += bytes;
    }
  return shards;
}

class Writing {
 public:
  Writing(FileSystem& files, const Path& folder, std::span<const model::MatchedFile> matched,
          const WriteWeights& options)
      : files_(files), folder_(folder), options_(options), shards_(deal(matched, options)) {
    out_.shards = shards_.size();
    for (const model::MatchedFile& m : matched)
      for (const io::StoredTensor* t : m.tensors) {
        out_.parameters += t->elements();
        out_.bytes += static_cast<std::uint64_t>(bytes_of(*t, options.dtype));
      }
  }

  void begin() {
    if (options_.progress) options_.progress(0, out_.bytes);
  }

  void stream(const model::MatchedFile& m) {
    // Elements of at least two bytes, and one that begins in the window before.
    buffer_.resize((static_cast<std::size_t>(io::kStreamWindow) / 2 + 1) * size_of(options_.dtype));
    std::size_t filled = 0;
    const auto place = [&](const io::TensorPiece& piece) {
      const std::size_t bytes = static_cast<std::size_t>(piece.count) * size_of(options_.dtype);
      return io::PiecePlace{buffer_.data() + std::exchange(filled, filled + bytes), options_.dtype};
    };
    const auto done = [&](std::span<const io::TensorPiece> pieces) {
      if (options_.stop && options_.stop->load() != 0) throw Stopped();
      const std::byte* from = buffer_.data();
      for (const io::TensorPiece& piece : pieces) {
        if (piece.first == 0) begin_tensor();
        const std::size_t bytes = static_cast<std::size_t>(piece.count) * size_of(options_.dtype);
        writer_->put({from, bytes});
        from += bytes;
        written_ += bytes;
        if (options_.progress) options_.progress(written_, out_.bytes);
      }
      filled = 0;
    };
    io::stream_tensors({*m.file->reader, m.tensors, m.file->hashes, pool_}, place, done);
  }

  WrittenWeights finish() {
    finish_shard();
    if (shards_.size() > 1) write_index();
    return std::move(out_);
  }

 private:
  std::string name_of_shard(std::size_t i) const {
    if (shards_.size() == 1) return io::kWeightsFile;
    return fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards_.size());
  }

  void begin_tensor() {
    if (writer_ && tensor_ < shards_[shard_].size()) {
      ++tensor_;
      return;
    }
    if (writer_) {
      finish_shard();
      ++shard_;
    }
    tensor_ = 1;
    writer_.emplace(files_, folder_ / name_of_shard(shard_), shards_[shard_],
                    std::map<std::string, std::string>{{"format", "pt"}});
  }

  void finish_shard() {
    out_.hashes[name_of_shard(shard_)] = writer_->finish();
    writer_.reset();
  }

  void write_index() {
    std::map<std::string, std::string> by_name;
    for (std::size_t i = 0; i < shards_.size(); ++i)
      for (const io::TensorToWrite& t : shards_[i]) by_name.emplace(t.name, name_of_shard(i));
    const io::Json index = {{"metadata", {{"total_parameters", out_.parameters}, {"total_size", out_.bytes}}},
                            {"weight_map", by_name}};
    const std::string text = index.dump(2) + "\n";
    const auto file = files_.create(folder_ / io::kWeightsIndex);
    file->write(text);
    file->sync();
    file->close();
    out_.hashes[io::kWeightsIndex] = hash64(text);
  }

  FileSystem& files_;
  const Path& folder_;
  const WriteWeights& options_;
  std::vector<Shard> shards_;
  WrittenWeights out_;
  ThreadPool pool_;
  std::vector<std::byte> buffer_;
  std::optional<io::SafetensorsWriter> writer_;
  std::size_t shard_ = 0, tensor_ = 0;  // the shard being written, and how many of its tensors have begun
  std::uint64_t written_ = 0;
};

// Writes the tensors of `matched` in their order: deals them out to shards first, then streams them from the source's
// mapping into the files, a window at a time. Bytes of the source that do not have its manifest's hash are a UserError.
WrittenWeights write_weights(FileSystem& files, const Path& folder, std::span<const model::MatchedFile> matched,
                             const WriteWeights& options) {
  Writing writing(files, folder, matched, options);
  writing.begin();
  for (const model::MatchedFile& m : matched) writing.stream(m);
  return writing.finish();
}

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
  std::vector<std::string> copied = {};  // names of those that are nobody's work but the source's
  std::string note;                      // why there are no files, or why they are only copied
};

// A tokenizer beside the weights goes along as it is, even one that redline cannot read.
Tokens tokens_of(FileSystem& files, const Checkpoint& c, const std::string& given) {
  Tokens tokens;
  bool made = false;
  ModelTokenizer found;
  if (given.empty() && data::holds_tokenizer(files, c.folder)) {
    tokens.files = data::tokenizer_files(files, c.folder.string());
    try {
      found = tokenizer_of(files, c, {});
    } catch (const UserError& e) {
      tokens.note = fmt::format("the tokenizer's files are copied, but redline cannot read them: {}", e.what());
    }
  } else {
    found = tokenizer_of(files, c, given);
    tokens.note = found.why_none;
    if (found.tokenizer) tokens.files = data::tokenizer_files(files, found.name);
    made = data::built_in_tokenizer(found.name) != nullptr;
  }
  if (!made)
    for (const auto& [name, text] : tokens.files) tokens.copied.push_back(name);
  tokens.tokenizer = found.tokenizer;
  if (tokens.tokenizer) data::require_fits(*tokens.tokenizer, c.model.vocab, c.folder.string());
  if (!tokens.files.empty() && !tokens.files.contains("tokenizer_config.json"))
    data::describe_use(
        tokens.files, tokens.tokenizer.get(),
        {tokens.tokenizer ? tokens.tokenizer->end_token() : std::nullopt, c.model.pad_token, c.max_positions});
  // The files beside a checkpoint, or those that were given, may be silent about what a run did.
  if (c.run && found.tokenizer) data::describe_beginning(tokens.files, *found.tokenizer, found.beginning);
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

Hashes write_texts(FileSystem& files, const Checkpoint& c, const model::HfDetails& details, io::NewFolder& folder,
                   std::vector<std::string>& copied) {
  Hashes hashes;
  hashes[kConfig] = folder.write(kConfig, model::hf_config(c.model, details).dump(2) + "\n");
  const std::optional<std::string> own = io::read_side_file(files, c.folder / kGeneration);
  if (own) copied.emplace_back(kGeneration);
  hashes[kGeneration] = folder.write(kGeneration, own ? *own : model::hf_generation(c.model, details).dump(2) + "\n");
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
  hashes = write_texts(files, c, details_of(files, c, tokens, options.dtype), folder, transferred.copied);
  transferred.copied.insert(transferred.copied.end(), tokens.copied.begin(), tokens.copied.end());
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
  Tokens tokens = tokens_of(files, source, {});
  const std::int64_t ids = tokens.tokenizer ? tokens.tokenizer->vocabulary() : source.model.vocab;
  if (ids < source.model.vocab)  // padding of a few is usual, a tokenizer of another model is not
    tokens.note = fmt::format("the tokenizer has {} ids, and the model {}: {} of its rows stand for no token", ids,
                              source.model.vocab, source.model.vocab - ids);
  Transferred transferred = fill(files, source, tokens, folder, whole, hashes);
  io::write_manifest(files, folder.path(), 0, hashes);
  folder.complete();
  return transferred;
}
}  // namespace redline::infer

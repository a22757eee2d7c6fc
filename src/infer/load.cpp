// Opens checkpoints for commands that do not train, and looks for their tokenizers.
#include "infer/load.h"

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "config/load.h"
#include "config/toml.h"
#include "data/from_config.h"
#include "io/checkpoint_folder.h"
#include "model/family.h"
#include "model/hf_config.h"
#include "model/weights.h"

namespace redline::infer {
namespace {

constexpr const char *kModelConfig = "config.json", *kRunConfig = "config.toml";

ModelTokenizer open_named(const std::string& name, std::string_view key) {
  return {name, data::open_tokenizer(name, key), {}};
}

ModelTokenizer own_tokenizer(FileSystem& files, const Checkpoint& c) {
  const std::string folder = c.folder.string();
  if (data::holds_tokenizer(files, c.folder)) return open_named(folder, folder);
  if (!c.run) return {{}, nullptr, fmt::format("{} holds no tokenizer", folder)};
  try {
    if (const Path of_run = parent_of(parent_of(c.folder)) / "tokenizer"; data::holds_tokenizer(files, of_run))
      return open_named(of_run.string(), of_run.string());
    if (const auto name = data::data_tokenizer(data::corpus_options(c.run->data)))
      return open_named(*name, "data.tokenizer");
  } catch (const UserError& e) {
    fail_user("{}: the tokenizer that the model was trained with is not to be found ({}); name it with --tokenizer",
              folder, e.what());
  }
  return {{}, nullptr, fmt::format("{}: the tokens that the model was trained on stand for no known text", folder)};
}

// A run says it in its settings; with "auto" its checkpoints keep, beside their tokenizer, what it came to, as any
// Hugging Face folder does.
std::vector<std::int32_t> beginning_of(const Checkpoint& c, const data::Tokenizer& tokenizer) {
  return data::document_marks(tokenizer, c.run ? c.run->data.bos : "auto", "data.bos").begin;
}

}  // namespace

Checkpoint open_checkpoint(FileSystem& files, const Path& argument) {
  return read_checkpoint(files, io::find_weights_folder(files, argument));
}

void use_checkpoint(FileSystem& files, const Path& argument, const std::function<void(const Checkpoint&)>& use,
                    bool average) {
  io::find_weights_folder(files, argument, [&](const Path& folder) {
    Checkpoint c = read_checkpoint(files, folder);
    c.average = average;
    if (average && !files.exists(folder / optim::kAverageFile))
      fail_user("--average: {} holds no average of its weights ({}); leave --average out, or train with train.average",
                folder.string(), optim::kAverageFile);
    use(c);
  });
}

io::WeightFiles Checkpoint::weights(FileSystem& files) const {
  return average ? io::WeightFiles(files, folder, optim::kAverageFile) : io::WeightFiles(files, folder);
}

Checkpoint read_checkpoint(FileSystem& files, const Path& folder) {
  Checkpoint c;
  c.folder = folder;
  c.model = model::read_hf_config(files, folder / kModelConfig);
  c.max_positions = c.model.max_positions;
  if (const Path run = folder / kRunConfig; files.exists(run))
    c.run = config::parse(read_at_most(files, run, config::kMostTomlBytes), run.string(), model::settle_family);
  return c;
}

void check_size(const Checkpoint& c) { model::check_size(c.weights(real_files()), c.model); }

std::unique_ptr<model::Engine> load_engine(const Checkpoint& checkpoint, const model::LoweringOptions& options,
                                           device::Device& device, const model::LoadProgress& progress) {
  const io::WeightFiles weights = io::reading_weights([&] {
    io::WeightFiles opened = checkpoint.weights(real_files());
    model::check_size(opened, checkpoint.model);
    return opened;
  });
  auto engine = std::make_unique<model::Engine>(checkpoint.model, options, device);
  io::reading_weights([&] { model::load_weights(*engine, weights, progress); });
  return engine;
}

ModelTokenizer tokenizer_of(FileSystem& files, const Checkpoint& c, const std::string& given) {
  if (given.empty()) {
    ModelTokenizer found = own_tokenizer(files, c);
    if (found.tokenizer) found.beginning = beginning_of(c, *found.tokenizer);
    return found;
  }
  ModelTokenizer named = open_named(given, "--tokenizer"), own;
  named.beginning = beginning_of(c, *named.tokenizer);
  try {
    own = own_tokenizer(files, c);
  } catch (const UserError& e) {  // that is what it is given for
    if (data::holds_tokenizer(files, c.folder))
      log::warn("--tokenizer {} cannot be held against the model's own, which redline cannot read: {}", given,
                e.what());
    return named;
  }
  if (own.tokenizer && !data::covers(*own.tokenizer, *named.tokenizer))
    fail_user(
        "--tokenizer {}: the model of {} was trained with another one ({}), and ids of this one stand for other text "
        "there; leave --tokenizer out",
        given, c.folder.string(), own.tokenizer->name());
  if (own.tokenizer) named.beginning = beginning_of(c, *own.tokenizer);
  return named;
}

ModelTokenizer require_tokenizer(FileSystem& files, const Checkpoint& c, const std::string& given) {
  ModelTokenizer found = tokenizer_of(files, c, given);
  if (!found.tokenizer)
    fail_user(
        "{}; name one with --tokenizer: a tokenizer.json, a sentencepiece .model, a folder with one, bytes or ping",
        found.why_none);
  data::require_fits(*found.tokenizer, c.model.vocab, c.folder.string());
  return found;
}
}  // namespace redline::infer

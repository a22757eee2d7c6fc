// Opens checkpoints for commands that do not train.
#include "infer/load.h"

#include "config/load.h"
#include "io/checkpoint_folder.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/family.h"
#include "model/hf_config.h"

namespace redline::infer {
namespace {

constexpr const char *kModelConfig = "config.json", *kWeights = "model.safetensors", *kRunConfig = "config.toml";
constexpr std::int64_t kUsualPositions = 2048;  // what transformers takes for LLaMA when config.json is silent

std::int64_t read_max_positions(FileSystem& files, const Path& path) {
  const io::Json json = io::read_json(files, path);
  if (!json.contains("max_position_embeddings")) return kUsualPositions;
  const std::int64_t positions = io::integer_at(json, "max_position_embeddings", path.string());
  if (positions < 1) fail_user("{}: max_position_embeddings is {}; it must be at least 1", path.string(), positions);
  return positions;
}

}  // namespace

Checkpoint open_checkpoint(FileSystem& files, const Path& argument) {
  return read_checkpoint(files, io::find_weights_folder(files, argument));
}

Checkpoint read_checkpoint(FileSystem& files, const Path& folder) {
  Checkpoint c;
  c.folder = folder;
  c.model = model::read_hf_config(files, folder / kModelConfig);
  c.max_positions = read_max_positions(files, folder / kModelConfig);
  if (const Path run = folder / kRunConfig; files.exists(run)) c.run = config::parse(files.read(run), run.string());
  return c;
}

// In doubles: untrusted extents multiply past 64 bits.
void check_size(const Checkpoint& c) {
  const io::SafetensorsReader file(c.folder / kWeights);
  double held = 0, asked = 0;
  for (const io::StoredTensor& t : file.tensors()) held += static_cast<double>(t.elements());
  const bool too_deep = c.model.layers > static_cast<std::int64_t>(file.tensors().size());
  if (!too_deep) {
    for (const model::ParameterSpec& p : model::family_of(c.model).table(c.model)) {
      double elements = 1;
      for (int i = 0; i < p.shape.rank(); ++i) elements *= static_cast<double>(p.shape[i]);
      asked += elements;
    }
  }
  if (too_deep || asked > held)
    fail_user("{} holds {} tensors with {} elements, fewer than {} describes", (c.folder / kWeights).string(),
              file.tensors().size(), static_cast<std::int64_t>(held), kModelConfig);
}

std::unique_ptr<model::Engine> load_engine(const Checkpoint& checkpoint, const model::LoweringOptions& options,
                                           device::Device& device) {
  check_size(checkpoint);
  auto engine = std::make_unique<model::Engine>(checkpoint.model, options, device);
  model::load_weights(*engine, checkpoint.folder);
  return engine;
}

}  // namespace redline::infer

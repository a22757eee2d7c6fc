// Opens checkpoints for commands that do not train.
#include "infer/load.h"

#include "base/files.h"
#include "config/load.h"
#include "config/toml.h"
#include "io/checkpoint_folder.h"
#include "model/family.h"
#include "model/hf_config.h"
#include "model/weights.h"

namespace redline::infer {
namespace {

constexpr const char *kModelConfig = "config.json", *kRunConfig = "config.toml";

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

}  // namespace redline::infer

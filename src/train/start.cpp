// Opens the weights of model.init_from and holds them, and the tokenizer beside them, against the run.
#include "train/start.h"

#include "base/error.h"
#include "io/checkpoint_folder.h"
#include "model/family.h"
#include "model/weights.h"

namespace redline::train {
namespace {

// What of the tokenizer beside the weights does not go with the run's data; empty when all of it does.
std::string tokenizer_problem(const Path& folder, const config::Config& config, const data::Corpus& corpus) {
  std::shared_ptr<const data::Tokenizer> own;
  try {
    own = data::open_tokenizer(folder.string(), folder.string());
  } catch (const UserError& e) {
    return fmt::format("the tokenizer beside the weights cannot be read ({}); make sure that the data have its ids",
                       e.what());
  }
  data::require_fits(*own, config.model.vocab, folder.string());
  std::string name;
  try {
    name = data::data_tokenizer(config.data);
  } catch (const UserError&) {
    return {};  // the data stand for no text
  }
  const auto used = data::open_tokenizer(name, "data.tokenizer");
  // Token files of other programs do not say which tokenizer made them; then only their vocabulary speaks.
  if (config.data.tokenizer.empty() && name == "bytes" && corpus.vocabulary() > used->vocabulary()) return {};
  if (used->fingerprint() == own->fingerprint()) return {};
  return fmt::format(
      "the data are read with the tokenizer {}, and {} has another one ({}): the weights know its ids, not these; set "
      "data.tokenizer, or prepare the data with it",
      used->name(), folder.string(), own->name());
}

}  // namespace

void load_start(const config::Config& config, const data::Corpus& corpus, const TrainOptions& options,
                FileSystem& files, const std::function<void(const io::WeightFiles&)>& load) {
  const config::Model& m = config.model;
  std::string problem;
  const Path start = io::find_weights_folder(files, m.init_from, [&](const Path& folder) {
    const io::WeightFiles weights = io::reading_weights([&] {
      io::WeightFiles opened(files, folder);
      model::check_size(opened, m);
      model::match_weights(opened, m, model::lay_out(model::family_of(m).table(m)));
      return opened;
    });
    problem = data::holds_tokenizer(files, folder) ? tokenizer_problem(folder, config, corpus) : std::string();
    load(weights);
  });
  for (Observer* o : options.observers) {
    o->note(fmt::format("starting from the weights in {}", start.string()));
    if (!problem.empty()) o->warning(problem);
  }
}

}  // namespace redline::train

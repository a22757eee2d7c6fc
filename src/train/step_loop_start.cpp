// Where a run's weights come from when it does not start from random ones: a checkpoint of its own, or the folder of
// model.init_from. They, and the tokenizer beside them, are held against the run. Also whether its programs can make
// its first steps.
#include "base/error.h"
#include "base/words.h"
#include "data/from_config.h"
#include "io/checkpoint_folder.h"
#include "model/family.h"
#include "model/fp8_linears.h"
#include "model/weights.h"
#include "train/step_loop.h"

namespace redline::train {
namespace {

// Why the tokenizer beside the weights does not fit the run's data; empty where it does.
std::string tokenizer_problem(const Path& folder, const config::Config& config) {
  std::shared_ptr<const data::Tokenizer> own;
  try {
    own = data::open_tokenizer(folder.string(), folder.string());
  } catch (const UserError& e) {
    return fmt::format("the tokenizer beside the weights cannot be read ({}); make sure that the data have its ids",
                       e.what());
  }
  data::require_fits(*own, config.model.vocab, folder.string());
  const std::optional<std::string> name = data::data_tokenizer(data::corpus_options(config.data));
  if (!name) return {};  // the data stand for no known text
  const auto used = data::open_tokenizer(*name, "data.tokenizer");
  if (data::covers(*own, *used)) return {};
  return fmt::format(
      "the data are read with the tokenizer {}, and {} has another one ({}): the weights know its ids, not these; set "
      "data.tokenizer, or prepare the data with it",
      used->name(), folder.string(), own->name());
}

}  // namespace

void StepLoop::load_checkpoint(const Path& folder, const config::Config* before) {
  std::string problem;
  if (!lowering_.fp8.empty()) {
    if (!has_file(files_, folder, optim::kFp8File))
      problem = "has no scales of fp8 products";
    else if (before && model::fp8_products(*before).taken != lowering_.fp8)
      problem = "has scales of other fp8 products";
  }
  std::string no_average;
  if (lowering_.average) {
    if (!has_file(files_, folder, optim::kAverageFile))
      no_average = "has no average of the weights";
    else if (before && before->train.average != config_.train.average)
      no_average = "has an average of another kind";
  }
  std::vector<std::string> without;
  if (!problem.empty()) without.push_back(optim::kFp8File);
  if (!no_average.empty()) without.push_back(optim::kAverageFile);
  load_tensors(folder, *engine_, tell_loading(), without);
  if (!problem.empty())
    keeper_.tell(Note{fmt::format("{} {}: they are found anew, on the first batch", folder.string(), problem)});
  if (!no_average.empty())
    keeper_.tell(Note{fmt::format("{} {}: it begins with the weights as they are", folder.string(), no_average)});
}

// Of a run they are those of its newest checkpoint that is whole (io/checkpoint_folder.h).
void StepLoop::load_start() {
  const config::Model& m = config_.model;
  if (m.init_from.empty()) return;
  std::string problem;
  const Path start = io::find_weights_folder(files_, m.init_from, [&](const Path& folder) {
    const io::WeightFiles weights = io::reading_weights([&] {
      io::WeightFiles opened(files_, folder);
      model::check_size(opened, m);
      model::match_weights(opened, m, model::lay_out(model::family_of(m).table(m)));
      return opened;
    });
    problem = data::holds_tokenizer(files_, folder) ? tokenizer_problem(folder, config_) : "";
    if (!trains()) return;
    make_engine();
    io::reading_weights([&] { model::load_weights(*engine_, weights, tell_loading()); });  // moments are zero
  });
  keeper_.tell(Note{fmt::format("starting from the weights in {}", start.string())});
  if (!problem.empty()) keeper_.tell(Warning{problem});
}

// With several micro-steps, ranks add gradients up in the last of them, which is none of the first.
void StepLoop::require_programs() const {
  const config::Train& t = config_.train;
  if (alone() || options_.team.sharing.mode == dist::Mode::fsdp || t.accumulate_from != 1 || t.accumulate == 1) return;
  fail_user(
      "{}train.accumulate_from = 1 is for runs on one rank, or with parallel.mode = \"fsdp\": {} of a step add their "
      "gradients up behind its last micro-batch; give 2 or more, and train.batch_size smaller",
      config_.origins.prefix({"train.accumulate_from"}), counted(ranks(), "rank"));
}

}  // namespace redline::train

// Opens the sets of data.eval and asks the engine for the loss of each.
#include "train/held_out.h"

#include "data/from_config.h"

namespace redline::train {

HeldOut::HeldOut(const config::Data& data, data::BatchShape shape, const dist::Sharing& sharing) {
  for (const data::HeldOutSet& set : data::held_out_sets(data::corpus_options(data))) {
    data::LoaderOptions options = data::evaluation_options(data, shape);
    options.rank = sharing.rank;
    options.ranks = sharing.ranks;
    auto loader = std::make_unique<data::Loader>(data::open_held_out_corpus(set.corpus), options);
    const data::Corpus& corpus = loader->corpus();
    sets_.push_back({set.name, std::move(loader), model::BytesOfIds(corpus)});
  }
  named_ = sets_.size() > 1 || sets_[0].name != data::kUnnamedSet;
}

std::vector<const data::Corpus*> HeldOut::corpora() const {
  std::vector<const data::Corpus*> all;
  for (const Set& set : sets_) all.push_back(&set.loader->corpus());
  return all;
}

std::vector<HeldOutLoss> HeldOut::evaluate(model::Engine& engine, std::int64_t batches,
                                           const std::function<void(std::int64_t, std::int64_t)>& progress,
                                           io::Communicator* ranks, bool first_alone) {
  std::vector<HeldOutLoss> losses;
  for (const Set& set : sets_) {
    set.loader->restore({});
    const model::Evaluation e = model::evaluate(engine, *set.loader, batches, progress, {}, ranks, &set.bytes);
    HeldOutLoss& of = losses.emplace_back(HeldOutLoss{set.name, e.loss, {}});
    if (e.why_no_bytes.empty()) of.bits_per_byte = e.bits_per_byte();
    if (first_alone) break;
  }
  return losses;
}

}  // namespace redline::train

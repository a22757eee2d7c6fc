// Sums losses over batches; the mean is taken over pairs, not over batches, so that packing does not change it.
#include "model/evaluate.h"

#include <unordered_set>

namespace redline::model {

Evaluation evaluate(Engine& engine, data::Loader& loader, std::int64_t batches,
                    const std::function<void(std::int64_t, std::int64_t)>& progress,
                    const std::function<void(const data::Batch&)>& seen) {
  Evaluation total;
  double sum = 0;
  std::unordered_set<std::int64_t> documents;
  data::Batch batch(engine.batch_shape());
  const auto wanted = [&] { return batches == 0 || total.batches < batches; };
  while (wanted() && loader.next(batch)) {
    engine.upload(batch);
    sum += engine.evaluate();
    total.pairs += batch.pairs;
    total.tokens += batch.real_tokens;
    documents.insert(batch.sources.begin(), batch.sources.end());
    ++total.batches;
    if (seen) seen(batch);
    if (progress) progress(total.batches, batches);
  }
  if (total.pairs == 0)
    fail_user("the held-out data holds no token pairs to predict; give documents of at least 2 tokens");
  total.documents = static_cast<std::int64_t>(documents.size());
  total.loss = sum / static_cast<double>(total.pairs);
  return total;
}

}  // namespace redline::model

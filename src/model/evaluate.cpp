// Sums losses over batches; the mean is taken over pairs, not over batches, so that packing does not change it.
#include "model/evaluate.h"

namespace redline::model {

Evaluation evaluate(Engine& engine, data::Loader& loader, std::int64_t batches,
                    const std::function<void(std::int64_t, std::int64_t)>& progress) {
  Evaluation total;
  double sum = 0;
  data::Batch batch(engine.batch_shape());
  const auto wanted = [&] { return batches == 0 || total.batches < batches; };
  while (wanted() && loader.next(batch)) {
    engine.upload(batch);
    sum += engine.evaluate();
    total.pairs += batch.pairs;
    total.tokens += batch.real_tokens;
    total.documents += batch.documents;
    ++total.batches;
    if (progress) progress(total.batches, batches);
  }
  if (total.pairs == 0)
    fail_user("the held-out data holds no token pairs to predict; give documents of at least 2 tokens");
  total.loss = sum / static_cast<double>(total.pairs);
  return total;
}

}  // namespace redline::model

// Sums losses over batches; the mean is taken over pairs, not over batches, so that packing does not change it.
#include "model/evaluate.h"

#include <cmath>
#include <cstring>
#include <unordered_set>

namespace redline::model {
namespace {

struct Sums {
  double loss = 0;
  std::int64_t pairs = 0, tokens = 0, batches = 0, documents = 0;
  std::int64_t bytes = 0, unknown = 0;  // of the targets' text; targets whose bytes are not known

  void add_bytes(const data::Batch& batch, const data::TokenCounts& here, const std::vector<std::int32_t>& of_id) {
    for (std::int64_t i = here.first; i < here.first + here.real_tokens; ++i) {
      const std::int32_t target = batch.targets[static_cast<std::size_t>(i)];
      if (target == data::kNoTarget) continue;
      const std::int32_t n = of_id[static_cast<std::size_t>(target)];
      if (n == data::Tokenizer::kUnknownBytes)
        ++unknown;
      else
        bytes += n;
    }
  }
};
using Documents = std::unordered_set<std::int64_t>;

// The sums of all ranks, added from rank 0 on: the same bits on each.
Sums add_up(const Sums& mine, const Documents& documents, io::Communicator& ranks) {
  const auto bytes = [](const Sums& s) { return std::string(reinterpret_cast<const char*>(&s), sizeof s); };
  std::string words = bytes(mine);
  for (const std::int64_t id : documents) words.append(reinterpret_cast<const char*>(&id), sizeof id);
  Sums total;
  Documents together;  // a document may have pieces in batches of several ranks
  for (const std::string& rank : ranks.gather(words)) {
    Sums s;
    REDLINE_CHECK(rank.size() >= sizeof s, "a rank sent {} bytes of sums", rank.size());
    std::memcpy(static_cast<void*>(&s), rank.data(), sizeof s);
    for (std::size_t at = sizeof s; at + sizeof(std::int64_t) <= rank.size(); at += sizeof(std::int64_t)) {
      std::int64_t id = 0;
      std::memcpy(&id, rank.data() + at, sizeof id);
      together.insert(id);
    }
    total.loss += s.loss;
    total.pairs += s.pairs;
    total.tokens += s.tokens;
    total.batches += s.batches;
    total.bytes += s.bytes;
    total.unknown += s.unknown;
  }
  total.documents = static_cast<std::int64_t>(together.size());
  const std::string received = ranks.broadcast(bytes(total));
  REDLINE_CHECK(received.size() == sizeof total, "rank 0 sent {} bytes of sums", received.size());
  std::memcpy(static_cast<void*>(&total), received.data(), sizeof total);
  return total;
}

}  // namespace

BytesOfIds::BytesOfIds(const data::Corpus& corpus) : bytes(corpus.bytes_of_ids()) {
  if (!bytes) why_not = fmt::format("the tokens of {} stand for no known text", corpus.name());
}

double Evaluation::bits_per_byte() const {
  return loss * static_cast<double>(pairs) / std::log(2.0) / static_cast<double>(bytes);
}

Evaluation evaluate(Engine& engine, data::Loader& loader, std::int64_t batches,
                    const std::function<void(std::int64_t, std::int64_t)>& progress,
                    const std::function<void(const data::Batch&)>& seen, io::Communicator* ranks,
                    const BytesOfIds* bytes) {
  Sums sums;
  Documents documents;
  data::Batch batch(engine.batch_shape());
  const dist::Sharing& sharing = engine.options().sharing;  // of its rows
  const std::int64_t many = ranks ? ranks->ranks() / sharing.sequence : 1;
  const std::int64_t rank = ranks ? ranks->rank() / sharing.sequence : 0;
  // Round after round; in the last one some ranks may have nothing that counts, and compute it all the same: the others
  // may need their part of the weights.
  for (std::int64_t first = 0; (batches == 0 || first < batches) && loader.next(batch); first += many) {
    engine.upload(batch);
    const double loss = engine.evaluate();
    if (batches > 0 && first + rank >= batches) continue;
    const data::TokenCounts here = engine.counts_here(batch);
    sums.loss += loss;
    sums.pairs += here.pairs;
    sums.tokens += here.real_tokens;
    sums.batches += batch.documents > 0 && sharing.part() == 0 ? 1 : 0;
    documents.insert(batch.sources.begin(), batch.sources.end());
    if (bytes && bytes->bytes) sums.add_bytes(batch, here, *bytes->bytes);
    if (seen) seen(batch);
    if (progress) progress(batches > 0 ? std::min(first + many, batches) : first + many, batches);
  }
  sums.documents = static_cast<std::int64_t>(documents.size());
  if (ranks) sums = add_up(sums, documents, *ranks);
  if (sums.pairs == 0)
    fail_user(
        "the held-out data holds no token pairs to predict; give documents of at least 2 tokens, and conversations "
        "whose "
        "answers begin within a row (train.seq_len)");
  std::string why_not = bytes ? bytes->why_not : "they were not counted";
  if (why_not.empty() && sums.unknown > 0) why_not = "some tokens stand for text that their tokenizer does not know";
  if (why_not.empty() && sums.bytes == 0) why_not = "no text was predicted";
  return {sums.loss / static_cast<double>(sums.pairs),
          sums.pairs,
          sums.tokens,
          sums.batches,
          sums.documents,
          sums.bytes,
          why_not};
}

}  // namespace redline::model

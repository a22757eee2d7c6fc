// Computes held-out loss, in the same way for a trainer between steps and for a command on a checkpoint.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/loader.h"
#include "io/communicator.h"
#include "model/engine.h"

namespace redline::model {

struct Evaluation {
  double loss = 0;  // mean over all pairs
  std::int64_t pairs = 0, tokens = 0, batches = 0;
  std::int64_t documents = 0;  // of the source: pieces of one count once
  std::int64_t bytes = 0;      // of the text that was predicted, where it can be counted
  std::string why_no_bytes;    // where it cannot

  double bits_per_byte() const;  // where it can
};

// The bytes of text that each id stands for. It is made once, since a tokenizer is asked for every id of its
// vocabulary.
struct BytesOfIds {
  explicit BytesOfIds(const data::Corpus& corpus);
  std::optional<std::vector<std::int32_t>> bytes;  // empty where tokens stand for no known text
  std::string why_not;
};

// Evaluates up to `batches` batches (0: all) from where the loader stands. The loader must not repeat
// (data::evaluation_options), so that no text counts twice. Ranks evaluate their own batches of the loader's rounds, or
// their part of a group's, and all get the sums of all. Bytes are counted only with `bytes`.
Evaluation evaluate(Engine& engine, data::Loader& loader, std::int64_t batches,
                    const std::function<void(std::int64_t done, std::int64_t of)>& progress,
                    const std::function<void(const data::Batch&)>& seen = {},  // every batch that counts here
                    io::Communicator* ranks = nullptr, const BytesOfIds* bytes = nullptr);

}  // namespace redline::model

// Held-out loss: the same figure for a trainer between steps and for a command on a checkpoint.
#pragma once

#include <functional>

#include "data/loader.h"
#include "io/together.h"
#include "model/engine.h"

namespace redline::model {

struct Evaluation {
  double loss = 0;  // mean over all pairs
  std::int64_t pairs = 0, tokens = 0, batches = 0;
  std::int64_t documents = 0;  // of the source: pieces of one count once
};

// Up to `batches` batches (0: all) from where the loader stands. It must not repeat (data::evaluation_options): no text
// counts twice. On several ranks each evaluates its batches of the loader's rounds, and all get the sums of all.
Evaluation evaluate(Engine& engine, data::Loader& loader, std::int64_t batches,
                    const std::function<void(std::int64_t done, std::int64_t of)>& progress,
                    const std::function<void(const data::Batch&)>& seen = {},  // every batch that counts here
                    io::Together* ranks = nullptr);

}  // namespace redline::model

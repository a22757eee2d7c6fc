// The data.* keys of a configuration as the options of this room. Nothing else in data/ reads a configuration.
#pragma once

#include "config/config.h"
#include "data/loader.h"
#include "data/open_corpus.h"
#include "data/packer.h"

namespace redline::data {

CorpusOptions corpus_options(const config::Data& data);
PackerSettings packer_settings(const config::Data& data, BatchShape shape);

// `computes_on_cpu`: the model takes the same cores, so fewer workers are the default.
LoaderOptions loader_options(const config::Data& data, BatchShape shape, bool computes_on_cpu);

// For held-out documents: once over all pieces, in the calling thread. No setting changes their order, which mixes all
// documents (those of a stream: of a window), so that the first batches are a fair sample of the whole.
LoaderOptions evaluation_options(const config::Data& data, BatchShape shape);

// The same settings, with paths that mean the same from any working directory.
config::Data with_absolute_paths(config::Data data);

}  // namespace redline::data

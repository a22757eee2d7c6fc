// The data.* keys of a configuration as the options of this room. Nothing else in data/ reads a configuration.
#pragma once

#include "base/files.h"
#include "config/config.h"
#include "data/loader.h"
#include "data/open_corpus.h"
#include "data/packer.h"

namespace redline::data {

CorpusOptions corpus_options(const config::Data& data);
// With the model's vocabulary, where anything says it, which tells uint16 ids from wider ones, and with the length of
// a row.
CorpusOptions corpus_options(const config::Config& config);

// model.vocab, where nothing says it: the vocabulary of the data's tokenizer, or of a header. Token files that bring
// neither are a UserError. Without data.train it stays the default.
void settle_vocabulary(config::Config& config);

// data.tokenizer, where it is empty and data.train is text: that of the folder that the weights come from. A folder
// without one is a UserError, unless its model can be one of bytes.
void settle_tokenizer(config::Config& config, FileSystem& files, const Path& weights);

PackerSettings packer_settings(const config::Data& data, BatchShape shape);

// `computes_on_cpu`: the model takes the same cores, so fewer workers are the default.
LoaderOptions loader_options(const config::Data& data, BatchShape shape, bool computes_on_cpu);

// For held-out documents: once over all pieces, or over the first up to so many tokens, in the calling thread. No
// setting changes their order, which mixes all documents (those of a stream: of a window), so that the first are a fair
// sample of the whole; and none but seq_len, data.long_documents and the tokens changes which pieces they are.
LoaderOptions evaluation_options(const config::Data& data, BatchShape shape, std::int64_t most_tokens = 0);

// The same settings, with paths that mean the same from any working directory.
config::Data with_absolute_paths(config::Data data);

}  // namespace redline::data

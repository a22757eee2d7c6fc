// The corpus that a configuration names: how it is opened, and with which tokenizer it is read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "config/config.h"
#include "data/corpus.h"
#include "data/tokenizer/tokenizer.h"

namespace redline::data {

// The training documents of a configuration, and its held-out ones (data.eval, or a part of the training source that
// training never sees). Bad paths and empty files are a UserError. "ping" is the generated corpus; a file of
// that name is "./ping". With data.weights either is a Mixture (data/mixture.h) of the entries of data.train. Entries
// of data.eval are paths here: held_out_sets() has taken their names away.
std::unique_ptr<Corpus> open_training_source(const config::Data& data);
std::unique_ptr<Corpus> open_held_out_source(const config::Data& data);

// A name and a path: "web=c4.jsonl" is the path c4.jsonl of the set "web", any other text a path of the set "eval".
// Names have letters, digits, - and _, so that a path with a slash before its first '=' has none.
struct NamedPath {
  std::string name, path;
};
inline constexpr const char* kUnnamedSet = "eval";
NamedPath named_path(const std::string& entry);

// What is evaluated on apart: entries of data.eval that have one name, in the order of the first of each. Without
// data.eval there is one set, "eval", a part of the training data.
struct HeldOutSet {
  std::string name;
  config::Data data;  // for open_held_out_source()
};
std::vector<HeldOutSet> held_out_sets(const config::Data& data);

// How documents stand in text files and .jsonl, as a configuration says.
InputFormat input_format(const config::Data& data);

// What the text of a configuration's data becomes tokens with, as open_tokenizer() takes it: data.tokenizer, the one
// that a folder was prepared with, or what generated data and plain text have. Nothing where the tokens stand for no
// known text; data that are not there, and without which nobody knows, are a UserError.
std::optional<std::string> data_tokenizer(const config::Data& data);

// The same data, with paths that mean the same from any working directory.
config::Data with_absolute_paths(config::Data data);

// Token ids index the embedding: a source whose vocabulary is larger than the model's is a UserError.
void require_vocabulary(const Corpus& source, std::int64_t model_vocab, const config::Origins& origins = {});

}  // namespace redline::data

// Tells apart what entries name, and reads the manifest of each prepared folder once.
#include "data/open_corpus.h"

#include <algorithm>
#include <cctype>
#include <span>

#include "base/error.h"
#include "base/words.h"
#include "data/generated.h"
#include "data/input/text_input.h"
#include "data/mixture.h"
#include "data/shards/token_files.h"
#include "data/stream.h"
#include "data/text.h"
#include "data/tokenizer/chat.h"

namespace redline::data {
namespace {

constexpr const char* kTrain = "data.train";

// The training entries of a corpus that is no mixture: all of them, or one of a mixture's.
struct TrainingEntries {
  std::vector<DataPath> paths;
  std::string tokenizer;  // that was asked for; for text in a mixture, the mixture's
};

std::vector<std::string> names_of(const std::vector<DataPath>& paths) {
  std::vector<std::string> names;
  for (const DataPath& path : paths) names.push_back(path.path);
  return names;
}

bool is_ping(const std::vector<DataPath>& paths, const std::string& key) {
  const auto count = std::ranges::count(paths, "ping", &DataPath::path);
  if (count > 0 && paths.size() > 1)
    fail_user("{}: \"ping\" is generated and stands alone; a file of that name is ./ping", key);
  return count > 0;
}

// "random:VOCABULARY" alone; training and held-out tokens differ by their seed.
std::unique_ptr<DocumentSource> open_random(const std::vector<DataPath>& paths, const std::string& key,
                                            std::int64_t seed) {
  if (paths.size() != 1) return nullptr;
  const std::optional<std::int64_t> vocabulary = random_vocabulary(paths[0].path, key);
  return vocabulary ? make_random_tokens(seed, *vocabulary) : nullptr;
}

// The tokenizer of text: the one that was asked for, else that of the first of these folders. Empty: nothing says.
std::string text_tokenizer(const std::string& asked, std::span<const DataPath> train) {
  std::string name = asked;
  for (const DataPath& entry : train) {
    if (!entry.prepared) continue;
    const PreparedFolder& folder = *entry.prepared;
    if (name.empty()) name = folder.tokenizer();
    if (asked.empty() || open_tokenizer(asked, "data.tokenizer")->fingerprint() == folder.manifest.tokenizer_hash)
      continue;
    fail_user("data.tokenizer is \"{}\", but {} was prepared with {}; leave data.tokenizer empty, or prepare it again",
              asked, folder.path.string(), folder.manifest.tokenizer_name);
  }
  return name;
}
std::string text_tokenizer(const TrainingEntries& entries) {
  return text_tokenizer(entries.tokenizer,
                        std::span(entries.paths).first(std::min<std::size_t>(entries.paths.size(), 1)));
}

// The wanted documents of the files.
struct Wanted {
  std::string key;
  Part part = Part::all;
  bool evaluation = false;
};

// Ready-made tokens; or text as bytes, with random access, unless anything about it asks for documents to be found and
// tokenized. `asked` was asked for, and `name` is the tokenizer that this comes to.
std::unique_ptr<Corpus> open_files(const CorpusOptions& options, std::vector<DataPath> paths, const Wanted& wanted,
                                   const std::string& asked, const std::string& name) {
  const auto& [key, part, evaluation] = wanted;
  const std::vector<std::string> names = names_of(paths);
  if (auto source = open_token_files(std::move(paths), {key, part, evaluation, options.seed, name, {}})) return source;
  const bool has_stream = needs_stream(names, key);
  if (!has_stream && (name.empty() || name == "bytes") && options.input.separator.empty())
    return open_text(names, key, part, options.seed, asked == "bytes");
  if (has_stream && name.empty())
    fail_user(
        "{}: .jsonl, .parquet and compressed files need a tokenizer; set data.tokenizer (a tokenizer.json, or "
        "\"bytes\")",
        key);
  const std::string opened = name.empty() ? "bytes" : name;
  const auto tokenizer = open_tokenizer(opened, "data.tokenizer");
  const auto chat = has_stream ? open_chat(options.chat, opened, *tokenizer, "data.chat") : nullptr;
  return open_stream({.paths = names,
                      .key = key,
                      .format = options.input,
                      .tokenizer = tokenizer,
                      .part = part,
                      .seed = static_cast<std::uint64_t>(options.seed),
                      .skip_bad = options.skip_bad,
                      .chat = chat});
}

// data.chat is about lines of JSON. Without any it would say nothing, and every token would be learned.
void require_conversations(const std::string& chat, const std::vector<DataPath>& train) {
  if (chat == "none") return;
  const auto has_some = [](const DataPath& entry) {
    if (entry.path == "ping" || random_vocabulary(entry.path, kTrain)) return false;
    if (entry.prepared) return !entry.prepared->manifest.chat.empty();
    return !are_token_files({entry.path}, kTrain) &&
           std::ranges::any_of(expand_paths({entry.path}, kTrain), is_json_lines);
  };
  if (std::ranges::none_of(train, has_some))
    fail_user(
        "data.chat is \"{}\", but data.train has neither .jsonl files nor data prepared with --chat, so that there are "
        "no conversations; name some, or leave data.chat at none",
        chat);
}

std::optional<std::string> tokenizer_of(const TrainingEntries& entries) {
  const std::vector<DataPath>& paths = entries.paths;
  if (is_ping(paths, kTrain)) return "ping";
  if (paths.size() == 1 && random_vocabulary(paths[0].path, kTrain)) return {};
  if (const std::string name = text_tokenizer(entries); !name.empty()) return name;
  if (are_token_files(names_of(paths), kTrain)) return {};
  return "bytes";
}

// The entries of a mixture, each by itself.
std::vector<TrainingEntries> entries_of(const CorpusOptions& options, std::vector<DataPath> train) {
  const std::string tokenizer = text_tokenizer(options.tokenizer, train);
  std::vector<TrainingEntries> entries;
  for (DataPath& entry : train) {
    const bool own = entry.path == "ping" || random_vocabulary(entry.path, kTrain) || entry.prepared;
    TrainingEntries& one = entries.emplace_back();
    one.paths.push_back(std::move(entry));
    one.tokenizer = own ? options.tokenizer : tokenizer;
  }
  return entries;
}

// Ids of two tokenizers would stand for two texts. Returns the first entry whose tokenizer is known.
std::size_t require_one_tokenizer(const std::vector<TrainingEntries>& entries) {
  std::optional<std::size_t> first;
  std::string name;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::optional<std::string> own = tokenizer_of(entries[i]);
    if (!own || own == name) continue;
    if (!first) {
      first = i;
      name = *own;
    } else if (open_tokenizer(*own, "data.tokenizer")->fingerprint() !=
               open_tokenizer(name, "data.tokenizer")->fingerprint()) {
      fail_user(
          "data.train: {} is read with the tokenizer {} and {} with {}, so that one id would stand for two texts; give "
          "entries of a mixture that have one tokenizer",
          entries[*first].paths[0].path, name, entries[i].paths[0].path, *own);
    }
  }
  return first.value_or(0);
}

using OpenEntries = std::unique_ptr<Corpus>(const CorpusOptions& options, TrainingEntries entries);

std::unique_ptr<Corpus> open_mixture(const CorpusOptions& options, std::vector<DataPath> train, OpenEntries* open) {
  if (options.weights.size() != train.size())
    fail_user("data.weights has {} and data.train {}; give one weight for each",
              counted(options.weights.size(), "weight"), counted(train.size(), "path"));
  std::vector<TrainingEntries> entries = entries_of(options, std::move(train));
  const std::vector<std::string> names = names_of_entries(options.train);
  const std::size_t speaks = require_one_tokenizer(entries);
  std::vector<Mixture::Part> parts;
  for (std::size_t i = 0; i < entries.size(); ++i)
    parts.push_back({names[i], options.weights[i], open(options, std::move(entries[i]))});
  return std::make_unique<Mixture>(std::move(parts), speaks);
}

std::unique_ptr<Corpus> open_training_entries(const CorpusOptions& options, TrainingEntries entries) {
  if (is_ping(entries.paths, kTrain)) {
    if (!entries.tokenizer.empty() && entries.tokenizer != "ping")
      fail_user("data.tokenizer is \"{}\", but \"ping\" is made of tokens already; leave data.tokenizer empty",
                entries.tokenizer);
    return make_ping(options.seed, options.documents, Part::training);
  }
  if (auto random = open_random(entries.paths, kTrain, options.seed)) return random;
  const std::string name = text_tokenizer(entries);
  return open_files(options, std::move(entries.paths),
                    {kTrain, options.eval.empty() ? Part::training : Part::all, false}, entries.tokenizer, name);
}

// Held-out documents that are generated; null: the paths are files.
std::unique_ptr<Corpus> open_generated(const CorpusOptions& options, const std::vector<DataPath>& paths,
                                       const std::string& key) {
  if (is_ping(paths, key)) return make_ping(options.seed, 0, Part::held_out);
  return open_random(paths, key, ~options.seed);
}

// The tokenizer of text for evaluation: the first training entry tells it; of a mixture, the first that knows one.
std::string evaluation_tokenizer(const CorpusOptions& options) {
  std::vector<std::string> telling = options.train;
  if (options.weights.empty()) telling.resize(std::min<std::size_t>(telling.size(), 1));
  return text_tokenizer(options.tokenizer, data_paths(telling, kTrain));
}

// A part of the training entries, which training never sees.
std::unique_ptr<Corpus> open_held_out_part(const CorpusOptions& options, TrainingEntries entries) {
  if (auto generated = open_generated(options, entries.paths, kTrain)) return generated;
  const std::string name = text_tokenizer(entries);
  return open_files(options, std::move(entries.paths), {kTrain, Part::held_out, true}, entries.tokenizer, name);
}

}  // namespace

std::unique_ptr<Corpus> open_training_corpus(const CorpusOptions& options) {
  std::vector<DataPath> train = data_paths(options.train, kTrain);
  require_conversations(options.chat, train);
  if (!options.weights.empty()) return open_mixture(options, std::move(train), open_training_entries);
  return open_training_entries(options, {std::move(train), options.tokenizer});
}

std::unique_ptr<Corpus> open_held_out_corpus(const CorpusOptions& options) {
  if (options.eval.empty()) {
    std::vector<DataPath> train = data_paths(options.train, kTrain);
    if (!options.weights.empty()) return open_mixture(options, std::move(train), open_held_out_part);
    return open_held_out_part(options, {std::move(train), options.tokenizer});
  }
  std::vector<DataPath> paths = data_paths(options.eval, "data.eval");
  if (auto generated = open_generated(options, paths, "data.eval")) return generated;
  return open_files(options, std::move(paths), {"data.eval", Part::all, true}, options.tokenizer,
                    evaluation_tokenizer(options));
}

std::optional<std::string> data_tokenizer(const CorpusOptions& options) {
  if (options.weights.empty()) {  // the first entry tells it: the manifests of others are not looked at
    std::vector<DataPath> train;
    for (const std::string& path : options.train)
      train.push_back(train.empty() ? data_paths({path}, kTrain)[0] : DataPath{path});
    return tokenizer_of({std::move(train), options.tokenizer});
  }
  for (const TrainingEntries& entry : entries_of(options, data_paths(options.train, kTrain)))
    if (const auto name = tokenizer_of(entry)) return name;
  return {};
}

NamedPath named_path(const std::string& entry) {
  const std::size_t equals = entry.find('=');
  const auto of_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_'; };
  if (equals == entry.npos || equals == 0 ||
      !std::all_of(entry.begin(), entry.begin() + static_cast<std::ptrdiff_t>(equals), of_name))
    return {kUnnamedSet, entry};
  return {entry.substr(0, equals), entry.substr(equals + 1)};
}

std::vector<HeldOutSet> held_out_sets(const CorpusOptions& options) {
  if (options.eval.empty()) return {{kUnnamedSet, options}};
  std::vector<HeldOutSet> sets;
  for (const std::string& entry : options.eval) {
    const auto [name, path] = named_path(entry);
    if (path.empty()) fail_user("data.eval: \"{}\" names a set and no path; write NAME=PATH", entry);
    auto set = std::ranges::find(sets, name, &HeldOutSet::name);
    if (set == sets.end()) {
      set = sets.insert(sets.end(), {name, options});
      set->corpus.eval.clear();
    }
    set->corpus.eval.push_back(path);
  }
  return sets;
}

void require_vocabulary(const Corpus& corpus, std::int64_t model_vocab, std::string_view where) {
  if (corpus.vocabulary() > model_vocab)
    fail_user("{}model.vocab is {}, but the data ({}) has a vocabulary of {}; set model.vocab to at least that", where,
              model_vocab, corpus.name(), corpus.vocabulary());
}

}  // namespace redline::data

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

// The entries of a corpus that is no mixture: all of a key, or one of a mixture's.
struct Entries {
  std::vector<DataPath> paths;
  std::string asked;  // the tokenizer that was asked for; for text in a mixture, the mixture's
};

// The wanted documents of the entries.
struct Wanted {
  std::string key;  // that names them
  Part part = Part::all;
  bool evaluation = false;
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
std::string text_tokenizer(const Entries& entries) {
  return text_tokenizer(entries.asked, std::span(entries.paths).first(std::min<std::size_t>(entries.paths.size(), 1)));
}

// Ready-made tokens; or text as bytes, with random access, unless anything about it asks for documents to be found and
// tokenized. `name` is the tokenizer that the one asked for comes to.
std::unique_ptr<Corpus> open_files(Entries entries, const std::string& name, const Wanted& wanted,
                                   const ReadOptions& read) {
  const auto& [key, part, evaluation] = wanted;
  const std::vector<std::string> names = names_of(entries.paths);
  if (auto source = open_token_files(std::move(entries.paths), {key, part, evaluation, read.seed, name, {}}))
    return source;
  const bool has_stream = needs_stream(names, key);
  if (!has_stream && (name.empty() || name == "bytes") && read.input.separator.empty())
    return open_text(names, key, part, read.seed, entries.asked == "bytes");
  if (has_stream && name.empty())
    fail_user(
        "{}: .jsonl, .parquet and compressed files need a tokenizer; set data.tokenizer (a tokenizer.json, or "
        "\"bytes\")",
        key);
  const std::string opened = name.empty() ? "bytes" : name;
  const auto tokenizer = open_tokenizer(opened, "data.tokenizer");
  const auto chat = has_stream ? open_chat(read.chat, opened, *tokenizer, "data.chat") : nullptr;
  return open_stream({.paths = names,
                      .key = key,
                      .format = read.input,
                      .tokenizer = tokenizer,
                      .part = part,
                      .seed = static_cast<std::uint64_t>(read.seed),
                      .skip_bad = read.skip_bad,
                      .chat = chat});
}

// Training and held-out documents that are generated differ by their seed or their part. Null: the entries are files.
std::unique_ptr<Corpus> open_generated(const Entries& entries, const Wanted& wanted, const ReadOptions& read) {
  if (is_ping(entries.paths, wanted.key)) {
    if (wanted.evaluation) return make_ping(read.seed, 0, Part::held_out);
    if (!entries.asked.empty() && entries.asked != "ping")
      fail_user("data.tokenizer is \"{}\", but \"ping\" is made of tokens already; leave data.tokenizer empty",
                entries.asked);
    return make_ping(read.seed, read.documents, Part::training);
  }
  if (entries.paths.size() != 1) return nullptr;
  const std::optional<std::int64_t> vocabulary = random_vocabulary(entries.paths[0].path, wanted.key);
  return vocabulary ? make_random_tokens(wanted.evaluation ? ~read.seed : read.seed, *vocabulary) : nullptr;
}

std::unique_ptr<Corpus> open_entries(Entries entries, const Wanted& wanted, const ReadOptions& read) {
  if (auto generated = open_generated(entries, wanted, read)) return generated;
  const std::string name = text_tokenizer(entries);
  return open_files(std::move(entries), name, wanted, read);
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

std::optional<std::string> tokenizer_of(const Entries& entries) {
  const std::vector<DataPath>& paths = entries.paths;
  if (is_ping(paths, kTrain)) return "ping";
  if (paths.size() == 1 && random_vocabulary(paths[0].path, kTrain)) return {};
  if (const std::string name = text_tokenizer(entries); !name.empty()) return name;
  if (are_token_files(names_of(paths), kTrain)) return {};
  return "bytes";
}

// The entries of a mixture, each by itself.
std::vector<Entries> mixed_entries(std::vector<DataPath> train, const std::string& asked) {
  const std::string tokenizer = text_tokenizer(asked, train);
  std::vector<Entries> entries;
  for (DataPath& entry : train) {
    const bool own = entry.path == "ping" || random_vocabulary(entry.path, kTrain) || entry.prepared;
    Entries& one = entries.emplace_back();
    one.paths.push_back(std::move(entry));
    one.asked = own ? asked : tokenizer;
  }
  return entries;
}

// Ids of two tokenizers would stand for two texts. Returns the first entry whose tokenizer is known.
std::size_t require_one_tokenizer(const std::vector<Entries>& entries) {
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

// The wanted part of data.train: of a mixture, that of each entry.
std::unique_ptr<Corpus> open_train(const CorpusOptions& options, std::vector<DataPath> train, const Wanted& wanted) {
  if (options.weights.empty()) return open_entries({std::move(train), options.tokenizer}, wanted, options.read);
  if (options.weights.size() != train.size())
    fail_user("data.weights has {} and data.train {}; give one weight for each",
              counted(options.weights.size(), "weight"), counted(train.size(), "path"));
  std::vector<Entries> entries = mixed_entries(std::move(train), options.tokenizer);
  const std::vector<std::string> names = names_of_entries(options.train);
  const std::size_t speaks = require_one_tokenizer(entries);
  std::vector<Mixture::Part> parts;
  for (std::size_t i = 0; i < entries.size(); ++i)
    parts.push_back({names[i], options.weights[i], open_entries(std::move(entries[i]), wanted, options.read)});
  return std::make_unique<Mixture>(std::move(parts), speaks);
}

}  // namespace

std::unique_ptr<Corpus> open_training_corpus(const CorpusOptions& options) {
  if (options.train.empty()) fail_user("{} is empty: name what to read", kTrain);
  std::vector<DataPath> train = data_paths(options.train, kTrain);
  require_conversations(options.read.chat, train);
  return open_train(options, std::move(train), {kTrain, options.eval.empty() ? Part::training : Part::all, false});
}

std::unique_ptr<Corpus> open_held_out_corpus(const CorpusOptions& options) {
  if (options.eval.empty())
    return open_train(options, data_paths(options.train, kTrain), {kTrain, Part::held_out, true});
  const Wanted wanted{"data.eval", Part::all, true};
  Entries entries{data_paths(options.eval, wanted.key), options.tokenizer};
  if (auto generated = open_generated(entries, wanted, options.read)) return generated;
  // The first training entry tells the tokenizer of text; of a mixture, the first that knows one.
  std::vector<std::string> telling = options.train;
  if (options.weights.empty()) telling.resize(std::min<std::size_t>(telling.size(), 1));
  const std::string name = text_tokenizer(options.tokenizer, data_paths(telling, kTrain));
  return open_files(std::move(entries), name, wanted, options.read);
}

std::optional<std::string> data_tokenizer(const CorpusOptions& options) {
  if (options.weights.empty()) {  // the first entry tells it: the manifests of others are not looked at
    std::vector<DataPath> train;
    for (const std::string& path : options.train)
      train.push_back(train.empty() ? data_paths({path}, kTrain)[0] : DataPath{path});
    return tokenizer_of({std::move(train), options.tokenizer});
  }
  for (const Entries& entry : mixed_entries(data_paths(options.train, kTrain), options.tokenizer))
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

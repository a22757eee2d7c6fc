// Tells apart what entries name, and reads the manifest of each prepared folder once.
#include "data/open_corpus.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/words.h"
#include "data/generated.h"
#include "data/input/text_input.h"
#include "data/mixture.h"
#include "data/roles.h"
#include "data/shards/token_files.h"
#include "data/stream.h"
#include "data/text.h"
#include "data/tokenizer/chat.h"

namespace redline::data {
namespace {

constexpr const char *kTrain = "data.train", *kEval = "data.eval";

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

// Ready-made tokens stay as they are, so that data.bos must fit them. Folders of older programs have no token before
// their documents, which a word tells where the tokenizer's own library would put one.
void check_prepared_beginning(const PreparedFolder& folder, const std::string& bos, bool evaluation) {
  const std::optional<std::vector<std::int32_t>> begin = folder.beginning();
  const std::string path = folder.path.string();
  if (begin && begin->empty() == (bos == "always") && bos != "auto")
    fail_user(
        "data.bos is {}, but {} was prepared {} the token that begins a text; leave data.bos at auto, or prepare it "
        "again with --bos {}",
        bos, path, begin->empty() ? "without" : "with", bos);
  if (bos != "auto" || evaluation || folder.manifest.beginning || !folder.manifest.chat.empty()) return;
  const Path file = tokenizer_file(folder.tokenizer());
  if (file.empty() || !real_files().exists(file)) return;
  const auto tokenizer = open_tokenizer(folder.tokenizer(), "data.train");
  if (const std::vector<std::int32_t> own = tokenizer->beginning(); !own.empty())
    log::warn(
        "{} was prepared by an older redline, without {} before each document, which {} puts before a text; it is read "
        "as it is, and so are prompts: prepare it again to have it, or set data.bos=none to say that it is meant so",
        path, tokenizer->written(own.back()), tokenizer->name());
}

// Ready-made tokens; or text as bytes, with random access, unless anything about it asks for documents to be found and
// tokenized. `name` is the tokenizer that the one asked for comes to.
std::unique_ptr<Corpus> open_files(Entries entries, const std::string& name, const Wanted& wanted,
                                   const ReadOptions& read) {
  const auto& [key, part, evaluation] = wanted;
  const std::vector<std::string> names = names_of(entries.paths);
  const bool prepared = std::ranges::any_of(entries.paths, [](const DataPath& p) { return p.prepared.has_value(); });
  for (const DataPath& entry : entries.paths)
    if (entry.prepared) check_prepared_beginning(*entry.prepared, read.bos, evaluation);
  if (auto source = open_token_files(std::move(entries.paths), {.key = key,
                                                                .part = part,
                                                                .evaluation = evaluation,
                                                                .seed = read.seed,
                                                                .tokenizer = name,
                                                                .type = read.token_type,
                                                                .vocabulary = read.vocabulary})) {
    if (!prepared && read.bos == "always" && source->beginning().value_or(std::vector<std::int32_t>()).empty())
      fail_user("data.bos is always, but {} ({}) are tokens already, and stay as they are; leave data.bos at auto", key,
                source->name());
    return source;
  }
  const bool has_stream = needs_stream(names, key);
  if (!has_stream && (name.empty() || name == "bytes") && read.input.separator.empty()) {
    document_marks(*open_tokenizer("bytes", key), read.bos, "data.bos");  // which "bytes" may not have
    return open_text(names, key, part, read.seed, entries.asked == "bytes");
  }
  if (has_stream && name.empty())
    fail_user(
        "{}: .jsonl, .parquet and compressed files need a tokenizer; set data.tokenizer (a tokenizer.json, or "
        "\"bytes\")",
        key);
  const std::string opened = name.empty() ? "bytes" : name;
  const auto tokenizer = open_tokenizer(opened, "data.tokenizer");
  const auto chat = has_stream ? open_chat(read.chat, opened, *tokenizer, "data.chat") : nullptr;
  InputFormat format = read.input;
  format.any_bytes = entries.asked == "bytes";
  return open_stream({.paths = names,
                      .key = key,
                      .format = format,
                      .tokenizer = tokenizer,
                      .part = part,
                      .seed = static_cast<std::uint64_t>(read.seed),
                      .skip_bad = read.skip_bad,
                      .chat = chat,
                      .bos = read.bos});
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
  return vocabulary ? make_random_tokens(wanted.evaluation ? ~read.seed : read.seed, *vocabulary, read.row) : nullptr;
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
        "no conversations (those in Parquet are to be written as .jsonl); name some, or leave data.chat at none",
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

// The files of an entry of data.train, by their roles where names have some.
struct TrainEntry {
  std::string name;
  std::optional<RoleSplit> roles;

  std::vector<std::string> paths() const { return roles ? roles->train : std::vector{name}; }
  bool holds_out() const { return roles && !roles->held_out.empty(); }
};

std::vector<TrainEntry> train_entries(const CorpusOptions& options) {
  std::vector<TrainEntry> entries;
  for (const std::string& name : options.train)
    entries.push_back({name, options.roles ? split_by_role(name, kTrain) : std::nullopt});
  return entries;
}

// Of data.eval: of a folder with roles, the files to validate with, or those to test with where there are none.
std::vector<std::string> eval_paths(const CorpusOptions& options) {
  std::vector<std::string> paths;
  for (const std::string& name : options.eval) {
    const std::optional<RoleSplit> roles = options.roles ? split_by_role(name, kEval) : std::nullopt;
    std::vector<std::string> own = {name};
    if (roles && !roles->evaluated().empty()) own = roles->evaluated();
    paths.insert(paths.end(), own.begin(), own.end());
  }
  return paths;
}

// The entries of a mixture, each by itself.
std::vector<Entries> mixed_entries(std::vector<std::vector<DataPath>> train, const std::string& asked) {
  std::vector<DataPath> all;
  for (const std::vector<DataPath>& paths : train) all.insert(all.end(), paths.begin(), paths.end());
  const std::string tokenizer = text_tokenizer(asked, all);
  std::vector<Entries> entries;
  for (std::vector<DataPath>& paths : train) {
    const DataPath& first = paths[0];
    const bool own = first.path == "ping" || random_vocabulary(first.path, kTrain) || first.prepared;
    entries.push_back({std::move(paths), own ? asked : tokenizer});
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

// The paths of an entry that hold the wanted part of its documents, which becomes all of them where files have roles.
std::vector<DataPath> paths_of_part(const TrainEntry& entry, Part& part) {
  if (!entry.holds_out() || part == Part::all) return data_paths(entry.paths(), kTrain);
  return data_paths(std::exchange(part, Part::all) == Part::held_out ? entry.roles->held_out : entry.paths(), kTrain);
}

// The wanted part of data.train: of a mixture, that of each entry.
std::unique_ptr<Corpus> open_train(const CorpusOptions& options, const std::vector<TrainEntry>& train,
                                   const Wanted& wanted) {
  if (options.weights.empty()) {
    // One corpus is held out by names or as a part, not both.
    const bool by_name = wanted.part != Part::all && std::ranges::any_of(train, &TrainEntry::holds_out);
    Wanted all = wanted;
    if (by_name) all.part = Part::all;
    std::vector<DataPath> paths;
    for (const TrainEntry& entry : train) {
      if (by_name && wanted.part == Part::held_out && !entry.holds_out()) continue;
      Part part = by_name ? wanted.part : Part::all;
      std::ranges::move(paths_of_part(entry, part), std::back_inserter(paths));
    }
    return open_entries({std::move(paths), options.tokenizer}, all, options.read);
  }
  if (options.weights.size() != train.size())
    fail_user("data.weights has {} and data.train {}; give one weight for each",
              counted(options.weights.size(), "weight"), counted(train.size(), "path"));
  std::vector<std::vector<DataPath>> paths;
  std::vector<Wanted> of_entry(train.size(), wanted);
  for (std::size_t i = 0; i < train.size(); ++i) paths.push_back(paths_of_part(train[i], of_entry[i].part));
  std::vector<Entries> entries = mixed_entries(std::move(paths), options.tokenizer);
  const std::vector<std::string> names = names_of_entries(options.train);
  const std::size_t speaks = require_one_tokenizer(entries);
  std::vector<Mixture::Part> parts;
  for (std::size_t i = 0; i < entries.size(); ++i)
    parts.push_back({names[i], options.weights[i], open_entries(std::move(entries[i]), of_entry[i], options.read)});
  for (const Mixture::Part& a : parts)
    for (const Mixture::Part& b : parts) require_same_beginning(*a.corpus, a.name, *b.corpus, b.name);
  return std::make_unique<Mixture>(std::move(parts), speaks);
}

// Of a corpus that is no mixture the first entry tells the tokenizer: the manifests of others are not looked at.
std::vector<DataPath> telling_paths(const CorpusOptions& options) {
  std::vector<DataPath> paths;
  for (const std::string& path : training_paths(options))
    paths.push_back(paths.empty() ? data_paths({path}, kTrain)[0] : DataPath{path});
  return paths;
}

std::vector<std::vector<DataPath>> paths_of_entries(const CorpusOptions& options) {
  std::vector<std::vector<DataPath>> paths;
  for (const TrainEntry& entry : train_entries(options)) paths.push_back(data_paths(entry.paths(), kTrain));
  return paths;
}

}  // namespace

std::unique_ptr<Corpus> open_training_corpus(const CorpusOptions& options) {
  if (options.train.empty()) fail_user("{} is empty: name what to read", kTrain);
  const std::vector<TrainEntry> train = train_entries(options);
  if (options.read.chat != "none")
    require_conversations(options.read.chat, data_paths(training_paths(options), kTrain));
  return open_train(options, train, {kTrain, options.eval.empty() ? Part::training : Part::all, false});
}

std::unique_ptr<Corpus> open_held_out_corpus(const CorpusOptions& options) {
  if (options.eval.empty()) return open_train(options, train_entries(options), {kTrain, Part::held_out, true});
  const Wanted wanted{kEval, Part::all, true};
  Entries entries{data_paths(eval_paths(options), wanted.key), options.tokenizer};
  if (auto generated = open_generated(entries, wanted, options.read)) return generated;
  // The first training entry tells the tokenizer of text; of a mixture, the first that knows one.
  std::vector<std::string> telling = training_paths(options);
  if (options.weights.empty()) telling.resize(std::min<std::size_t>(telling.size(), 1));
  const std::string name = text_tokenizer(options.tokenizer, data_paths(telling, kTrain));
  return open_files(std::move(entries), name, wanted, options.read);
}

bool has_held_out_files(const CorpusOptions& options) {
  return !options.eval.empty() || std::ranges::any_of(train_entries(options), &TrainEntry::holds_out);
}

std::vector<std::string> training_paths(const CorpusOptions& options) {
  std::vector<std::string> all;
  for (const TrainEntry& entry : train_entries(options)) std::ranges::move(entry.paths(), std::back_inserter(all));
  return all;
}

std::vector<Path> training_files(const CorpusOptions& options) {
  std::vector<Path> files;
  for (const DataPath& path : data_paths(training_paths(options), kTrain)) {
    if (path.path == "ping" || random_vocabulary(path.path, kTrain)) continue;
    if (!path.prepared) {
      std::ranges::move(expand_paths({path.path}, kTrain), std::back_inserter(files));
      continue;
    }
    for (const Shard& shard : path.prepared->manifest.train.shards)
      files.push_back(path.prepared->path / shard.token_file.name);
  }
  return files;
}

std::vector<std::string> roles_in_words(const CorpusOptions& options) {
  std::vector<std::string> sentences;
  for (const TrainEntry& entry : train_entries(options))
    if (entry.roles)
      sentences.push_back(in_words(*entry.roles, entry.name, kTrain,
                                   options.eval.empty() ? RoleUse::train_and_hold_out : RoleUse::train));
  for (const std::string& entry : options.eval) {
    const std::string path = named_path(entry).path;
    const std::optional<RoleSplit> roles = options.roles ? split_by_role(path, kEval) : std::nullopt;
    if (roles && !roles->evaluated().empty()) sentences.push_back(in_words(*roles, path, kEval, RoleUse::evaluate));
  }
  return sentences;
}

bool is_text_of_no_tokenizer(const CorpusOptions& options) {
  if (!options.tokenizer.empty() || options.train.empty()) return false;
  const auto is_text = [](const std::vector<DataPath>& paths) {
    return !is_ping(paths, kTrain) && !random_vocabulary(paths[0].path, kTrain) &&
           !are_token_files(names_of(paths), kTrain);
  };
  if (options.weights.empty()) return is_text(telling_paths(options));
  const std::vector<std::vector<DataPath>> entries = paths_of_entries(options);
  const auto is_prepared = [](const std::vector<DataPath>& paths) { return paths[0].prepared.has_value(); };
  return std::ranges::any_of(entries, is_text) && std::ranges::none_of(entries, is_prepared);
}

std::optional<std::int64_t> data_vocabulary(const CorpusOptions& options) {
  if (const auto name = data_tokenizer(options)) return open_tokenizer(*name, "data.tokenizer")->vocabulary();
  std::optional<std::int64_t> largest;
  for (const std::string& path : training_paths(options)) {
    const std::optional<std::int64_t> own =
        random_vocabulary(path, kTrain) ? random_vocabulary(path, kTrain) : vocabulary_of_headers(path, kTrain);
    if (!own) return {};
    largest = std::max(largest.value_or(0), *own);
  }
  return largest;
}

std::optional<std::string> data_tokenizer(const CorpusOptions& options) {
  if (options.weights.empty()) return tokenizer_of({telling_paths(options), options.tokenizer});
  for (const Entries& entry : mixed_entries(paths_of_entries(options), options.tokenizer))
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

void require_vocabulary(const Corpus& corpus, std::int64_t model_vocab, std::string_view where,
                        std::string_view init_from) {
  if (corpus.vocabulary() <= model_vocab) return;
  const bool known = corpus.bytes_of_ids().has_value();  // else ids stand for no known text
  const std::string mend =
      !init_from.empty()
          ? fmt::format("the weights of {} have no more: prepare the data with the tokenizer of these weights",
                        init_from)
      : known ? "set model.vocab to at least that"
              : fmt::format(
                    "set model.vocab to at least {}, best to the vocabulary of the tokenizer that they were "
                    "made with",
                    corpus.vocabulary());
  if (known)
    fail_user("{}model.vocab is {}, but the data ({}) has a vocabulary of {}; {}", where, model_vocab, corpus.name(),
              corpus.vocabulary(), mend);
  fail_user("{}model.vocab is {}, but the data ({}) hold the id {}; {}", where, model_vocab, corpus.name(),
            corpus.vocabulary() - 1, mend);
}

}  // namespace redline::data

// Which source a configuration means.
#include "data/source.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "base/counted.h"
#include "base/error.h"
#include "data/input/paths.h"
#include "data/mixture.h"
#include "data/noise.h"
#include "data/ping.h"
#include "data/shards/shards.h"
#include "data/shards/token_files.h"
#include "data/stream.h"
#include "data/text.h"
#include "data/tokenizer/chat.h"

namespace redline::data {
namespace {

bool is_ping(const std::vector<std::string>& names, const std::string& key) {
  const auto count = std::ranges::count(names, "ping");
  if (count > 0 && names.size() > 1)
    fail_user("{}: \"ping\" is generated and stands alone; a file of that name is ./ping", key);
  return count > 0;
}

// "random:VOCABULARY" alone; training and held-out tokens differ by their seed.
std::unique_ptr<DocumentSource> open_noise(const std::vector<std::string>& names, const std::string& key,
                                           std::int64_t seed) {
  if (names.size() != 1) return nullptr;
  const std::optional<std::int64_t> vocabulary = noise_vocabulary(names[0], key);
  return vocabulary ? make_noise(seed, *vocabulary) : nullptr;
}

// What turns text into tokens: what was asked for, else what the training data were prepared with; of a mixture, the
// first entry that was. Empty: nothing says.
std::string tokenizer_name(const config::Data& data) {
  std::string name = data.tokenizer;
  const std::size_t asked = data.weights.empty() ? std::min<std::size_t>(data.train.size(), 1) : data.train.size();
  for (std::size_t i = 0; i < asked; ++i) {
    const Path folder = data.train[i];
    if (folder == "ping" || !is_prepared_folder(folder)) continue;
    const Manifest m = read_manifest(folder);
    if (data.tokenizer.empty()) {
      if (name.empty()) name = m.tokenizer_file.empty() ? m.tokenizer_name : (folder / m.tokenizer_file).string();
      continue;
    }
    if (open_tokenizer(data.tokenizer, "data.tokenizer")->fingerprint() != m.tokenizer_hash)
      fail_user(
          "data.tokenizer is \"{}\", but {} was prepared with {}; leave data.tokenizer empty, or prepare it again",
          data.tokenizer, folder.string(), m.tokenizer_name);
  }
  return name;
}

// Ready-made tokens; or text as bytes, with random access, unless anything about it asks for documents to be found and
// tokenized.
std::unique_ptr<Corpus> open_files(const config::Data& data, const std::vector<std::string>& names,
                                   const std::string& key, Part part, bool evaluation) {
  const std::string name = tokenizer_name(data);
  if (auto source = open_token_files(names, {key, part, evaluation, data.seed, name, {}})) return source;
  const bool has_stream = needs_stream(names, key);
  if (!has_stream && (name.empty() || name == "bytes") && data.separator.empty())
    return open_text(names, key, part, data.seed, data.tokenizer == "bytes");
  if (has_stream && name.empty())
    fail_user(
        "{}: .jsonl, .parquet and compressed files need a tokenizer; set data.tokenizer (a tokenizer.json, or "
        "\"bytes\")",
        key);
  const std::string opened = name.empty() ? "bytes" : name;
  const auto tokenizer = open_tokenizer(opened, "data.tokenizer");
  const auto chat = has_stream ? open_chat(data.chat, opened, *tokenizer, "data.chat") : nullptr;
  return open_stream(names, key, input_format(data), tokenizer, part, data.seed, data.on_error == "skip", chat);
}

// data.chat is about lines of JSON. Without any it would say nothing, and every token would be learned.
void require_conversations(const config::Data& data) {
  if (data.chat == "none") return;
  const auto has_some = [](const std::string& entry) {
    if (entry == "ping" || noise_vocabulary(entry, "data.train")) return false;
    if (is_prepared_folder(entry)) return !read_manifest(entry).chat.empty();
    return !are_token_files({entry}, "data.train") &&
           std::ranges::any_of(expand_paths({entry}, "data.train"), is_json_lines);
  };
  if (std::ranges::none_of(data.train, has_some))
    fail_user(
        "data.chat is \"{}\", but data.train has neither .jsonl files nor data prepared with --chat, so that there are "
        "no conversations; name some, or leave data.chat at none",
        data.chat);
}

// The entries of a mixture, each as data of its own.
std::vector<config::Data> entries_of(const config::Data& data) {
  const std::string tokenizer = tokenizer_name(data);
  std::vector<config::Data> entries;
  for (const std::string& entry : data.train) {
    config::Data& one = entries.emplace_back(data);
    one.train = {entry};
    one.weights.clear();
    const bool own = entry == "ping" || noise_vocabulary(entry, "data.train") || is_prepared_folder(entry);
    if (!own) one.tokenizer = tokenizer;
  }
  return entries;
}

// Ids of two tokenizers would stand for two texts. Returns the first entry whose tokenizer is known.
std::size_t require_one_tokenizer(const std::vector<config::Data>& entries) {
  std::optional<std::size_t> first;
  std::string name;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::optional<std::string> own = data_tokenizer(entries[i]);
    if (!own || own == name) continue;
    if (!first) {
      first = i;
      name = *own;
    } else if (open_tokenizer(*own, "data.tokenizer")->fingerprint() !=
               open_tokenizer(name, "data.tokenizer")->fingerprint()) {
      fail_user(
          "data.train: {} is read with the tokenizer {} and {} with {}, so that one id would stand for two texts; give "
          "entries of a mixture that have one tokenizer",
          entries[*first].train[0], name, entries[i].train[0], *own);
    }
  }
  return first.value_or(0);
}

std::unique_ptr<Corpus> open_mixture(const config::Data& data,
                                     std::unique_ptr<Corpus> (*open)(const config::Data& entry)) {
  if (data.weights.size() != data.train.size())
    fail_user("data.weights has {} and data.train {}; give one weight for each", counted(data.weights.size(), "weight"),
              counted(data.train.size(), "path"));
  const std::vector<config::Data> entries = entries_of(data);
  const std::vector<std::string> names = names_of_entries(data.train);
  const std::size_t speaks = require_one_tokenizer(entries);
  std::vector<Mixture::Part> parts;
  for (std::size_t i = 0; i < entries.size(); ++i) parts.push_back({names[i], data.weights[i], open(entries[i])});
  return std::make_unique<Mixture>(std::move(parts), speaks);
}

}  // namespace

NamedPath named_path(const std::string& entry) {
  const std::size_t equals = entry.find('=');
  const auto of_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_'; };
  if (equals == entry.npos || equals == 0 ||
      !std::all_of(entry.begin(), entry.begin() + static_cast<std::ptrdiff_t>(equals), of_name))
    return {kUnnamedSet, entry};
  return {entry.substr(0, equals), entry.substr(equals + 1)};
}

std::vector<HeldOutSet> held_out_sets(const config::Data& data) {
  if (data.eval.empty()) return {{kUnnamedSet, data}};
  std::vector<HeldOutSet> sets;
  for (const std::string& entry : data.eval) {
    const auto [name, path] = named_path(entry);
    if (path.empty()) fail_user("data.eval: \"{}\" names a set and no path; write NAME=PATH", entry);
    auto set = std::ranges::find(sets, name, &HeldOutSet::name);
    if (set == sets.end()) {
      set = sets.insert(sets.end(), {name, data});
      set->data.eval.clear();
    }
    set->data.eval.push_back(path);
  }
  return sets;
}

InputFormat input_format(const config::Data& data) {
  InputFormat format;
  format.text_field = data.text_field;
  format.separator = separator_of(data.separator, "data.separator");
  // In all its forms (as it was read, parsed, as tokens, one more read ahead) a document takes up to 30 times its
  // bytes.
  format.longest_document = std::min(format.longest_document, (data.ram_mib << 20) / 16);
  format.longest_is = fmt::format("a sixteenth of data.ram_mib ({}), which may be raised", data.ram_mib);
  return format;
}

namespace {

// Of data without weights.
std::unique_ptr<Corpus> open_training_entry(const config::Data& data) {
  if (is_ping(data.train, "data.train") && !data.tokenizer.empty() && data.tokenizer != "ping")
    fail_user("data.tokenizer is \"{}\", but \"ping\" is made of tokens already; leave data.tokenizer empty",
              data.tokenizer);
  if (is_ping(data.train, "data.train")) return make_ping(data.seed, data.documents, PingPart::training);
  if (auto noise = open_noise(data.train, "data.train", data.seed)) return noise;
  return open_files(data, data.train, "data.train", data.eval.empty() ? Part::training : Part::all, false);
}

}  // namespace

std::unique_ptr<Corpus> open_training_source(const config::Data& data) {
  require_conversations(data);
  return data.weights.empty() ? open_training_entry(data) : open_mixture(data, open_training_entry);
}

std::unique_ptr<Corpus> open_held_out_source(const config::Data& data) {
  const bool split = data.eval.empty();
  if (split && !data.weights.empty()) return open_mixture(data, open_held_out_source);
  const std::vector<std::string>& names = split ? data.train : data.eval;
  const std::string key = split ? "data.train" : "data.eval";
  if (is_ping(names, key)) return make_ping(data.seed, 0, PingPart::held_out);
  if (auto noise = open_noise(names, key, ~data.seed)) return noise;
  return open_files(data, names, key, split ? Part::held_out : Part::all, true);
}

std::optional<std::string> data_tokenizer(const config::Data& data) {
  if (!data.weights.empty()) {
    for (const config::Data& entry : entries_of(data))
      if (const auto name = data_tokenizer(entry)) return name;
    return {};
  }
  if (is_ping(data.train, "data.train")) return "ping";
  if (data.train.size() == 1 && noise_vocabulary(data.train[0], "data.train")) return {};
  if (const std::string name = tokenizer_name(data); !name.empty()) return name;
  if (are_token_files(data.train, "data.train")) return {};
  return "bytes";
}

config::Data with_absolute_paths(config::Data data) {
  const auto make_absolute = [](std::string& name) {
    std::error_code error;  // of a working directory that is gone: then the name is as good as it was
    if (name.empty() || name.starts_with('~')) return;
    if (const Path absolute = std::filesystem::absolute(name, error); !error) name = absolute.string();
  };
  for (std::vector<std::string>* names : {&data.train, &data.eval})
    for (std::string& name : *names) {
      const auto [set, path] = names == &data.eval ? named_path(name) : NamedPath{"", name};
      const bool named = path.size() < name.size();
      std::string absolute = path;
      if (path != "ping" && !path.starts_with("random:")) make_absolute(absolute);
      name = named ? fmt::format("{}={}", set, absolute) : absolute;
    }
  if (data.tokenizer != "bytes" && data.tokenizer != "ping") make_absolute(data.tokenizer);
  return data;
}

void require_vocabulary(const Corpus& source, std::int64_t model_vocab, const config::Origins& origins) {
  if (source.vocabulary() > model_vocab)
    fail_user("{}model.vocab is {}, but the data ({}) has a vocabulary of {}; set model.vocab to at least that",
              origins.prefix({"model.vocab", "data.train", "data.eval"}), model_vocab, source.name(),
              source.vocabulary());
}

}  // namespace redline::data

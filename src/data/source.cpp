// Which source a configuration means.
#include "data/source.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "data/noise.h"
#include "data/ping.h"
#include "data/shards/shards.h"
#include "data/shards/token_files.h"
#include "data/stream.h"
#include "data/text.h"

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

// What turns text into tokens: what was asked for, else what the training data were prepared with. Empty: nothing says.
std::string tokenizer_name(const config::Data& data) {
  if (data.train.empty() || is_ping(data.train, "data.train") || !is_prepared_folder(data.train[0]))
    return data.tokenizer;
  const Path folder = data.train[0];
  const Manifest m = read_manifest(folder);
  if (data.tokenizer.empty()) return m.tokenizer_file.empty() ? m.tokenizer_name : (folder / m.tokenizer_file).string();
  if (open_tokenizer(data.tokenizer, "data.tokenizer")->fingerprint() != m.tokenizer_hash)
    fail_user("data.tokenizer is \"{}\", but {} was prepared with {}; leave data.tokenizer empty, or prepare it again",
              data.tokenizer, folder.string(), m.tokenizer_name);
  return data.tokenizer;
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
    fail_user("{}: .jsonl and compressed files need a tokenizer; set data.tokenizer (a tokenizer.json, or \"bytes\")",
              key);
  return open_stream(names, key, input_format(data), open_tokenizer(name.empty() ? "bytes" : name, "data.tokenizer"),
                     part, data.seed, data.on_error == "skip");
}

}  // namespace

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

void DocumentSource::append(std::int64_t index, std::int64_t begin, std::int64_t count,
                            std::vector<std::int32_t>& tokens) const {
  std::vector<std::int32_t> whole;
  read(index, whole);
  const auto from = whole.begin() + begin;
  tokens.insert(tokens.end(), from, from + count);
}

std::int64_t DocumentSource::length(std::int64_t index) const {
  std::vector<std::int32_t> tokens;
  read(index, tokens);
  return static_cast<std::int64_t>(tokens.size());
}

std::vector<std::int32_t> bytes_of_ids(const Tokenizer& tokenizer) {
  std::vector<std::int32_t> bytes(static_cast<std::size_t>(tokenizer.vocabulary()));
  for (std::size_t id = 0; id < bytes.size(); ++id) bytes[id] = tokenizer.text_bytes(static_cast<std::int32_t>(id));
  return bytes;
}

std::unique_ptr<Corpus> open_training_source(const config::Data& data) {
  if (is_ping(data.train, "data.train") && !data.tokenizer.empty() && data.tokenizer != "ping")
    fail_user("data.tokenizer is \"{}\", but \"ping\" is made of tokens already; leave data.tokenizer empty",
              data.tokenizer);
  if (is_ping(data.train, "data.train")) return make_ping(data.seed, data.documents, PingPart::training);
  if (auto noise = open_noise(data.train, "data.train", data.seed)) return noise;
  return open_files(data, data.train, "data.train", data.eval.empty() ? Part::training : Part::all, false);
}

std::unique_ptr<Corpus> open_held_out_source(const config::Data& data) {
  const bool split = data.eval.empty();
  const std::vector<std::string>& names = split ? data.train : data.eval;
  const std::string key = split ? "data.train" : "data.eval";
  if (is_ping(names, key)) return make_ping(data.seed, 0, PingPart::held_out);
  if (auto noise = open_noise(names, key, ~data.seed)) return noise;
  return open_files(data, names, key, split ? Part::held_out : Part::all, true);
}

std::optional<std::string> data_tokenizer(const config::Data& data) {
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
    for (std::string& name : *names)
      if (name != "ping" && !name.starts_with("random:")) make_absolute(name);
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

// Each key is read here and translated once.
#include "data/from_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "data/shards/token_type.h"

namespace redline::data {
namespace {

constexpr std::string_view kVocabulary = "model.vocab";
constexpr std::uint64_t kEvaluationSeed = 0x68656C64ull;  // "held"

}  // namespace

CorpusOptions corpus_options(const config::Data& data) {
  CorpusOptions o{.train = data.train,
                  .weights = data.weights,
                  .eval = data.eval,
                  .tokenizer = data.tokenizer,
                  .read = {.chat = data.chat,
                           .bos = data.bos,
                           .skip_bad = data.on_error == "skip",
                           .documents = data.documents,
                           .seed = data.seed,
                           .token_type = token_type_named(data.token_type)},
                  .roles = data.roles == "auto"};
  InputFormat& input = o.read.input;
  input.text_field = data.text_field;
  input.separator = separator_of(data.separator, "data.separator");
  // In all its forms (as it was read, parsed, as tokens, one more read ahead) a document takes up to 30 times its
  // bytes.
  input.longest_document = data.max_document_mib << 20;
  input.most_in_memory = (data.ram_mib << 20) / 16;
  input.most_in_memory_is = fmt::format("a sixteenth of data.ram_mib ({}): raise that, prepare the data", data.ram_mib);
  return o;
}

CorpusOptions corpus_options(const config::Config& config) {
  CorpusOptions o = corpus_options(config.data);
  o.read.row = config.train.seq_len;
  if (config.origins.known(kVocabulary) || !config.model.init_from.empty()) o.read.vocabulary = config.model.vocab;
  return o;
}

void settle_vocabulary(config::Config& config) {
  if (config.origins.known(kVocabulary) || config.data.train.empty()) return;
  const std::string place = config.origins.prefix({"data.train", "data.tokenizer"});
  std::optional<std::int64_t> found;
  try {
    found = data_vocabulary(corpus_options(config.data));
  } catch (const UserError& e) {
    fail_user("{}{} (model.vocab is not set and follows from the data)", place, e.what());
  }
  if (!found)
    fail_user(
        "{}model.vocab is not set, and data.train ({}) holds tokens without their tokenizer, whose largest id is no "
        "vocabulary; set model.vocab, or data.tokenizer to the one they were made with",
        place, fmt::join(config.data.train, ", "));
  config.model.vocab = *found;
  config.origins.set(kVocabulary, "the data's vocabulary", true);
}

void settle_tokenizer(config::Config& config, FileSystem& files, const Path& weights) {
  constexpr std::int64_t kMostOfBytes = 512;  // 257 and some rows that no id has
  if (config.origins.written("data.tokenizer")) return;
  try {
    if (!is_text_of_no_tokenizer(corpus_options(config.data))) return;
  } catch (const UserError&) {  // data that are not there: whoever opens them says so
    return;
  }
  if (holds_tokenizer(files, weights)) {
    config.data.tokenizer = weights.string();
    return;
  }
  if (config.model.vocab > kMostOfBytes)
    fail_user(
        "{}data.train is text, and {}, where the weights of model.init_from are, holds no tokenizer: name the one that "
        "the model was trained with as data.tokenizer (\"bytes\", where it was bytes)",
        config.origins.prefix({"data.train", "model.init_from"}), weights.string());
}

PackerSettings packer_settings(const config::Data& data, BatchShape shape) {
  return {shape, packing_named(data.packing), data.long_documents == "truncate", data.buckets};
}

// The packer looks at no more than the next piece: of several it would take the longest first, and the first batches
// would not be a sample of all.
LoaderOptions evaluation_options(const config::Data& data, BatchShape shape, std::int64_t most_tokens) {
  LoaderOptions o;
  o.packer = {.shape = shape,
              .packing = Packing::pack,
              .truncate = data.long_documents == "truncate",
              .lookahead = 1,
              .most_tokens = most_tokens};
  o.feed = {.repeat = false, .seed = kEvaluationSeed};
  return o;
}

LoaderOptions loader_options(const config::Data& data, BatchShape shape, bool computes_on_cpu) {
  LoaderOptions o;
  o.packer = packer_settings(data, shape);
  o.feed = {.shuffle = data.shuffle, .shuffle_buffer = data.shuffle_buffer};
  o.prefetch = data.prefetch;
  o.ram_bytes = data.ram_mib << 20;
  o.workers = data.workers;
  if (o.workers < 0) {
    const auto cores = static_cast<std::int64_t>(std::thread::hardware_concurrency());
    o.workers = computes_on_cpu ? (cores > 4 ? 2 : 1) : std::clamp<std::int64_t>(cores - 1, 1, 4);
  }
  return o;
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

}  // namespace redline::data

// Each key is read here and translated once.
#include "data/from_config.h"

#include <algorithm>
#include <filesystem>
#include <thread>

namespace redline::data {
namespace {

constexpr std::uint64_t kEvaluationSeed = 0x68656C64ull;  // "held"

}  // namespace

CorpusOptions corpus_options(const config::Data& data) {
  CorpusOptions o{
      .train = data.train,
      .weights = data.weights,
      .eval = data.eval,
      .tokenizer = data.tokenizer,
      .read = {.chat = data.chat, .skip_bad = data.on_error == "skip", .documents = data.documents, .seed = data.seed}};
  InputFormat& input = o.read.input;
  input.text_field = data.text_field;
  input.separator = separator_of(data.separator, "data.separator");
  // In all its forms (as it was read, parsed, as tokens, one more read ahead) a document takes up to 30 times its
  // bytes.
  input.longest_document = std::min(input.longest_document, (data.ram_mib << 20) / 16);
  input.longest_is = fmt::format("a sixteenth of data.ram_mib ({}), which may be raised", data.ram_mib);
  return o;
}

PackerSettings packer_settings(const config::Data& data, BatchShape shape) {
  return {shape, packing_named(data.packing), data.long_documents == "truncate", data.buckets};
}

// The packer looks at no more than the next piece: of several it would take the longest first, and the first batches
// would not be a sample of all.
LoaderOptions evaluation_options(const config::Data& data, BatchShape shape) {
  LoaderOptions o;
  o.packer = {.shape = shape, .packing = Packing::pack, .truncate = data.long_documents == "truncate", .lookahead = 1};
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

// Packed tokens a second, from files in the page cache to batches: prepared shards and a .jsonl tokenized on the way,
// for each way of packing and number of workers. The thread that packs is one more. Documents have the lengths of ping,
// a mean of some 200 tokens: short ones cost most.
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "data/from_config.h"
#include "data/generated.h"
#include "data/loader.h"
#include "data/shards/shards.h"
#include "data/stream.h"
#include "data/tokenizer/tokenizer.h"
#include "io/json.h"

namespace redline {
namespace {

constexpr std::int64_t kDocuments = 100'000;
constexpr data::BatchShape kShape{.rows = 32, .seq_len = 1024, .max_segments = 32};

// The files of the benchmarks, written once and removed at the end.
class Files {
 public:
  Files() : folder_(std::filesystem::temp_directory_path() / fmt::format("redline-loader-bench-{}", ::getpid())) {
    FileSystem& files = real_files();
    files.create_folders(shards());
    const auto ping = data::make_ping(0, 0, data::Part::training);
    data::ShardWriter writer(files, shards(), "train", data::TokenType::u16, 1 << 28);
    const auto lines = files.create(jsonl());
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = 0; i < kDocuments; ++i) {
      ping->read(i, tokens);
      writer.append(tokens);
      lines->write(io::Json{{"text", ping->decode(tokens)}}.dump() + "\n");
    }
    lines->close();
    data::Manifest m;
    m.vocabulary = data::kPingVocabulary;
    m.tokenizer_name = "ping";
    m.tokenizer_hash = data::open_tokenizer("ping", "bench")->fingerprint();
    m.end_token = 256;
    m.train = writer.finish();
    m.val = data::ShardWriter(files, shards(), "val", data::TokenType::u16, 1 << 28).finish();
    files.replace(shards() / data::kManifestFile, data::manifest_text(m));
  }
  ~Files() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Path shards() const { return folder_ / "shards"; }
  Path jsonl() const { return folder_ / "documents.jsonl"; }

 private:
  Path folder_;
};

const Files& bench_files() {
  static const Files files;
  return files;
}

void load(benchmark::State& state, const std::string& packing, const Path& path, const std::string& tokenizer) {
  config::Data settings;
  settings.train = {path.string()};
  settings.packing = packing;
  settings.tokenizer = tokenizer;
  settings.workers = state.range(0);
  data::Loader loader(data::open_training_corpus(data::corpus_options(settings)),
                      data::loader_options(settings, kShape, false));
  data::Batch batch(kShape);
  std::int64_t tokens = 0, warm = 0;
  while (warm < 30'000'000) {  // an epoch: checks of blocks are done, and buffers have their size
    loader.next(batch);
    warm += batch.real_tokens;
  }
  for (auto _ : state) {
    loader.next(batch);
    tokens += batch.real_tokens;
  }
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsRate);
}

void from_shards(benchmark::State& state, const std::string& packing) {
  load(state, packing, bench_files().shards(), "");
}
void from_jsonl(benchmark::State& state, const std::string& packing) {
  load(state, packing, bench_files().jsonl(), "bytes");
}

BENCHMARK_CAPTURE(from_shards, pack, "pack")->Arg(0)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(from_shards, stream, "stream")->Arg(0)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(from_shards, bucket, "bucket")->Arg(1)->UseRealTime();
BENCHMARK_CAPTURE(from_jsonl, pack, "pack")->Arg(0)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace redline

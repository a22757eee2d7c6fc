// Speed of what stands before the tokenizer and behind it: finding lines, parsing them, checking UTF-8, and reading
// documents of a prepared folder. One thread; bytes are of text, or of ids as they stand in the file.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>

#include "base/random.h"
#include "data/input/text_input.h"
#include "data/shards/shards.h"
#include "data/utf8.h"

namespace redline::data {
namespace {

struct Scratch {
  Path path = std::filesystem::temp_directory_path() / "redline-input-bench-XXXXXX";
  Scratch() {
    std::string name = path.string();
    if (!::mkdtemp(name.data())) std::abort();
    path = name;
  }
  ~Scratch() { std::filesystem::remove_all(path); }
};

const Path& scratch() {
  static const Scratch scratch;
  return scratch.path;
}

// Lines as web corpora have them, an escape every dozen words.
Path json_lines() {
  const Path path = scratch() / "lines.jsonl";
  if (std::filesystem::exists(path)) return path;
  const char* const words[] = {"the ",   "of ",        "and ",       "language ", "model ",  "training \\\"quote\\\" ",
                               "said, ", "caf\u00e9 ", "network\\n", "measure ",  "tokens ", "a ",
                               "in "};
  const Random random(1, 1);
  std::uint64_t draw = 0;
  std::string text;
  while (text.size() < std::size_t{1} << 26) {
    text += "{\"id\":" + std::to_string(draw) + ",\"url\":\"http://example.org/\",\"text\":\"";
    for (std::uint64_t n = 10 + random.below(draw++, 800); n > 0; --n) text += words[random.below(draw++, 13)];
    text += "\",\"score\":0.91}\n";
  }
  real_files().replace(path, text);
  return path;
}

void find_lines(benchmark::State& state) {
  const Path path = json_lines();
  std::int64_t bytes = 0;
  for (auto _ : state) {
    TextInput input({path.string()}, {}, "bench");
    TextBlock block;
    while (input.next(block, 1 << 20, 1 << 20)) bytes += static_cast<std::int64_t>(block.bytes.size());
  }
  state.SetBytesProcessed(bytes);
}
BENCHMARK(find_lines)->Unit(benchmark::kMillisecond);

void parse_lines(benchmark::State& state) {
  TextInput input({json_lines().string()}, {}, "bench");
  TextBlock block;
  input.next(block, std::int64_t{1} << 26, 1 << 30);
  std::string text;
  for (auto _ : state)
    for (std::int64_t i = 0; i < block.documents(); ++i) input.parse(block, i, text);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(block.bytes.size()));
}
BENCHMARK(parse_lines)->Unit(benchmark::kMillisecond);

void check_utf8(benchmark::State& state) {
  std::string text;
  while (text.size() < 1 << 20)
    text += state.range(0) ? "\u03b1\u03b2\u03b3\u03b4\u03b5 \u03b6\u03b7\u03b8 " : "plain text ";
  for (auto _ : state) benchmark::DoNotOptimize(valid_utf8(text));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
}
BENCHMARK(check_utf8)->ArgName("greek")->Arg(0)->Arg(1);

// At random, from a warm cache, after every block was checked once.
void read_documents(benchmark::State& state) {
  const Path folder = scratch() / "shards";
  if (!std::filesystem::exists(folder / kManifestFile)) {
    real_files().create_folders(folder);
    ShardWriter writer(real_files(), folder, "train", TokenType::u16, std::int64_t{1} << 27);
    const Random random(2, 2);
    std::vector<std::int32_t> ids;
    for (std::uint64_t i = 0; i < 40'000; ++i) {
      ids.assign(1 + random.below(i, 1500), static_cast<std::int32_t>(i % 50257));
      writer.append(ids);
    }
    Manifest manifest;
    manifest.vocabulary = 50257;
    manifest.tokenizer_name = "bytes";
    manifest.train = writer.finish();
    real_files().replace(folder / kManifestFile, manifest_text(manifest));
  }
  const auto source = open_shards({read_prepared_folder(folder, "bench")}, {"bench", Part::all, false, 0, {}, {}});
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < source->documents(); ++i) source->read(i, tokens);
  const Random random(3, 3);
  std::uint64_t draw = 0;
  std::int64_t total = 0;
  for (auto _ : state) {
    source->read(static_cast<std::int64_t>(random.below(draw++, static_cast<std::uint64_t>(source->documents()))),
                 tokens);
    total += static_cast<std::int64_t>(tokens.size());
  }
  state.SetBytesProcessed(total * 2);
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(total), benchmark::Counter::kIsRate);
}
BENCHMARK(read_documents);

}  // namespace
}  // namespace redline::data

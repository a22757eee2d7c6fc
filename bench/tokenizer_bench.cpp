// How fast text becomes ids: tokenizer_bench TOKENIZER DOCUMENTS.jsonl [THREADS...]. A plain program, so that
// bench/tokenizer_peer.py can run it beside the Hugging Face library on the same documents; one JSON line a
// measurement.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "data/tokenizer/tokenizer.h"
#include "io/json.h"

namespace redline {
namespace {

constexpr int kPasses = 5;

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }  // of all threads

std::vector<std::string> read_documents(const char* path) {
  std::vector<std::string> documents;
  const std::string bytes = real_files().read(path);
  for (std::string_view rest = bytes; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    documents.push_back(io::string_at(io::parse_json(rest.substr(0, end), path), "text", path));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return documents;
}

void measure(const data::Tokenizer& tokenizer, const std::vector<std::string>& documents, int threads) {
  std::vector<std::unique_ptr<data::Encoder>> encoders;
  for (int t = 0; t < threads; ++t) encoders.push_back(tokenizer.encoder());
  double first = 0, best = 0, cpu = 0;
  std::atomic<std::int64_t> tokens = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    tokens = 0;
    std::atomic<std::size_t> next = 0;
    const double start = steady_seconds(), cpu_start = cpu_seconds();
    const auto work = [&](data::Encoder& encoder) {
      std::vector<std::int32_t> ids;
      for (std::size_t d = next++; d < documents.size(); d = next++) {
        ids.clear();
        encoder.append(documents[d], ids);
        tokens += static_cast<std::int64_t>(ids.size());
      }
    };
    std::vector<std::thread> others;
    for (int t = 1; t < threads; ++t) others.emplace_back(work, std::ref(*encoders[static_cast<std::size_t>(t)]));
    work(*encoders[0]);
    for (std::thread& other : others) other.join();
    const double seconds = steady_seconds() - start;
    if (pass == 0) first = seconds;
    best = pass == 0 ? seconds : std::min(best, seconds);
    const double cpu_used = cpu_seconds() - cpu_start;
    cpu = pass == 0 ? cpu_used : std::min(cpu, cpu_used);
  }
  std::printf("{\"threads\": %d, \"first_s\": %.6f, \"best_s\": %.6f, \"cpu_s\": %.6f, \"tokens\": %lld}\n", threads,
              first, best, cpu, static_cast<long long>(tokens.load()));
}

int run(int argc, char** argv) {
  if (argc < 3) fail_user("usage: tokenizer_bench TOKENIZER DOCUMENTS.jsonl [THREADS...]");
  const double start = steady_seconds();
  const auto tokenizer = data::open_tokenizer(argv[1], "tokenizer_bench");
  std::printf("{\"open_s\": %.6f}\n", steady_seconds() - start);
  const std::vector<std::string> documents = read_documents(argv[2]);
  if (argc == 3) measure(*tokenizer, documents, 1);
  for (int i = 3; i < argc; ++i) measure(*tokenizer, documents, std::max(1, std::atoi(argv[i])));
  return 0;
}

}  // namespace
}  // namespace redline

int main(int argc, char** argv) {
  try {
    return redline::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tokenizer_bench: %s\n", error.what());
    return 2;
  }
}

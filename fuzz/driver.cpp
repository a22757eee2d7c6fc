// Runs a target without libFuzzer: replays its seeds and corpus, then mutates them for some seconds. It does not look
// at coverage, so it finds less; it needs no special compiler, so a short run of every target is an ordinary test.
//   NAME_fuzz [--seconds S] [--seed N] [FILE|FOLDER ...]
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/clock.h"
#include "base/random.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);

namespace redline::fuzz {
namespace {

constexpr std::size_t kLongest = 1 << 16;
constexpr unsigned kSecondsAnInput = 10;
constexpr rlim_t kMostMemory = rlim_t{3} << 30;

std::string g_input;  // the one being run: a handler of signals has nowhere else to find it

void keep_input(int signal) {
  std::FILE* file = std::fopen("fuzz-finding", "wb");
  if (file) {
    std::fwrite(g_input.data(), 1, g_input.size(), file);
    std::fclose(file);
  }
  const char message[] = "fuzz: the input that did this is in ./fuzz-finding\n";
  if (::write(2, message, sizeof(message) - 1) < 0) std::_Exit(2);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void run_one(std::string input) {
  g_input = std::move(input);
  ::alarm(kSecondsAnInput);
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(g_input.data()), g_input.size());
  ::alarm(0);
}

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed, 0) {}

  std::string mutate(const std::vector<std::string>& inputs) {
    std::string s = inputs[below(inputs.size())];
    for (std::uint64_t n = 1 + below(4); n > 0; --n) change(s, inputs);
    s.resize(std::min(s.size(), kLongest));
    return s;
  }
  std::uint64_t below(std::uint64_t n) { return random_.below(draw_++, n); }

 private:
  void change(std::string& s, const std::vector<std::string>& inputs) {
    const std::size_t at = below(s.size() + 1);
    const std::size_t length = std::min<std::size_t>(below(16) + 1, s.size() - at);
    switch (below(8)) {
      case 0:
        if (at < s.size()) s[at] = static_cast<char>(s[at] ^ (1 << below(8)));
        break;
      case 1:
        if (at < s.size()) s[at] = static_cast<char>(below(256));
        break;
      case 2: s.insert(at, 1, static_cast<char>(below(256))); break;
      case 3: s.erase(at, length); break;
      case 4: s.insert(at, s.substr(at, length)); break;
      case 5: s.resize(at); break;
      case 6: put_number(s, at); break;
      default: {
        const std::string& other = inputs[below(inputs.size())];
        const std::size_t from = below(other.size() + 1);
        s.replace(at, std::string::npos, other.substr(from));
      }
    }
  }
  void put_number(std::string& s, std::size_t at) {
    static constexpr std::uint64_t kNumbers[] = {0,
                                                 1,
                                                 2,
                                                 0x7F,
                                                 0xFF,
                                                 0x7FFF,
                                                 0xFFFF,
                                                 0x7FFFFFFF,
                                                 0xFFFFFFFF,
                                                 0x7FFFFFFFFFFFFFFF,
                                                 0x8000000000000000,
                                                 0xFFFFFFFFFFFFFFFF};
    const std::uint64_t number = kNumbers[below(std::size(kNumbers))];
    const std::size_t width = std::size_t{1} << below(4);
    for (std::size_t i = 0; i < width && at + i < s.size(); ++i) s[at + i] = static_cast<char>(number >> (8 * i));
  }

  Random random_;
  std::uint64_t draw_ = 0;
};

void add_files(const std::filesystem::path& path, std::vector<std::string>& inputs) {
  std::vector<std::filesystem::path> files;
  if (std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry.path());
    std::sort(files.begin(), files.end());
  } else {
    files.push_back(path);
  }
  for (const auto& file : files) {
    std::ifstream in(file, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
}

int run(int argc, char** argv) {
  double seconds = 2;
  std::uint64_t seed = 1;
  std::vector<std::string> inputs;
  if (seeds) inputs = seeds();
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--seconds" && i + 1 < argc) {
      seconds = std::atof(argv[++i]);
    } else if (word == "--seed" && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::filesystem::exists(word)) {
      add_files(word, inputs);
    }
  }
  if (inputs.empty()) inputs.emplace_back();
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM}) std::signal(signal, keep_input);
#ifdef REDLINE_FUZZ_MEMORY_LIMIT
  const rlimit limit{kMostMemory, kMostMemory};  // sanitizers map terabytes; elsewhere this finds memory out of bounds
  ::setrlimit(RLIMIT_AS, &limit);
#endif
  for (const std::string& input : inputs) run_one(input);
  Mutator mutator(seed);
  const double end = steady_seconds() + seconds;
  std::uint64_t runs = 0;
  while (steady_seconds() < end) {
    for (int i = 0; i < 16; ++i) run_one(mutator.mutate(inputs));
    runs += 16;
  }
  std::printf("%zu inputs replayed, %llu mutations run\n", inputs.size(), static_cast<unsigned long long>(runs));
  return 0;
}

}  // namespace
}  // namespace redline::fuzz

int main(int argc, char** argv) {
  int none = 1;
  LLVMFuzzerInitialize(&none, &argv);
  return redline::fuzz::run(argc, argv);
}

// What the targets share: scratch files, inputs of several parts, and seeds for libFuzzer's first corpus folder.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/hash.h"
#include "fuzz.h"

namespace redline::fuzz {
namespace {

struct Scratch {
  std::filesystem::path path;
  Scratch() {
    std::error_code none;
    const bool memory = std::filesystem::is_directory("/dev/shm", none);  // thousands of small files a second
    std::string name = (memory ? "/dev/shm" : std::filesystem::temp_directory_path().string()) + "/redline-fuzz-XXXXXX";
    if (!::mkdtemp(name.data())) fail("cannot create a folder for scratch files");
    path = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

const Scratch& scratch_folder() {
  static const Scratch scratch;
  return scratch;
}

}  // namespace

void fail(std::string_view what) {
  std::fprintf(stderr, "finding: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

std::string scratch(std::string_view name) { return (scratch_folder().path / name).string(); }

void write_scratch(std::string_view name, std::string_view bytes) {
  std::ofstream file(scratch(name), std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) fail("cannot write a scratch file");
}

std::string join(const std::vector<std::string>& parts) {
  std::string out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i + 1 < parts.size()) {
      const auto size = static_cast<std::uint32_t>(parts[i].size());
      out.append(reinterpret_cast<const char*>(&size), sizeof(size));
    }
    out += parts[i];
  }
  return out;
}

std::vector<std::string> split(std::string_view input, std::size_t parts) {
  std::vector<std::string> out;
  while (out.size() + 1 < parts) {
    std::uint32_t size = 0;
    const std::size_t head = std::min(input.size(), sizeof(size));
    std::memcpy(&size, input.data(), head);
    input.remove_prefix(head);
    const std::size_t body = std::min<std::size_t>(size, input.size());
    out.emplace_back(input.substr(0, body));
    input.remove_prefix(body);
  }
  out.emplace_back(input);
  return out;
}

// Called by libFuzzer before it reads the corpus, and by our own driver.
void prepare_process() {
  ::setenv("REDLINE_THREADS", "1", 0);  // a pool of threads for each input would be most of the time
}

}  // namespace redline::fuzz

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  redline::fuzz::prepare_process();
  for (int i = 1; i < *argc; ++i) {
    const std::filesystem::path folder = (*argv)[i];
    std::error_code none;
    if (folder.string().starts_with('-') || !std::filesystem::is_directory(folder, none)) continue;
    if (redline::fuzz::seeds)
      for (const std::string& seed : redline::fuzz::seeds())
        std::ofstream(folder / redline::hex64(redline::hash64(seed)), std::ios::binary) << seed;
    break;
  }
  return 0;
}

// Reads and writes the tuning cache:
// {"format": 2, "products": {"card, version: product": {"algorithm": "128 digits", "seconds": 0.001}}}.
#include "ops/cuda/tuning_file.h"

#include <charconv>
#include <cstdlib>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "io/file_lock.h"
#include "io/json.h"

namespace redline::ops::cuda {
namespace {

constexpr int kFormat = 2;           // 1 had no seconds
constexpr std::size_t kDigits = 16;  // of a word

std::string to_text(const AlgorithmBytes& algorithm) {
  std::string text;
  for (const std::uint64_t word : algorithm) text += hex64(word);
  return text;
}

AlgorithmBytes from_text(const std::string& text) {
  AlgorithmBytes algorithm{};
  if (text.size() != kDigits * algorithm.size()) fail_user("an algorithm of {} digits", text.size());
  for (std::size_t i = 0; i < algorithm.size(); ++i) {
    const char* begin = text.data() + i * kDigits;
    const auto [end, error] = std::from_chars(begin, begin + kDigits, algorithm[i], 16);
    if (error != std::errc() || end != begin + kDigits) fail_user("an algorithm that is not hexadecimal");
  }
  return algorithm;
}

}  // namespace

TuningFile::TuningFile(FileSystem& files, Path path) : files_(files), path_(std::move(path)), entries_(load(true)) {}

std::optional<TunedProduct> TuningFile::find(const std::string& key) const {
  const auto it = entries_.find(key);
  return it == entries_.end() ? std::nullopt : std::optional(it->second);
}

void TuningFile::put(const std::string& key, const TunedProduct& product) { entries_[key] = unsaved_[key] = product; }

void TuningFile::save() {
  if (unsaved_.empty() || path_.empty()) return;
  const Entries added = std::exchange(unsaved_, {});  // kept or not: it is told once
  try {
    files_.create_folders(path_.parent_path());
    const io::FileLock lock(path_.string() + ".lock",
                            io::FileLock::IfBusy::wait);  // runs that start together tune together
    Entries all = load(false);  // another may have added its own; what is damaged was told at first
    for (const auto& [key, product] : added) all[key] = product;
    io::Json products = io::Json::object();
    for (const auto& [key, p] : all) products[key] = {{"algorithm", to_text(p.algorithm)}, {"seconds", p.seconds}};
    files_.replace(path_, io::Json{{"format", kFormat}, {"products", std::move(products)}}.dump(1) + "\n");
  } catch (const std::exception& e) {
    log::warn("tuned products are not kept for the next run: {}", e.what());
  }
}

TuningFile::Entries TuningFile::load(bool tell) const {
  Entries entries;
  try {
    if (path_.empty() || !files_.exists(path_)) return entries;
    const std::string name = path_.string();
    const io::Json json = io::read_json(files_, path_);
    if (io::integer_at(json, "format", name) != kFormat) return entries;  // of another redline
    for (const auto& [key, value] : json.at("products").items())
      entries[key] = {from_text(value.at("algorithm").get<std::string>()), value.at("seconds").get<double>()};
  } catch (const std::exception& e) {
    if (tell) log::warn("the tuning cache {} is ignored: {}", path_.string(), e.what());
    entries.clear();
  }
  return entries;
}

Path default_tuning_path() {
  const auto folder = [](const char* variable) -> Path {
    const char* value = std::getenv(variable);
    return value && *value ? Path(value) : Path();
  };
  Path cache = folder("XDG_CACHE_HOME");
  if (cache.empty() && !folder("HOME").empty()) cache = folder("HOME") / ".cache";
  return cache.empty() ? Path() : cache / "redline" / "tuning.json";
}

}  // namespace redline::ops::cuda

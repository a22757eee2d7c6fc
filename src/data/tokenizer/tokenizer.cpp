// Names of tokenizers, and the kind that each means.
#include "data/tokenizer/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "base/files.h"
#include "data/tokenizer/bpe_tokenizer.h"
#include "data/tokenizer/built_in.h"
#include "data/tokenizer/sentencepiece.h"
#include "io/json.h"

namespace redline::data {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kLargestFile = std::uint64_t{1} << 30;

// These close a turn of a conversation. A configuration of a chat model gives them as its end of text.
constexpr std::string_view kTurnEnds[] = {"<|im_end|>", "<|eot_id|>", "<|end_of_turn|>", "<end_of_turn>", "<|eom_id|>"};

// "eos_token" of the tokenizer_config.json beside a tokenizer.json: a string, or an object with its content.
std::string configured_end(const Path& folder) {
  const Path path = folder / "tokenizer_config.json";
  if (!real_files().exists(path)) return {};
  const io::Json config = io::read_json(real_files(), path);
  if (!config.is_object()) fail_user("{}: it must hold an object", path.string());
  const auto it = config.find("eos_token");
  if (it == config.end() || it->is_null()) return {};
  const std::string end = it->is_object() ? io::string_at(*it, "content", path.string())
                                          : io::string_at(config, "eos_token", path.string());
  return std::ranges::find(kTurnEnds, end) == std::end(kTurnEnds) ? end : std::string();
}

std::shared_ptr<const Tokenizer> open_file(const Path& path, std::string_view key) {
  if (const std::uint64_t size = real_files().size(path); size > kLargestFile)
    fail_user("{}: {} has {} bytes; a tokenizer has at most 1 GiB", key, path.string(), size);
  const std::string name = path.filename().string();
  try {
    const std::string bytes = real_files().read(path);
    if (path.extension() == ".model") return sentencepiece_tokenizer(bytes, path.string());
    if (path.extension() != ".json")
      fail_user("{} is no tokenizer; its name must end in .json or .model", path.string());
    if (auto built_in = built_in_from_json(bytes)) return built_in;
    const std::string end = name == "tokenizer.json" ? configured_end(path.parent_path()) : std::string();
    return bpe_tokenizer(bytes, path.string(), end);
  } catch (const UserError& error) {
    fail_user("{}: {}", key, error.what());
  }
}

}  // namespace

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  encoder()->append(text, ids);
  return ids;
}

bool append_document(Encoder& encoder, std::string_view text, std::optional<std::int32_t> end_token,
                     std::vector<std::int32_t>& ids) {
  const std::size_t before = ids.size();
  encoder.append(text, ids);
  if (ids.size() == before) return false;
  if (end_token) ids.push_back(*end_token);
  return true;
}

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name, std::string_view key) {
  if (auto built_in = built_in_tokenizer(name)) return built_in;
  std::error_code ignored;
  const Path path(name);
  if (fs::is_directory(path, ignored)) {
    for (const char* file : {"tokenizer.json", "tokenizer.model"})
      if (fs::exists(path / file, ignored)) return open_file(path / file, key);
    fail_user("{}: the folder {} holds neither a tokenizer.json nor a tokenizer.model", key, name);
  }
  if (!fs::exists(path, ignored))
    fail_user(
        "{}: \"{}\" is no tokenizer; it may be \"bytes\", \"ping\", a tokenizer.json, a sentencepiece .model, or a "
        "folder "
        "that holds one",
        key, name);
  if (!fs::is_regular_file(path, ignored)) fail_user("{}: {} is not a file", key, name);
  return open_file(path, key);
}

Path tokenizer_file(const std::string& name) {
  if (built_in_tokenizer(name)) return {};
  const Path path = name;
  if (!fs::is_directory(path)) return path;
  return real_files().exists(path / "tokenizer.json") ? path / "tokenizer.json" : path / "tokenizer.model";
}

bool holds_tokenizer(FileSystem& files, const Path& folder) {
  return files.exists(folder / "tokenizer.json") || files.exists(folder / "tokenizer.model");
}

bool covers(const Tokenizer& all, const Tokenizer& some) {
  if (all.fingerprint() == some.fingerprint()) return true;
  if (some.vocabulary() > all.vocabulary()) return false;
  for (std::int32_t id = 0; id < some.vocabulary(); ++id)
    if (all.written(id) != some.written(id)) return false;
  return true;
}

void require_fits(const Tokenizer& tokenizer, std::int64_t model_vocab, std::string_view where) {
  if (tokenizer.vocabulary() > model_vocab)
    fail_user("{}: the tokenizer {} has {} ids, more than the model's vocabulary of {}; it belongs to another model",
              where, tokenizer.name(), tokenizer.vocabulary(), model_vocab);
}

}  // namespace redline::data

// Takes names apart into words, and files into what they are for.
#include "data/roles.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>

#include "base/files.h"
#include "base/words.h"
#include "data/generated.h"
#include "data/input/byte_stream.h"
#include "data/input/text_input.h"
#include "data/shards/shards.h"

namespace redline::data {
namespace {

struct NamedRole {
  std::string_view word;
  FileRole role;
};
constexpr NamedRole kRoles[] = {{"train", FileRole::train},    {"val", FileRole::held_out},
                                {"valid", FileRole::held_out}, {"validation", FileRole::held_out},
                                {"eval", FileRole::held_out},  {"test", FileRole::test}};
// Of files of data. A name without an ending counts, too.
constexpr std::string_view kDataEndings[] = {"",     ".bin",  ".idx", ".jsonl",  ".ndjson", ".json", ".parquet",
                                             ".txt", ".text", ".raw", ".tokens", ".csv",    ".tsv"};
// Words that may follow a role and change nothing: "train_data_000", "val-part-1".
constexpr std::string_view kFollowing[] = {"of", "shard", "part", "split", "data", "set", "tokens", "chunk"};

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

bool is_number(std::string_view word) {
  const auto digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  const auto hex = [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; };
  constexpr std::size_t kShortestHash = 6;
  return std::ranges::all_of(word, digit) ||
         (word.size() >= kShortestHash && std::ranges::all_of(word, hex) && std::ranges::any_of(word, digit));
}

FileRole role_of_word(std::string_view word) {
  while (!word.empty() && std::isdigit(static_cast<unsigned char>(word.back()))) word.remove_suffix(1);
  const auto* it = std::ranges::find(kRoles, word, &NamedRole::word);
  return it == std::end(kRoles) ? FileRole::none : it->role;
}

// The role word is the last that is neither a number nor one of kFollowing.
FileRole role_of_stem(std::string_view stem) {
  while (!stem.empty()) {
    const std::size_t cut = stem.find_last_of("-_. ");
    const std::string_view word = cut == stem.npos ? stem : stem.substr(cut + 1);
    if (const FileRole role = role_of_word(word); role != FileRole::none) return role;
    if (!is_number(word) && std::ranges::find(kFollowing, word) == std::end(kFollowing)) return FileRole::none;
    stem = cut == stem.npos ? std::string_view() : stem.substr(0, cut);
  }
  return FileRole::none;
}

bool is_tokens(const Path& path) { return path.extension() == ".bin" || path.extension() == ".idx"; }

// A folder, or what stands before the pattern's first sign.
Path base_of(const std::string& entry) {
  const std::size_t sign = entry.find_first_of("*?[");
  return sign == entry.npos ? Path(entry) : Path(entry.substr(0, sign)).parent_path();
}

// "train.bin", "train-00000.parquet and 99 more files"
std::string some_of(const std::vector<std::string>& paths, const std::string& entry) {
  constexpr std::size_t kNamed = 3;
  std::vector<std::string> names;
  for (const std::string& path : paths) {
    if (names.size() == kNamed) break;
    const std::string below = Path(path).lexically_relative(base_of(entry)).string();
    names.push_back(below.empty() || below.starts_with("..") ? path : below);
  }
  std::string text = names[0];
  if (paths.size() > kNamed) return fmt::format("{} and {} more", text, counted(paths.size() - 1, "file"));
  for (std::size_t i = 1; i < names.size(); ++i) text += (i + 1 == names.size() ? " and " : ", ") + names[i];
  return text;
}

struct Item {
  std::string path;
  FileRole role = FileRole::none;
  bool tokens = false;
  std::uint64_t bytes = 0;
};

// The files of the entry; those of a prepared folder as one.
std::vector<Item> items_of(const std::string& entry, const std::vector<Path>& files) {
  std::vector<Item> items;
  std::map<Path, std::optional<std::size_t>> folders;  // the item that a prepared one is
  const Path base = base_of(entry);
  const auto add = [&](const Path& path, bool tokens) -> Item& {
    const std::string below = path.lexically_relative(base).string();
    const FileRole role = role_of(below.starts_with("..") ? path.filename().string() : below);
    return items.emplace_back(Item{path.string(), role, tokens});
  };
  for (const Path& file : files) {
    const Path parent = file.parent_path();
    const auto [folder, first] = folders.try_emplace(parent);
    if (first && is_prepared_folder(parent)) {
      folder->second = items.size();
      add(parent, true);
    }
    Item& item = folder->second ? items[*folder->second] : add(file, is_tokens(file));
    item.bytes += real_files().size(file);
  }
  return items;
}

}  // namespace

FileRole role_of(std::string_view path_below) {
  const Path path = lower(path_below);
  const Path name = compression_of(path) == Compression::none ? path.filename() : path.stem();
  const std::string ending = name.extension().string();
  if (std::ranges::find(kDataEndings, ending) == std::end(kDataEndings)) {
    // "train.000": the ending is a number.
    if (ending.size() < 2 || !is_number(std::string_view(ending).substr(1))) return FileRole::none;
  }
  if (const FileRole role = role_of_stem(name.stem().string()); role != FileRole::none) return role;
  for (Path folder = path.parent_path(); !folder.empty() && folder != folder.parent_path();
       folder = folder.parent_path())
    if (const FileRole role = role_of_stem(folder.filename().string()); role != FileRole::none) return role;
  return FileRole::none;
}

std::optional<RoleSplit> split_by_role(const std::string& entry, const std::string& key) {
  if (entry == "ping" || random_vocabulary(entry, key) || is_prepared_folder(entry)) return {};
  std::error_code error;
  const bool pattern = !real_files().exists(entry) && entry.find_first_of("*?[") != entry.npos;
  if (!pattern && !std::filesystem::is_directory(entry, error)) return {};
  return split_by_role(entry, expand_paths({entry}, key));
}

std::optional<RoleSplit> split_by_role(const std::string& entry, const std::vector<Path>& files) {
  const bool pattern = !real_files().exists(entry);
  const std::vector<Item> items = items_of(entry, files);
  const auto any = [&](FileRole role) { return std::ranges::find(items, role, &Item::role) != items.end(); };
  const bool train = any(FileRole::train);
  if (!train && (pattern || (!any(FileRole::held_out) && !any(FileRole::test)))) return {};

  std::uint64_t named = 0, unnamed = 0;  // bytes
  bool tokens = false;
  for (const Item& item : items)
    if (item.role == FileRole::train) {
      named += item.bytes;
      tokens |= item.tokens;
    }
  const auto could_be_read = [&](const Item& item) { return item.role == FileRole::none && (!tokens || item.tokens); };
  for (const Item& item : items)
    if (could_be_read(item)) unnamed += item.bytes;
  RoleSplit split;
  for (const Item& item : items) {
    const bool taken = item.role == FileRole::train || (could_be_read(item) && unnamed > named);
    std::vector<std::string>& to = taken                             ? split.train
                                   : item.role == FileRole::held_out ? split.held_out
                                   : item.role == FileRole::test     ? split.test
                                                                     : split.others;
    to.push_back(item.path);
  }
  // All of it is validation or test data, and was named to train on.
  if (split.train.empty() || split.train.size() == items.size()) return {};
  return split;
}

std::string in_words(const RoleSplit& split, const std::string& entry, std::string_view key, RoleUse use) {
  const auto say = [&](const std::vector<std::string>& paths, std::string_view what) {
    return paths.empty() ? "" : fmt::format("{} {} {}", some_of(paths, entry), paths.size() == 1 ? "is" : "are", what);
  };
  const bool evaluates = use == RoleUse::evaluate;
  std::string text = fmt::format("{}: {}: {}", key, entry,
                                 evaluates ? say(split.evaluated(), "evaluated on") : say(split.train, "trained on"));
  if (use == RoleUse::train_and_hold_out && !split.held_out.empty()) text += ", " + say(split.held_out, "held out");
  text += ", by the names";
  std::vector<std::string> unread;
  const auto leave = [&](const std::vector<std::string>& paths) {
    unread.insert(unread.end(), paths.begin(), paths.end());
  };
  if (evaluates) leave(split.train);
  if (use == RoleUse::train) leave(split.held_out);
  if (!evaluates || !split.held_out.empty()) leave(split.test);
  leave(split.others);
  if (!unread.empty()) text += "; " + say(unread, "not read");
  return text + fmt::format(" ({} none reads every file)", key.starts_with("data.") ? "data.roles =" : "--roles");
}

}  // namespace redline::data

// JSON over untrusted bytes. The tree is built here from the parser's events: nlohmann's own builder keeps the last of
// two equal keys, and searches an ordered object for every key it adds (minutes for a vocabulary of 150 thousand).
#include "io/json.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <limits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files.h"

namespace redline::io {
namespace {

// Reads bytes and counts them, since the parser's events do not say where they are.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, std::size_t* read) : at_(at), read_(read) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_;
    ++*read_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  std::size_t* read_;
};

// The part of nlohmann's message that says what is wrong: it starts with an identifier and often repeats the position.
std::string reason_of(const nlohmann::detail::exception& error) {
  std::string_view text = error.what();
  if (const auto bracket = text.find("] "); bracket != text.npos) text.remove_prefix(bracket + 2);
  if (text.starts_with("parse error")) {
    if (const auto colon = text.find(": "); colon != text.npos) text.remove_prefix(colon + 2);
  }
  std::string reason(text.substr(0, 300));
  for (char& c : reason) {
    if (c < ' ' || c > '~') c = '?';
  }
  return reason;
}

// The receiver of the parser's events; nlohmann names its functions.
class TreeBuilder {
 public:
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  TreeBuilder(std::string_view file_name, const std::size_t& read) : file_name_(file_name), read_(read) {}

  Json take() { return std::move(root_); }

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(number_integer_t value) { return add(value); }
  bool number_unsigned(number_unsigned_t value) { return add(value); }
  bool number_float(number_float_t value, const string_t&) { return add(value); }
  bool string(string_t& value) { return add(std::move(value)); }
  bool binary(binary_t& value) { return add(std::move(value)); }
  bool start_object(std::size_t) { return open(Json::object()); }
  bool end_object() { return close(); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_array() { return close(); }

  bool key(string_t& name) {
    if (!open_.back().keys.insert(name).second) {
      fail_user("{}: not valid JSON at byte {}: the key {} is there twice", file_name_, read_, in_quotes(name));
    }
    key_ = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) {
    fail_user("{}: not valid JSON at byte {}: {}", file_name_, position, reason_of(error));
  }

 private:
  static constexpr std::size_t kDeepest = 127;  // as serde_json: a level takes memory, a byte of the file makes one
  using Members = std::vector<std::pair<const string_t, Json>>;  // what an ordered object is underneath
  struct Level {
    Json* container;
    std::unordered_set<string_t> keys;
  };

  // Pointers to containers stay valid: while one is open, nothing is added to those around it.
  Json* place(Json&& value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& container = *open_.back().container;
    if (container.is_array()) return &container.get_ref<Json::array_t&>().emplace_back(std::move(value));
    Members& members = container.get_ref<Json::object_t&>();
    return &members.emplace_back(std::move(key_), std::move(value)).second;
  }
  bool add(Json&& value) {
    place(std::move(value));
    return true;
  }
  bool open(Json&& container) {
    if (open_.size() == kDeepest)
      fail_user("{}: not valid JSON at byte {}: more than {} levels inside each other", file_name_, read_, kDeepest);
    open_.push_back({place(std::move(container)), {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view file_name_;
  const std::size_t& read_;
  Json root_;
  std::vector<Level> open_;
  string_t key_;
};

[[noreturn]] void fail_kind(const Json& value, std::string_view key, std::string_view file_name,
                            std::string_view wanted) {
  fail_user("{}: {} must be {}, not {}", file_name, in_quotes(key), wanted,
            value.is_number() ? value.dump() : std::string(value.type_name()));
}

}  // namespace

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kMost = 120;
  std::string result = "\"";
  for (const char c : text.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += c;
    }
  }
  return result + (text.size() > kMost ? "...\"" : "\"");
}

void require_plain_name(std::string_view name, std::string_view file_name) {
  if (name.empty() || name == "." || name == ".." || name.find_first_of(std::string_view("/\\\0", 3)) != name.npos)
    fail_user("{}: {} is not the name of a file in this folder", file_name, in_quotes(name));
}

Json parse_json(std::string_view text, std::string_view file_name) {
  std::size_t read = 0;
  TreeBuilder builder(file_name, read);
  Json::sax_parse(CountingIterator(text.data(), &read), CountingIterator(text.data() + text.size(), &read), &builder);
  return builder.take();
}

Json read_json(FileSystem& files, const Path& path) {
  if (!files.exists(path)) fail_user("{}: there is no such file", path.string());
  return parse_json(read_at_most(files, path, kMostJsonBytes), path.string());
}

std::optional<std::string> read_side_file(FileSystem& files, const Path& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const bool link = fs::is_symlink(path, ignored);
  if (!files.exists(path)) {
    if (link) fail_user("{}: a link that leads nowhere; bring back what it means, or remove it", path.string());
    return {};
  }
  if (link) {
    const Path file = fs::canonical(path, ignored), folder = fs::canonical(parent_of(path), ignored);
    const auto lies_in = [&](const Path& parent) {
      return std::mismatch(parent.begin(), parent.end(), file.begin(), file.end()).first == parent.end();
    };
    const bool snapshot = parent_of(folder).filename() == "snapshots";
    if (!lies_in(folder) && !(snapshot && lies_in(parent_of(parent_of(folder)) / "blobs")))
      fail_user("{}: a link out of its folder, to {}, which is not handed on; put the file itself there, or remove it",
                path.string(), file.string());
  }
  std::string text = files.read(path);
  if (path.extension() == ".json" && !parse_json(text, path.string()).is_object())
    fail_user("{}: not a JSON object", path.string());
  return text;
}

const Json& member_at(const Json& object, std::string_view key, std::string_view file_name) {
  if (!object.is_object())
    fail_user("{}: expected an object with the key {}, found {}", file_name, in_quotes(key), object.type_name());
  const auto found = object.find(std::string(key));
  if (found == object.end()) fail_user("{}: the key {} is missing", file_name, in_quotes(key));
  return *found;
}

std::int64_t integer_at(const Json& object, std::string_view key, std::string_view file_name) {
  const Json& value = member_at(object, key, file_name);
  const bool fits =
      value.is_number_integer() &&
      !(value.is_number_unsigned() &&
        value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
  if (!fits) fail_kind(value, key, file_name, "an integer of 64 bits");
  return value.get<std::int64_t>();
}

double number_at(const Json& object, std::string_view key, std::string_view file_name) {
  const Json& value = member_at(object, key, file_name);
  if (!value.is_number()) fail_kind(value, key, file_name, "a number");
  return value.get<double>();
}

std::string string_at(const Json& object, std::string_view key, std::string_view file_name) {
  const Json& value = member_at(object, key, file_name);
  if (!value.is_string()) fail_kind(value, key, file_name, "a string");
  return value.get<std::string>();
}

bool boolean_at(const Json& object, std::string_view key, std::string_view file_name) {
  const Json& value = member_at(object, key, file_name);
  if (!value.is_boolean()) fail_kind(value, key, file_name, "true or false");
  return value.get<bool>();
}

bool boolean_or(const Json& object, std::string_view key, bool otherwise, std::string_view file_name) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? otherwise : boolean_at(object, key, file_name);
}

}  // namespace redline::io

// The safetensors format: the strict reader and the writer. Conversions to the types we compute
// in are in stored_tensor.cpp.
#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "io/json.h"

namespace redline::io {
namespace {

constexpr std::uint64_t kLengthBytes = 8;               // before the header: its length, little-endian
constexpr std::uint64_t kMostHeader = 100'000'000;      // the reference's limit
constexpr std::string_view kMetadata = "__metadata__";  // the one key of the header that is not a tensor

constexpr std::array<std::pair<std::string_view, DType>, 9> kDTypes = {{{"F32", DType::f32},
                                                                        {"F64", DType::f64},
                                                                        {"BF16", DType::bf16},
                                                                        {"F16", DType::f16},
                                                                        {"I32", DType::i32},
                                                                        {"I64", DType::i64},
                                                                        {"U8", DType::u8},
                                                                        {"U16", DType::u16},
                                                                        {"U32", DType::u32}}};

std::optional<DType> dtype_named(std::string_view name) {
  for (const auto& [text, dtype] : kDTypes) {
    if (text == name) return dtype;
  }
  return {};
}

std::string_view file_name_of(DType wanted) {
  for (const auto& [text, dtype] : kDTypes) {
    if (dtype == wanted) return text;
  }
  return "?";
}

// a * b where both are non-negative; nothing when it does not fit.
std::optional<std::int64_t> product(std::int64_t a, std::int64_t b) {
  if (b != 0 && a > std::numeric_limits<std::int64_t>::max() / b) return {};
  return a * b;
}

// The bytes of a tensor of that type and shape; nothing when it does not fit in 64 bits or an extent is negative.
std::optional<std::int64_t> bytes_of(DType dtype, const std::vector<std::int64_t>& shape) {
  std::optional<std::int64_t> bytes = static_cast<std::int64_t>(size_of(dtype));
  for (const std::int64_t extent : shape) bytes = bytes && extent >= 0 ? product(*bytes, extent) : std::nullopt;
  return bytes;
}

MappedFile map_existing(const Path& path) {
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  if (status.type() == std::filesystem::file_type::not_found) fail_user("{}: there is no such file", path.string());
  return MappedFile(path);
}

// The JSON text between the length and the data.
std::string_view header_of(std::span<const std::byte> file, const std::string& name) {
  if (file.size() < kLengthBytes)
    fail_user("{}: truncated: {} bytes, a safetensors file has at least 8", name, file.size());
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<std::uint64_t>(file[i]) << (8 * i);
  if (length > kMostHeader) {
    fail_user("{}: not a safetensors file: its header would be {} bytes, at most {} are allowed", name, length,
              kMostHeader);
  }
  if (length > file.size() - kLengthBytes) {
    fail_user("{}: truncated: the header is {} bytes, {} are left in the file", name, length,
              file.size() - kLengthBytes);
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes,
                              static_cast<std::size_t>(length));
  if (!text.starts_with('{'))
    fail_user("{}: not a safetensors file: the header at byte 8 does not begin with '{{'", name);
  return text;
}

// The header's description of one tensor, checked but for where its bytes lie among the others'.
struct Entry {
  StoredTensor tensor;
  std::int64_t begin = 0, end = 0;
};

class EntryParser {
 public:
  EntryParser(const std::string& file, const std::string& tensor) : file_(file), tensor_(tensor) {}

  Entry parse(const Json& value) const {
    if (!value.is_object()) fail("its header entry is not an object");
    Entry entry;
    entry.tensor.name = tensor_;
    entry.tensor.dtype = dtype(field(value, "dtype"));
    const Json& shape = field(value, "shape");
    if (!shape.is_array()) fail("its shape is not an array");
    for (const Json& extent : shape) entry.tensor.shape.push_back(count(extent, "shape"));
    const std::optional<std::int64_t> bytes = bytes_of(entry.tensor.dtype, entry.tensor.shape);
    if (!bytes) fail("the product of its shape overflows");
    const Json& offsets = field(value, "data_offsets");
    if (!offsets.is_array() || offsets.size() != 2) fail("its data_offsets are not two numbers");
    entry.begin = count(offsets[0], "data_offsets");
    entry.end = count(offsets[1], "data_offsets");
    if (entry.begin > entry.end) fail(fmt::format("its data_offsets run backwards, {} to {}", entry.begin, entry.end));
    if (entry.end - entry.begin != *bytes) {
      fail(fmt::format("it has {} bytes where its shape and dtype need {}", entry.end - entry.begin, *bytes));
    }
    return entry;
  }

  [[noreturn]] void fail(const std::string& problem) const {
    fail_user("{}: tensor {}: {}", file_, in_quotes(tensor_), problem);
  }

 private:
  const Json& field(const Json& value, const char* key) const {
    const auto found = value.find(key);
    if (found == value.end()) fail(fmt::format("its header entry has no {}", key));
    return *found;
  }

  DType dtype(const Json& value) const {
    if (!value.is_string()) fail("its dtype is not a string");
    const auto& name = value.get_ref<const std::string&>();
    const std::optional<DType> known = dtype_named(name);
    if (!known)
      fail(fmt::format("its dtype {} is not one that redline reads (F32, F64, BF16, F16, I32, I64, U8, U16, U32)",
                       in_quotes(name)));
    return *known;
  }

  std::int64_t count(const Json& value, const char* key) const {
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMost) {
      fail(fmt::format("its {} holds something that is not a count", key));
    }
    return static_cast<std::int64_t>(value.get<std::uint64_t>());
  }

  const std::string& file_;
  const std::string& tensor_;
};

std::map<std::string, std::string> parse_metadata(const Json& value, const std::string& file) {
  std::map<std::string, std::string> metadata;
  if (value.is_null()) return metadata;
  if (!value.is_object()) fail_user("{}: {} is not an object", file, kMetadata);
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) fail_user("{}: {}: the value of {} is not a string", file, kMetadata, in_quotes(key));
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

}  // namespace

SafetensorsReader::SafetensorsReader(const Path& path) : path_(path), file_(map_existing(path)) {
  const std::string file = path.string();
  const std::string_view text = header_of(file_.bytes(), file);
  const Json header = parse_json(text, file + " (header)");

  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadata) {
      metadata_ = parse_metadata(value, file);
    } else {
      entries.push_back(EntryParser(file, name).parse(value));
    }
  }
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });

  const std::span<const std::byte> data = file_.bytes().subspan(kLengthBytes + text.size());
  std::int64_t covered = 0;
  for (Entry& entry : entries) {
    const EntryParser about(file, entry.tensor.name);
    if (entry.begin != covered) {
      about.fail(fmt::format("its data begins at {} where {} was expected: {}", entry.begin, covered,
                             entry.begin > covered ? "there is a hole before it" : "it overlaps another tensor"));
    }
    if (static_cast<std::uint64_t>(entry.end) > data.size()) {
      about.fail(fmt::format("its data ends at {}, the file's data at {}: truncated", entry.end, data.size()));
    }
    covered = entry.end;
    entry.tensor.bytes =
        data.subspan(static_cast<std::size_t>(entry.begin), static_cast<std::size_t>(entry.end - entry.begin));
    index_.emplace(entry.tensor.name, tensors_.size());
    tensors_.push_back(std::move(entry.tensor));
  }
  if (static_cast<std::uint64_t>(covered) != data.size()) {
    fail_user("{}: {} bytes after the last tensor belong to none", file,
              data.size() - static_cast<std::uint64_t>(covered));
  }
}

const StoredTensor* SafetensorsReader::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

const StoredTensor& SafetensorsReader::at(std::string_view name) const {
  const StoredTensor* tensor = find(name);
  if (!tensor) fail_user("{} holds no tensor {}", path_.string(), name);
  return *tensor;
}

SafetensorsHeader safetensors_header(const Path& path, std::span<const TensorToWrite> tensors,
                                     const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header[std::string(kMetadata)] = metadata;
  std::set<std::string_view> names = {kMetadata};
  SafetensorsHeader result;
  std::uint64_t data = 0;
  for (const TensorToWrite& t : tensors) {
    const std::optional<std::int64_t> bytes = bytes_of(t.dtype, t.shape);
    REDLINE_CHECK(bytes, "tensor {} of {} has an impossible shape", t.name, path.string());
    REDLINE_CHECK(names.insert(t.name).second, "two tensors of {} are named {}", path.string(), t.name);
    const std::uint64_t end = data + static_cast<std::uint64_t>(*bytes);
    header[t.name] = {{"dtype", file_name_of(t.dtype)}, {"shape", t.shape}, {"data_offsets", {data, end}}};
    result.begins.push_back(data);
    data = end;
  }
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  REDLINE_CHECK(text.size() <= kMostHeader, "the header of {} would be {} bytes", path.string(), text.size());
  for (std::size_t i = 0; i < kLengthBytes; ++i) result.bytes += static_cast<char>(text.size() >> (8 * i));
  result.bytes += text;
  for (std::uint64_t& begin : result.begins) begin += result.bytes.size();
  result.file_bytes = result.bytes.size() + data;
  return result;
}

SafetensorsWriter::SafetensorsWriter(FileSystem& files, const Path& path, std::span<const TensorToWrite> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path) {
  const SafetensorsHeader header = safetensors_header(path, tensors, metadata);
  writer_ = files.create(path);
  left_ = header.file_bytes;
  put(std::as_bytes(std::span(header.bytes)));
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::put(std::span<const std::byte> bytes) {
  REDLINE_CHECK(bytes.size() <= left_, "{}: {} bytes more than its header promises", path_.string(),
                bytes.size() - left_);
  left_ -= bytes.size();
  // In pieces that stay in the cache between the hash and the copy into the kernel.
  constexpr std::size_t kPiece = std::size_t{1} << 18;
  for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
    const auto piece = bytes.subspan(at, std::min(kPiece, bytes.size() - at));
    hasher_.update(piece);
    writer_->write(piece);
  }
}

std::uint64_t SafetensorsWriter::finish() {
  REDLINE_CHECK(left_ == 0, "{}: {} bytes are missing of what its header promises", path_.string(), left_);
  writer_->sync();
  writer_->close();
  return hasher_.digest();
}

std::uint64_t write_safetensors(FileSystem& files, const Path& path, std::span<const TensorToWrite> tensors,
                                const std::map<std::string, std::string>& metadata) {
  for (const TensorToWrite& t : tensors) {
    const std::optional<std::int64_t> bytes = bytes_of(t.dtype, t.shape);
    REDLINE_CHECK(bytes && static_cast<std::uint64_t>(*bytes) == t.bytes.size(),
                  "tensor {} of {} has {} bytes, which is not what its shape and dtype need", t.name, path.string(),
                  t.bytes.size());
  }
  SafetensorsWriter writer(files, path, tensors, metadata);
  for (const TensorToWrite& t : tensors) writer.put(t.bytes);
  return writer.finish();
}

}  // namespace redline::io

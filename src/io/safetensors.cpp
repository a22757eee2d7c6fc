// The safetensors format: conversions of stored tensors, the strict reader, the writer, and folders of such files.
#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/small_floats.h"
#include "base/words.h"
#include "io/json.h"

namespace redline::io {
namespace {

// Conversions to the types we compute in. Data in a file may stand at any byte, and so may the result, so elements are
// copied rather than pointed at.

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

float f32_from_f16(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  std::uint32_t wide;
  if (magnitude >= 0x7c00u) {  // infinity and NaN keep their payload
    wide = 0x7f800000u | (magnitude & 0x3ffu) << 13;
  } else if (magnitude >= 0x0400u) {
    wide = (magnitude << 13) + (std::uint32_t{127 - 15} << 23);
  } else {  // zero and subnormals: exact in f32, whose exponents go much lower
    wide = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  }
  return std::bit_cast<float>(sign | wide);
}

std::uint16_t f16_from_f32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  std::uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7c00u | (magnitude & 0x007fe000u ? magnitude >> 13 & 0x3ffu : 0x200u);  // NaN, as above
  } else if (magnitude >= 0x47800000u) {
    half = 0x7c00u;  // 65536 and above, and infinity
  } else if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 leaves the bits in the low end of the mantissa, rounded by the addition itself.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - (std::uint32_t{127 - 15} << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

template <class From, class Convert>
void convert_all(const std::byte* from, std::int64_t count, std::byte* out, const Convert& convert) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    From value;
    std::memcpy(&value, from + i * sizeof(From), sizeof(From));
    const auto converted = convert(value);
    std::memcpy(out + i * sizeof converted, &converted, sizeof converted);
  }
}

// NaN and infinity are the numbers whose exponent has every bit set. The first pass only asks for the largest exponent,
// in several vectors side by side: 47 GB/s on a core of a Neoverse-V1, where counting in one vector was 19.
template <class Bits>
std::int64_t count_not_finite(std::span<const std::byte> bytes, Bits exponent) {
  const std::size_t n = bytes.size() / sizeof(Bits);
  const auto exponent_of = [&](std::size_t i) {
    Bits bits;
    std::memcpy(&bits, bytes.data() + i * sizeof(Bits), sizeof(Bits));
    return static_cast<Bits>(bits & exponent);
  };
  constexpr std::size_t kLanes = 128 / sizeof(Bits);
  Bits largest[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) largest[lane] = std::max(largest[lane], exponent_of(i + lane));
  for (; i < n; ++i) largest[0] = std::max(largest[0], exponent_of(i));
  if (std::ranges::find(largest, exponent) == std::end(largest)) return 0;
  std::int64_t count = 0;
  for (i = 0; i < n; ++i) count += exponent_of(i) == exponent;
  return count;
}

// Rounds; false where a finite value became infinite.
template <class Round>
bool round_all(std::span<const float> from, std::byte* out, std::uint16_t infinity, const Round& round) {
  bool held = true;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const std::uint16_t bits = round(from[i]);
    held = held && ((bits & 0x7fffu) != infinity || !std::isfinite(from[i]));
    std::memcpy(out + i * sizeof bits, &bits, sizeof bits);
  }
  return held;
}

}  // namespace

std::int64_t StoredTensor::elements() const { return static_cast<std::int64_t>(bytes.size() / size_of(dtype)); }

void StoredTensor::convert(std::span<const std::byte> from, DType to, std::byte* out) const {
  if (from.empty()) return;
  if (dtype == to) {
    std::memcpy(out, from.data(), from.size());
    return;
  }
  const auto count = static_cast<std::int64_t>(from.size() / size_of(dtype));
  if (to != DType::f32) {
    constexpr std::int64_t kStep = 4096;  // floats that stay in the nearest cache
    std::array<float, kStep> floats;
    bool held = true;
    for (std::int64_t at = 0; at < count; at += kStep) {
      const std::int64_t n = std::min(kStep, count - at);
      convert(from.subspan(static_cast<std::size_t>(at) * size_of(dtype), static_cast<std::size_t>(n) * size_of(dtype)),
              DType::f32, reinterpret_cast<std::byte*>(floats.data()));
      const std::span<const float> some(floats.data(), static_cast<std::size_t>(n));
      std::byte* place = out + static_cast<std::size_t>(at) * size_of(to);
      switch (to) {
        case DType::bf16: held = round_all(some, place, 0x7f80u, bf16_from_f32) && held; break;
        case DType::f16: held = round_all(some, place, 0x7c00u, f16_from_f32) && held; break;
        default: fail_machine("tensors are not converted to {}", name_of(to));
      }
    }
    if (!held) fail_user("tensor {} holds numbers that are too large for {}", in_quotes(name), name_of(to));
    return;
  }
  switch (dtype) {
    case DType::f64: {
      bool held = true;
      convert_all<double>(from.data(), count, out, [&](double x) {
        const auto narrow = static_cast<float>(x);
        held = held && (std::isfinite(narrow) || !std::isfinite(x));
        return narrow;
      });
      if (!held) fail_user("tensor {} holds numbers that are too large for {}", in_quotes(name), name_of(to));
      return;
    }
    case DType::bf16: return convert_all<std::uint16_t>(from.data(), count, out, f32_from_bf16);
    case DType::f16: return convert_all<std::uint16_t>(from.data(), count, out, f32_from_f16);
    default: fail_user("tensor {} has dtype {}; a float type is needed here", in_quotes(name), name_of(dtype));
  }
}

std::int64_t StoredTensor::not_finite(std::span<const std::byte> some) const {
  switch (dtype) {
    case DType::f32: return count_not_finite<std::uint32_t>(some, 0x7f800000u);
    case DType::bf16: return count_not_finite<std::uint16_t>(some, 0x7f80u);
    case DType::f16: return count_not_finite<std::uint16_t>(some, 0x7c00u);
    case DType::f64: return count_not_finite<std::uint64_t>(some, 0x7ff0000000000000u);
    default: fail_user("tensor {} has dtype {}; a float type is needed here", in_quotes(name), name_of(dtype));
  }
}

void StoredTensor::to_f32(std::span<float> out) const {
  REDLINE_CHECK(static_cast<std::int64_t>(out.size()) == elements(), "tensor {} has {} elements, not {}", name,
                elements(), out.size());
  convert(bytes, DType::f32, reinterpret_cast<std::byte*>(out.data()));
}

std::vector<float> StoredTensor::to_f32() const {
  std::vector<float> out(static_cast<std::size_t>(elements()));
  to_f32(out);
  return out;
}

std::vector<std::int32_t> StoredTensor::to_i32() const {
  std::vector<std::int32_t> out(static_cast<std::size_t>(elements()));
  switch (dtype) {
    case DType::i32:
      if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
      return out;
    case DType::i64:
      convert_all<std::int64_t>(bytes.data(), elements(), reinterpret_cast<std::byte*>(out.data()),
                                [&](std::int64_t x) {
                                  using Limits = std::numeric_limits<std::int32_t>;
                                  if (x < Limits::min() || x > Limits::max())
                                    fail_user("tensor {} holds {}, which does not fit in 32 bits", in_quotes(name), x);
                                  return static_cast<std::int32_t>(x);
                                });
      return out;
    default: fail_user("tensor {} has dtype {}; I32 or I64 is needed here", in_quotes(name), name_of(dtype));
  }
}

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

namespace {

using WeightMap = std::map<std::string, std::string>;  // tensor -> file

WeightMap read_index(FileSystem& files, const Path& path) {
  const std::string where = path.string();
  const Json index = read_json(files, path);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object() || map->empty())
    fail_user("{}: \"weight_map\" is missing, empty or not an object", where);
  WeightMap result;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) fail_user("{}: the file of {} is not a string", where, in_quotes(tensor));
    const std::string& name = file.get_ref<const std::string&>();
    require_plain_name(name, where);
    result.emplace(tensor, name);
  }
  return result;
}

WeightFiles::File open_file(const Path& folder, const std::string& name,
                            const std::map<std::string, FileHashes>& hashes) {
  const auto found = hashes.find(name);
  return {std::make_unique<SafetensorsReader>(folder / name), found == hashes.end() ? FileHashes{} : found->second};
}

}  // namespace

WeightFiles::File open_hashed(FileSystem& files, const Path& folder, const std::string& name) {
  return open_file(folder, name, checkpoint_hashes(files, folder));
}

bool has_weights(FileSystem& files, const Path& folder) {
  return files.exists(folder / kWeightsFile) || files.exists(folder / kWeightsIndex);
}

WeightFiles::WeightFiles(FileSystem& files, const Path& folder) {
  const std::map<std::string, FileHashes> hashes = checkpoint_hashes(files, folder);
  const auto open = [&](const std::string& name) { files_.push_back(open_file(folder, name, hashes)); };
  // As transformers: where both are there, the one file counts.
  if (files.exists(folder / kWeightsFile)) {
    listing_ = folder / kWeightsFile;
    open(kWeightsFile);
    return;
  }
  listing_ = folder / kWeightsIndex;
  if (!files.exists(listing_))
    fail_user("{}: there is neither {} nor {}", folder.string(), kWeightsFile, kWeightsIndex);
  const WeightMap map = read_index(files, listing_);
  std::map<std::string, std::size_t> promised;  // tensors of each shard
  for (const auto& [tensor, name] : map) ++promised[name];
  std::vector<std::string> missing;
  std::size_t tensors = 0;  // of these
  for (const auto& [name, count] : promised) {
    if (files.exists(folder / name)) continue;
    missing.push_back(name);
    tensors += count;
  }
  if (missing.size() == 1)
    fail_user("{}: the shard {} is missing; {} names it for {}", folder.string(), missing[0], kWeightsIndex,
              counted(tensors, "tensor"));
  if (!missing.empty())
    fail_user("{}: {} of the {} shards that {} names are missing, with {}: {}{}", folder.string(), missing.size(),
              promised.size(), kWeightsIndex, counted(tensors, "tensor"),
              fmt::join(missing.begin(), missing.begin() + std::min<std::ptrdiff_t>(3, std::ssize(missing)), ", "),
              missing.size() > 3 ? ", …" : "");
  for (const auto& [name, count] : promised) {
    open(name);
    for (const StoredTensor& t : files_.back().reader->tensors()) {
      const auto it = map.find(t.name);
      if (it == map.end())
        fail_user("{} holds {}, which {} does not name", (folder / name).string(), in_quotes(t.name), kWeightsIndex);
      if (it->second != name)
        fail_user("{} holds {}, which {} says is in {}", (folder / name).string(), in_quotes(t.name), kWeightsIndex,
                  it->second);
    }
  }
  for (const auto& [tensor, name] : map)
    if (!find(tensor))
      fail_user("{} holds no tensor {}, which {} says is there", (folder / name).string(), in_quotes(tensor),
                kWeightsIndex);
}

WeightFiles::WeightFiles(FileSystem& files, const Path& folder, const std::string& name) : listing_(folder / name) {
  files_.push_back(open_hashed(files, folder, name));
}

const StoredTensor* WeightFiles::find(std::string_view name) const {
  for (const File& file : files_)
    if (const StoredTensor* tensor = file.reader->find(name)) return tensor;
  return nullptr;
}

const StoredTensor& WeightFiles::at(std::string_view name) const {
  const StoredTensor* tensor = find(name);
  if (!tensor) fail_user("{} holds no tensor {}", listing_.string(), name);
  return *tensor;
}

std::size_t WeightFiles::tensors() const {
  std::size_t n = 0;
  for (const File& file : files_) n += file.reader->tensors().size();
  return n;
}

std::uint64_t WeightFiles::bytes() const {
  std::uint64_t n = 0;
  for (const File& file : files_) n += file.reader->file().bytes().size();
  return n;
}

}  // namespace redline::io

// The one place that knows the keys of a manifest; and stretches of a shared file, written where they belong.
#include "io/manifest.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "io/json.h"

namespace redline::io {
namespace {

// 2 has files with a hash for each of several stretches. A manifest without such a file is written as 1.
constexpr std::int64_t kOneHash = 1, kStretches = 2;

std::uint64_t count_at(const Json& json, const char* key, const std::string& where, const std::string& name) {
  const std::int64_t number = integer_at(json, key, where);
  if (number < 0) fail_user("{}: {} of {} is negative", where, in_quotes(key), in_quotes(name));
  return static_cast<std::uint64_t>(number);
}

ManifestFile file_from(const std::string& name, const Json& entry, const std::string& where) {
  require_plain_name(name, where);
  ManifestFile file{name, count_at(entry, "bytes", where, name), {}};
  const auto stretches = entry.find("stretches");
  if (stretches == entry.end()) {
    file.hashes.push_back({0, file.bytes, string_at(entry, "xxh3", where)});
    return file;
  }
  if (!stretches->is_array()) fail_user("{}: the stretches of {} are not an array", where, in_quotes(name));
  std::uint64_t at = 0;
  for (const Json& s : *stretches) {
    const HashedStretch& stretch = file.hashes.emplace_back(
        HashedStretch{count_at(s, "begin", where, name), count_at(s, "end", where, name), string_at(s, "xxh3", where)});
    if (s.contains("by")) file.hashes.back().by = string_at(s, "by", where);
    if (stretch.begin != at || stretch.end <= at)
      fail_user("{}: the stretches of {} do not follow each other at byte {}", where, in_quotes(name), at);
    at = stretch.end;
  }
  if (at != file.bytes)
    fail_user("{}: the stretches of {} end at byte {}, the file at {}", where, in_quotes(name), at, file.bytes);
  return file;
}

Json to_json(const FileHashes& hashes, std::uint64_t bytes) {
  if (hashes.size() == 1) return {{"bytes", bytes}, {"xxh3", hashes.front().xxh3}};
  Json stretches = Json::array();
  for (const HashedStretch& s : hashes) {
    stretches.push_back({{"begin", s.begin}, {"end", s.end}, {"xxh3", s.xxh3}});
    if (!s.by.empty()) stretches.back()["by"] = s.by;
  }
  return {{"bytes", bytes}, {"stretches", std::move(stretches)}};
}

void require_whole(const FileHashes& hashes, std::uint64_t bytes, const std::string& name) {
  std::uint64_t at = 0;
  for (const HashedStretch& s : hashes) {
    REDLINE_CHECK(s.begin == at && s.end >= at, "of {} nobody wrote byte {}, or two did", name, std::min(at, s.begin));
    at = s.end;
  }
  REDLINE_CHECK(at == bytes, "of {} bytes of {}, {} were written", bytes, name, at);
}

// The rank of "rank 2 on node1", as joined_reports() of checkpoint_folder.cpp writes it; others come last.
std::uint64_t rank_in(std::string_view by) {
  constexpr std::string_view kRank = "rank ";
  std::uint64_t rank = std::numeric_limits<std::uint64_t>::max();
  if (by.starts_with(kRank)) std::from_chars(by.data() + kRank.size(), by.data() + by.size(), rank);
  return rank;
}

// Bytes that stay in the cache between the hash and the copy into the kernel; and those that are read back at once.
constexpr std::size_t kPiece = std::size_t{1} << 18, kReadBack = std::size_t{1} << 20;

}  // namespace

Manifest read_manifest(FileSystem& files, const Path& folder) {
  const Path path = folder / kManifest;
  const std::string where = path.string();
  const Json manifest = read_json(files, path);
  if (const std::int64_t format = integer_at(manifest, "format", where); format != kOneHash && format != kStretches)
    fail_user("{}: its format is {}, this redline knows {} and {}", where, format, kOneHash, kStretches);
  const auto entries = manifest.find("files");
  if (entries == manifest.end() || !entries->is_object()) fail_user("{}: \"files\" is missing or not an object", where);
  Manifest result{integer_at(manifest, "step", where), {}};
  for (const auto& [name, entry] : entries->items()) result.files.push_back(file_from(name, entry, where));
  return result;
}

void write_manifest(FileSystem& files, const Path& folder, std::int64_t step,
                    const std::map<std::string, FileHashes>& hashes) {
  Json entries = Json::object();
  std::int64_t format = kOneHash;
  for (const auto& [name, stretches] : hashes) {
    REDLINE_CHECK(name != kManifest && files.exists(folder / name),
                  "a checkpoint names the file {}, which is not in {}", name, folder.string());
    // Synced here once more, whatever wrote it: a sync of clean pages costs nothing.
    const std::unique_ptr<FileWriter> written = files.append(folder / name);
    written->sync();
    written->close();
    const std::uint64_t bytes = files.size(folder / name);
    require_whole(stretches, bytes, name);
    entries[name] = to_json(stretches, bytes);
    if (stretches.size() > 1) format = kStretches;
  }
  const Json manifest = {{"format", format}, {"step", step}, {"files", std::move(entries)}};
  const std::unique_ptr<FileWriter> writer = files.create(folder / kManifest);
  writer->write(manifest.dump(2) + "\n");
  writer->sync();
  writer->close();
  files.sync_folder(folder);
}

void write_manifest(FileSystem& files, const Path& folder, std::int64_t step,
                    const std::map<std::string, std::uint64_t>& hashes) {
  std::map<std::string, FileHashes> whole;
  for (const auto& [name, hash] : hashes) {
    REDLINE_CHECK(files.exists(folder / name), "a checkpoint names the file {}, which is not in {}", name,
                  folder.string());
    whole[name] = {{0, files.size(folder / name), hex64(hash)}};
  }
  write_manifest(files, folder, step, whole);
}

std::map<std::string, FileHashes> checkpoint_hashes(FileSystem& files, const Path& folder) {
  std::map<std::string, FileHashes> hashes;
  if (!files.exists(folder / kManifest)) return hashes;
  for (ManifestFile& file : read_manifest(files, folder).files) hashes.emplace(file.name, std::move(file.hashes));
  return hashes;
}

std::string written_by(const FileHashes& hashes, const std::vector<std::size_t>& stretches) {
  constexpr std::size_t kNamed = 16;
  std::vector<std::string> writers;  // each once, "rank 2 on node1" before "rank 10 on node1"
  for (const std::size_t s : stretches)
    if (!hashes[s].by.empty()) writers.push_back(hashes[s].by);
  std::ranges::sort(writers, {}, [](const std::string& by) { return std::pair(rank_in(by), by); });
  writers.erase(std::ranges::unique(writers).begin(), writers.end());
  if (writers.empty()) return "";
  const auto named = std::span(writers).first(std::min(writers.size(), kNamed));
  return fmt::format(" (written by {}{})", fmt::join(named, ", "),
                     writers.size() > kNamed ? fmt::format(" and {} more", writers.size() - kNamed) : "");
}

std::string changed_in_words(const FileHashes& hashes, const std::vector<std::size_t>& stretches) {
  if (hashes.size() == 1) return "has changed: its hash is not the one in the manifest";
  const HashedStretch& first = hashes[stretches.front()];
  const std::string by = written_by(hashes, stretches);
  if (stretches.size() == 1)
    return fmt::format("has changed: the hash of its bytes {} to {}{} is not the one in the manifest", first.begin,
                       first.end, by);
  return fmt::format(
      "has changed: {} of its {} parts{} do not have the hashes in the manifest, the first is bytes {} to {}",
      stretches.size(), hashes.size(), by, first.begin, first.end);
}

std::string hash_problem(FileSystem& files, const Path& path, const FileHashes& hashes,
                         const std::function<void(std::uint64_t bytes)>& took) {
  std::size_t stretch = 0;
  std::uint64_t at = 0;
  std::optional<Hasher> hasher(std::in_place);
  std::vector<std::size_t> changed;
  const auto end_stretch = [&] {
    if (hex64(hasher->digest()) != hashes[stretch].xxh3) changed.push_back(stretch);
    ++stretch;
    hasher.emplace();
  };
  files.read_pieces(path, [&](std::span<const std::byte> piece) {
    const std::size_t bytes = piece.size();
    while (!piece.empty() && stretch < hashes.size()) {
      const auto part =
          piece.first(static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), hashes[stretch].end - at)));
      hasher->update(part);
      at += part.size();
      piece = piece.subspan(part.size());
      if (at == hashes[stretch].end) end_stretch();
    }
    if (took) took(bytes);
  });
  if (stretch + 1 == hashes.size() && hashes[stretch].end == at) end_stretch();  // an empty file
  for (; stretch < hashes.size(); ++stretch) changed.push_back(stretch);         // it ended before them
  return changed.empty() ? "" : changed_in_words(hashes, changed);
}

void make_shared_file(FileSystem& files, const Path& path, std::uint64_t bytes) {
  const std::unique_ptr<FileWriter> file = files.create(path);
  file->close();
  files.truncate(path, bytes);
}

SharedFileWriter::SharedFileWriter(const OpenStretches& open, const Path& path, std::span<const ByteRange> mine)
    : path_(path), writer_(open(path)) {
  for (const ByteRange& range : mine) {
    if (range.begin == range.end) continue;
    REDLINE_CHECK(range.begin < range.end && (stretches_.empty() || stretches_.back().end <= range.begin),
                  "{}: bytes {} to {} are out of order", path.string(), range.begin, range.end);
    if (!stretches_.empty() && stretches_.back().end == range.begin)
      stretches_.back().end = range.end;
    else
      stretches_.push_back({range.begin, range.end, {}});
  }
  if (!stretches_.empty()) at_ = stretches_.front().begin;
  hasher_.emplace();
}

void SharedFileWriter::put(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    REDLINE_CHECK(current_ < stretches_.size(), "{}: {} bytes more than are this rank's", path_.string(), bytes.size());
    HashedStretch& stretch = stretches_[current_];
    const auto piece = bytes.first(std::min({bytes.size(), kPiece, static_cast<std::size_t>(stretch.end - at_)}));
    hasher_->update(piece);
    writer_->write(at_, piece);
    at_ += piece.size();
    bytes = bytes.subspan(piece.size());
    if (at_ < stretch.end) continue;
    stretch.xxh3 = hex64(hasher_->digest());
    hasher_.emplace();
    if (++current_ < stretches_.size()) at_ = stretches_[current_].begin;
  }
}

FileHashes SharedFileWriter::finish() {
  REDLINE_CHECK(current_ == stretches_.size(), "{}: bytes from {} on are missing", path_.string(), at_);
  writer_->sync();
  writer_->close();
  read_back();
  return std::move(stretches_);
}

void SharedFileWriter::read_back() const {
  const InputFile file(path_);
  std::vector<std::byte> buffer(kReadBack);
  for (const HashedStretch& stretch : stretches_) {
    Hasher hasher;
    for (std::uint64_t at = stretch.begin; at < stretch.end;) {
      const std::span<std::byte> piece(buffer.data(),
                                       static_cast<std::size_t>(std::min<std::uint64_t>(kReadBack, stretch.end - at)));
      file.read(at, piece);
      hasher.update(piece);
      at += piece.size();
    }
    if (hex64(hasher.digest()) != stretch.xxh3)
      fail_machine("{} does not read back as it was written, in its bytes {} to {}", path_.string(), stretch.begin,
                   stretch.end);
  }
}

}  // namespace redline::io

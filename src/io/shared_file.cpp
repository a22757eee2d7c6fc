// Stretches of a shared file, written where they belong.
#include "io/shared_file.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "io/json.h"

namespace redline::io {
namespace {

// Bytes that stay in the cache between the hash and the copy into the kernel; and those that are read back at once.
constexpr std::size_t kPiece = std::size_t{1} << 18, kReadBack = std::size_t{1} << 20;

}  // namespace

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

std::string report_of(const std::map<std::string, FileHashes>& wrote, const std::string& problem) {
  const auto text = [](const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); };
  if (!problem.empty()) return text({{"problem", problem}});
  Json files = Json::object();
  for (const auto& [name, stretches] : wrote) {
    Json& list = files[name] = Json::array();
    for (const HashedStretch& s : stretches) list.push_back({s.begin, s.end, s.xxh3});
  }
  return text({{"files", std::move(files)}});
}

std::map<std::string, FileHashes> joined_reports(const std::vector<std::string>& reports) {
  std::map<std::string, FileHashes> all;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const Json report = parse_json(reports[rank], fmt::format("the report of rank {}", rank));
    if (report.contains("problem")) fail_machine("rank {}: {}", rank, report.at("problem").get<std::string>());
    for (const auto& [name, list] : report.at("files").items())
      for (const Json& s : list)
        all[name].push_back({s.at(0).get<std::uint64_t>(), s.at(1).get<std::uint64_t>(), s.at(2).get<std::string>()});
  }
  for (auto& [name, stretches] : all) std::ranges::sort(stretches, {}, &HashedStretch::begin);
  return all;
}

}  // namespace redline::io

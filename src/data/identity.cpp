// Samples, stamps and the hash of every byte.
#include "data/identity.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <utility>

#include "data/shards/shards.h"

namespace redline::data {
namespace {

constexpr std::size_t kHashedWhole = 1 << 20, kHashedEnd = 1 << 16, kHashedBlock = 1 << 14;
constexpr std::size_t kFewestBlocks = 4, kMostBlocks = 256, kBlocksInAll = 4096;
constexpr std::uint64_t kWaitedFor = std::uint64_t{1} << 30, kMostRead = std::uint64_t{64} << 30;
constexpr std::uint64_t kSoonRead = std::uint64_t{1} << 26;  // also where a signal asks to stop

void add_number(Hasher& hasher, std::uint64_t n) { hasher.update(std::as_bytes(std::span(&n, 1))); }

// A file that is not there has one, too: it differs from every other.
std::uint64_t stamp_of(const Path& path) {
  struct stat s {};
  if (::stat(path.c_str(), &s) != 0) return 0;
  const std::uint64_t numbers[] = {
      static_cast<std::uint64_t>(s.st_size),         static_cast<std::uint64_t>(s.st_mtim.tv_sec),
      static_cast<std::uint64_t>(s.st_mtim.tv_nsec), static_cast<std::uint64_t>(s.st_ctim.tv_sec),
      static_cast<std::uint64_t>(s.st_ctim.tv_nsec), static_cast<std::uint64_t>(s.st_ino)};
  return hash64(std::as_bytes(std::span(numbers)));
}

std::vector<std::uint64_t> stamps_of(const std::vector<Path>& files) {
  std::vector<std::uint64_t> stamps;
  for (const Path& file : files) stamps.push_back(stamp_of(file));
  return stamps;
}

// Lengths and places of documents may be alike where their tokens are not.
bool holds_documents(const Path& file) {
  const Path end = file.extension();
  return file.filename() != kManifestFile && end != ".offsets" && end != ".mask" && end != ".idx";
}

struct KnownFile {
  Path path;
  dev_t device = 0;
  ino_t inode = 0;
  off_t bytes = 0;

  std::uint64_t sample() const {
    const MappedFile mapped(path);
    Hasher hasher;
    hash_sampled(hasher, mapped.bytes(), 1);
    return hasher.digest();
  }
};

std::vector<KnownFile> known_files(const std::vector<Path>& files) {
  std::vector<KnownFile> known;
  for (const Path& file : files) {
    struct stat s {};
    if (holds_documents(file) && ::stat(file.c_str(), &s) == 0) known.push_back({file, s.st_dev, s.st_ino, s.st_size});
  }
  return known;
}

std::uint64_t hash_whole(const std::vector<Path>& files, std::uint64_t bytes, const DataWatch::Progress& progress) {
  Hasher hasher;
  std::uint64_t done = 0;
  for (const Path& file : files) {
    add_number(hasher, real_files().size(file));
    real_files().read_pieces(file, [&](std::span<const std::byte> piece) {
      hasher.update(piece);
      done += piece.size();
      progress(done, bytes);
    });
  }
  return hasher.digest();
}

struct Stopped {};

std::vector<Path> files_of(const std::vector<const Corpus*>& corpora) {
  std::vector<Path> all;
  for (const Corpus* corpus : corpora) {
    const std::vector<Path> own = corpus->files();
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

std::uint64_t fingerprint_of(const std::vector<const Corpus*>& corpora) {
  if (corpora.size() == 1) return corpora[0]->fingerprint();
  Hasher hasher;
  for (const Corpus* corpus : corpora) add_number(hasher, corpus->fingerprint());
  return hasher.digest();
}

}  // namespace

void hash_sampled(Hasher& hasher, std::span<const std::byte> bytes, std::size_t files) {
  add_number(hasher, bytes.size());
  if (bytes.size() <= kHashedWhole) return hasher.update(bytes);
  hasher.update(bytes.first(kHashedEnd));
  hasher.update(bytes.last(kHashedEnd));
  const std::size_t blocks = std::clamp(kBlocksInAll / std::max<std::size_t>(1, files), kFewestBlocks, kMostBlocks);
  const std::size_t share = bytes.size() / blocks;
  for (std::size_t i = 0; i < blocks; ++i)  // in the middle of each of equal shares
    hasher.update(bytes.subspan(std::min(i * share + share / 2, bytes.size() - kHashedBlock), kHashedBlock));
}

std::vector<Path> shared_files(const std::vector<Path>& some, const std::vector<Path>& others) {
  std::multimap<off_t, KnownFile> of_size;  // only files of one size can hold the same
  for (const KnownFile& other : known_files(others)) of_size.emplace(other.bytes, other);
  std::vector<Path> shared;
  for (const KnownFile& one : known_files(some)) {
    const auto [begin, end] = of_size.equal_range(one.bytes);
    std::optional<std::uint64_t> sample;
    const bool found = std::any_of(begin, end, [&](const auto& pair) {
      const KnownFile& other = pair.second;
      if (other.device == one.device && other.inode == one.inode) return true;
      if (!sample) sample = one.sample();
      return *sample == other.sample();
    });
    if (found) shared.push_back(one.path);
  }
  return shared;
}

DataWatch::DataWatch(const std::vector<const Corpus*>& corpora)
    : checked_when_read_(std::ranges::all_of(corpora, [](const Corpus* c) { return c->checked_when_read(); })),
      files_(files_of(corpora)),
      stamps_(stamps_of(files_)) {
  for (const Path& file : files_)
    if (real_files().exists(file)) bytes_ += real_files().size(file);
  identity_.contents = fingerprint_of(corpora);
  identity_.stamp = hash64(std::as_bytes(std::span(stamps_)));
}

DataWatch::~DataWatch() { stop_reading(); }

void DataWatch::stop_reading() {
  stop_ = true;
  if (reading_.joinable()) reading_.join();
}

DataMatch DataWatch::compare(const DataIdentity& then, const Progress& progress) {
  if (then.ends_only && !files_.empty()) return DataMatch::unknown;
  if (then.contents != identity_.contents) return DataMatch::other;
  if (files_.empty() || checked_when_read_) return DataMatch::same;
  if (then.stamp == identity_.stamp) {
    identity_.whole = then.whole;
    return DataMatch::same;
  }
  if (!then.whole) return DataMatch::same_blocks;
  identity_.whole = hash_whole(files_, bytes_, progress);
  return identity_.whole == then.whole ? DataMatch::same_bytes : DataMatch::other;
}

void DataWatch::start_reading() {
  if (identity_.whole || files_.empty() || checked_when_read_ || bytes_ > kMostRead || reading_.joinable()) return;
  reading_ = std::thread([this] {
    try {
      const std::uint64_t whole = hash_whole(files_, bytes_, [this](std::uint64_t, std::uint64_t) {
        if (stop_) throw Stopped{};
      });
      // A file that was written to meanwhile has neither its old hash nor its new one.
      if (stamps_of(files_) == stamps_) read_ = whole;
    } catch (const Stopped&) {
    } catch (const std::exception&) {  // a file is gone, which changed() tells
    }
    ended_ = true;
  });
}

DataIdentity DataWatch::identity(bool wait) {
  if (reading_.joinable() && (ended_ || bytes_ <= (wait ? kWaitedFor : kSoonRead))) {
    reading_.join();
    identity_.whole = read_;
  }
  return identity_;
}

std::vector<Path> DataWatch::changed() {
  std::vector<Path> found;
  for (std::size_t i = 0; i < files_.size(); ++i)
    if (!named_.contains(i) && stamp_of(files_[i]) != stamps_[i]) {
      named_.insert(i);
      found.push_back(files_[i]);
    }
  return found;
}

}  // namespace redline::data

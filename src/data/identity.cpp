// Samples, stamps and the hash of every byte.
#include "data/identity.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "data/mixture.h"
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

std::uint64_t hash_of_file(const Path& path) {
  Hasher hasher;
  real_files().read_pieces(path, [&](std::span<const std::byte> piece) { hasher.update(piece); });
  return hasher.digest();
}

// The files that the documents of these shards were prepared from.
std::vector<HashedInput> inputs_of(const std::vector<KnownFile>& files) {
  std::map<Path, std::set<bool>> splits;  // of each folder: whether it is val
  for (const KnownFile& file : files)
    if (is_shard_name(file.path.filename().string()))
      splits[file.path.parent_path()].insert(file.path.filename().string().starts_with("val"));
  std::vector<HashedInput> inputs;
  for (const auto& [folder, of] : splits) {
    if (!is_prepared_folder(folder)) continue;
    const Manifest manifest = read_prepared_folder(folder, folder.string()).manifest;
    const bool mixed =
        manifest.val_fraction > 0 || manifest.val.shards.empty();  // any file has documents of each split
    for (const HashedInput& input : manifest.inputs)
      if (mixed || of.contains(input.val)) inputs.push_back(input);
  }
  return inputs;
}

// Files and inputs of the same bytes; only those of one size are read.
bool is_input(const KnownFile& file, const std::vector<HashedInput>& inputs) {
  std::optional<std::uint64_t> hash;
  return std::ranges::any_of(inputs, [&](const HashedInput& input) {
    if (input.bytes != file.bytes) return false;
    if (!hash) hash = hash_of_file(file.path);
    return *hash == input.hash;
  });
}

constexpr Cut kLooked = {.row = 256};
constexpr std::size_t kShortest = 16;  // tokens of a piece that tells anything: "Yes." stands in many documents
constexpr std::int64_t kLookedTokens = 1 << 16, kSearchedText = 1 << 19, kSearchedTokens = 1 << 24;

// Takes pieces of a corpus, in the order of its files. False: that was enough.
using TakePiece = std::function<bool(std::span<const std::int32_t>)>;

bool each_piece(const DocumentSource& documents, const TakePiece& take) {
  std::vector<std::int32_t> piece;
  for (std::int64_t i = 0; i < documents.documents(); ++i) {
    const std::int64_t length = documents.length(i);
    for (std::int64_t p = 0, pieces = kLooked.pieces(length); p < pieces; ++p) {
      const std::int64_t begin = p * kLooked.row;
      piece.clear();
      documents.append(i, begin, kLooked.end(begin, length) - begin, piece);
      if (!take(piece)) return false;
    }
  }
  return true;
}

bool each_piece(Feed& feed, const TakePiece& take) {
  const auto maker = feed.maker();
  feed.seek({});
  for (Chunk chunk; feed.take(chunk); chunk.clear()) {
    maker->make(chunk);
    for (std::size_t i = 0; i < chunk.pieces.size(); ++i)
      if (!take(chunk.tokens_of(i))) return false;
  }
  return true;
}

// Up to so many tokens of each part of a mixture.
void each_first_piece(const Corpus& corpus, std::int64_t most_of_text, std::int64_t most, const TakePiece& take) {
  if (const auto* mixture = dynamic_cast<const Mixture*>(&corpus)) {
    for (const Mixture::Part& part : mixture->parts()) each_first_piece(*part.corpus, most_of_text, most, take);
    return;
  }
  const auto* documents = dynamic_cast<const DocumentSource*>(&corpus);
  std::int64_t left = documents ? most : most_of_text;
  const auto take_some = [&](std::span<const std::int32_t> piece) {
    left -= std::ssize(piece);
    return (piece.size() < kShortest || take(piece)) && left > 0;
  };
  if (corpus.files().empty()) return;  // made up
  if (documents)
    each_piece(*documents, take_some);
  else
    each_piece(*corpus.feed({.cut = kLooked, .shuffle = false, .repeat = false, .quiet = true}), take_some);
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
  const std::vector<HashedInput> inputs = inputs_of(known_files(others));
  std::vector<Path> shared;
  for (const KnownFile& one : known_files(some)) {
    const std::vector<HashedInput> own_inputs = inputs_of({one});
    const auto [begin, end] = of_size.equal_range(one.bytes);
    std::optional<std::uint64_t> sample;
    const bool found = std::any_of(begin, end, [&](const auto& pair) {
      const KnownFile& other = pair.second;
      if (other.device == one.device && other.inode == one.inode) return true;
      if (!sample) sample = one.sample();
      return *sample == other.sample();
    });
    const bool prepared =
        is_input(one, inputs) || std::ranges::any_of(own_inputs, [&](const HashedInput& input) {
          const auto [first, last] = of_size.equal_range(input.bytes);
          return std::any_of(first, last, [&](const auto& pair) { return is_input(pair.second, {input}); });
        });
    if (found || prepared) shared.push_back(one.path);
  }
  return shared;
}

bool shares_documents(const Corpus& some, const Corpus& others) {
  std::map<std::uint64_t, std::size_t> looked_for;  // pieces by their hash, with the tokens of them that are not found
  std::size_t tokens = 0, found = 0;
  const auto hash = [](std::span<const std::int32_t> piece) { return hash64(std::as_bytes(piece)); };
  try {
    each_first_piece(some, kLookedTokens, kLookedTokens, [&](std::span<const std::int32_t> piece) {
      looked_for[hash(piece)] += piece.size();
      tokens += piece.size();
      return true;
    });
    if (tokens == 0) return false;
    each_first_piece(others, kSearchedText, kSearchedTokens, [&](std::span<const std::int32_t> piece) {
      if (const auto at = looked_for.find(hash(piece)); at != looked_for.end()) found += std::exchange(at->second, 0);
      return 2 * found <= tokens;
    });
  } catch (const UserError&) {
  } catch (const MachineError&) {
  }
  return 2 * found > tokens;
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

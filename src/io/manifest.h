// What the bytes of a checkpoint's files must be: manifest.json with the step and the size and hashes of every other
// file, the check of a file against its hashes, and the writer of a file that several ranks share.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/hash.h"

namespace redline::io {

// The hashes that the bytes of a file must have: one hash of all of them, or one for each stretch where several ranks
// wrote it.
struct HashedStretch {
  std::uint64_t begin = 0, end = 0;  // bytes of the file
  std::string xxh3;                  // hex64
  std::string by = {};               // "rank 2 on node1", where several ranks wrote the file
  bool operator==(const HashedStretch&) const = default;
};

// From front to back. The stretches of a whole file leave no gap.
using FileHashes = std::vector<HashedStretch>;

inline constexpr const char* kManifest = "manifest.json";

struct ManifestFile {
  std::string name;
  std::uint64_t bytes = 0;
  FileHashes hashes;
};

struct Manifest {
  std::int64_t step = 0;
  std::vector<ManifestFile> files;
};

// UserError when the manifest is not one of ours.
Manifest read_manifest(FileSystem& files, const Path& folder);

// The last file of a checkpoint: sizes and hashes of the others, which must be there. Syncs them, itself and the
// folder.
void write_manifest(FileSystem& files, const Path& folder, std::int64_t step,
                    const std::map<std::string, FileHashes>& hashes);
// The same for files that have one hash each.
void write_manifest(FileSystem& files, const Path& folder, std::int64_t step,
                    const std::map<std::string, std::uint64_t>& hashes);

// The hashes of each file in the folder's manifest, by name; nothing where there is no manifest.
std::map<std::string, FileHashes> checkpoint_hashes(FileSystem& files, const Path& folder);

// Checks a file against its hashes. Returns the problem as words that follow the file's name; empty: there is none.
// Every byte is read: `took` hears of each piece.
std::string hash_problem(FileSystem& files, const Path& path, const FileHashes& hashes,
                         const std::function<void(std::uint64_t bytes)>& took = {});
// " (written by rank 2 on node1, rank 3 on node1)"; empty where nobody is known.
std::string written_by(const FileHashes& hashes, const std::vector<std::size_t>& stretches);
// "has changed: its hash is not the one in the manifest"; of stretches among several, with their bytes and with who
// wrote them: a machine whose parts never came to the disk is known by its name.
std::string changed_in_words(const FileHashes& hashes, const std::vector<std::size_t>& stretches);

struct ByteRange {
  std::uint64_t begin = 0, end = 0;
};

// Called on rank 0 before any rank writes: makes an empty file of that size.
void make_shared_file(FileSystem& files, const Path& path, std::uint64_t bytes);

// One rank's part of a file that several ranks write: its stretches, hashed on the way, synced and read back.
class SharedFileWriter {
 public:
  // `mine`, from front to back: those that touch become one stretch.
  SharedFileWriter(const OpenStretches& open, const Path& path, std::span<const ByteRange> mine);
  void put(std::span<const std::byte> bytes);  // all of them in order, in pieces of any size
  FileHashes finish();                         // a MachineError where the disk gives other bytes back

 private:
  void read_back() const;

  Path path_;
  std::unique_ptr<StretchWriter> writer_;
  FileHashes stretches_;
  std::size_t current_ = 0;
  std::uint64_t at_ = 0;  // in the file
  std::optional<Hasher> hasher_;
};

}  // namespace redline::io

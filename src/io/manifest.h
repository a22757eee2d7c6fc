// manifest.json of a checkpoint: the step, and size and hashes of every other file.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/files.h"
#include "io/file_hashes.h"

namespace redline::io {

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
// Of files that have one hash each.
void write_manifest(FileSystem& files, const Path& folder, std::int64_t step,
                    const std::map<std::string, std::uint64_t>& hashes);

// The hashes of each file in the folder's manifest, by name; nothing where there is no manifest.
std::map<std::string, FileHashes> checkpoint_hashes(FileSystem& files, const Path& folder);

// Checks a file against its hashes. Returns the problem as words that follow the file's name; empty: there is none.
// Every byte is read: `took` hears of each piece.
std::string hash_problem(FileSystem& files, const Path& path, const FileHashes& hashes,
                         const std::function<void(std::uint64_t bytes)>& took = {});
// "has changed: its hash is not the one in the manifest"; of one stretch among several, with its bytes.
std::string changed_in_words(const FileHashes& hashes, std::size_t stretch);

}  // namespace redline::io

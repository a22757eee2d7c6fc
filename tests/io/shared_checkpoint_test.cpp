// Checkpoints that several ranks write: the bytes of one rank's, every stretch under its hash, and whatever fails, on
// whichever rank, the one before stays whole and all ranks hear of it.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "io/checkpoint_folder.h"
#include "io/json.h"
#include "io/manifest.h"
#include "testing/failing_files.h"
#include "testing/ranks_here.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::io {
namespace {

using redline::testing::at_every_change;
using redline::testing::FailingFiles;
using redline::testing::Failure;
using redline::testing::RanksHere;
using redline::testing::says;
using redline::testing::TempFolder;
using Names = std::vector<std::string>;

constexpr const char* kTensors = "model.safetensors";
constexpr std::size_t kBytes = 1000, kPart = 111;

std::string tensors_of(const std::string& version) {
  std::string text;
  while (text.size() < kBytes) text += fmt::format("{} {}, ", version, text.size());
  text.resize(kBytes);
  return text;
}

// Parts of the file go round the ranks; rank 0 also writes state.json. `skip`: a rank that leaves its last part out.
SharedFill fill_of(FileSystem& files, const OpenStretches& open, Communicator& ranks, const std::string& version,
                   int skip = -1) {
  SharedFill fill;
  fill.prepare = [&files](const Path& folder) { make_shared_file(files, folder / kTensors, kBytes); };
  fill.write = [&files, &open, &ranks, version, skip](const Path& folder) {
    std::map<std::string, FileHashes> wrote;
    if (ranks.rank() == 0) {
      const auto writer = files.create(folder / "state.json");
      writer->write(version);
      writer->sync();
      writer->close();
      wrote["state.json"] = {{0, version.size(), hex64(hash64(version))}};
    }
    std::vector<ByteRange> mine;
    const std::string text = tensors_of(version);
    std::string bytes;
    for (std::size_t part = 0, at = 0; at < kBytes; ++part, at += kPart) {
      if (static_cast<int>(part) % ranks.ranks() != ranks.rank()) continue;
      const std::size_t end = std::min(at + kPart, kBytes);
      if (ranks.rank() == skip && end == kBytes) continue;
      mine.push_back({at, end});
      bytes += text.substr(at, end - at);
    }
    SharedFileWriter writer(open, folder / kTensors, mine);
    const auto all = std::as_bytes(std::span(bytes));
    writer.put(all.first(all.size() / 3));  // pieces end anywhere
    writer.put(all.subspan(all.size() / 3));
    wrote[kTensors] = writer.finish();
    return wrote;
  };
  return fill;
}

std::vector<std::string> write(int ranks, const Path& parent, std::int64_t step, const std::string& version,
                               FileSystem& files = real_files(), const OpenStretches& open = open_stretches,
                               int skip = -1) {
  return RanksHere(ranks).run([&](Communicator& communicator) {
    write_checkpoint(files, parent, step, communicator, fill_of(files, open, communicator, version, skip));
  });
}

void flip(const Path& path, std::size_t at) {
  std::string text = real_files().read(path);
  text[at] ^= 1;
  const auto writer = real_files().create(path);
  writer->write(text);
  writer->close();
}

TEST(SharedCheckpoint, AnyNumberOfRanksWriteTheSameBytes) {
  for (const int ranks : {1, 2, 3, 5}) {
    TempFolder temp;
    EXPECT_EQ(write(ranks, temp.path(), 7, "a"), Names(static_cast<std::size_t>(ranks)));
    const Path folder = temp / "step_00000007";
    EXPECT_EQ(real_files().list(temp.path()), Names{"step_00000007"});
    EXPECT_EQ(checkpoint_problem(real_files(), folder), "");
    EXPECT_EQ(real_files().read(folder / kTensors), tensors_of("a"));
    const Json manifest = read_json(real_files(), folder / kManifest);
    EXPECT_EQ(manifest.at("format"), ranks == 1 ? 1 : 2);
    const FileHashes hashes = checkpoint_hashes(real_files(), folder).at(kTensors);
    EXPECT_EQ(hashes.size(), ranks == 1 ? 1 : (kBytes + kPart - 1) / kPart);
    for (const HashedStretch& s : hashes)
      EXPECT_EQ(s.xxh3, hex64(hash64(std::string_view(tensors_of("a")).substr(s.begin, s.end - s.begin))));
  }
}

// A manifest is that of today where one rank wrote everything.
TEST(SharedCheckpoint, OneRankAloneLeavesWhatItAlwaysDid) {
  TempFolder temp;
  write(1, temp / "shared", 3, "a");
  write_checkpoint(real_files(), temp / "plain", 3, [](const Path& folder) {
    std::map<std::string, std::uint64_t> hashes;
    for (const auto& [name, text] : {std::pair{kTensors, tensors_of("a")}, std::pair{"state.json", std::string("a")}}) {
      const auto writer = real_files().create(folder / name);
      writer->write(text);
      writer->close();
      hashes[name] = hash64(text);
    }
    return hashes;
  });
  for (const char* name : {kTensors, "state.json", kManifest})
    EXPECT_EQ(real_files().read(temp / "shared" / "step_00000003" / name),
              real_files().read(temp / "plain" / "step_00000003" / name));
}

TEST(SharedCheckpoint, AFlippedByteIsFoundAndItsStretchNamed) {
  TempFolder temp;
  write(3, temp.path(), 1, "a");
  write(3, temp.path(), 2, "b");
  const Path folder = temp / "step_00000002";
  for (std::size_t at = 5; at < kBytes; at += 91) {
    flip(folder / kTensors, at);
    const std::string problem = checkpoint_problem(real_files(), folder);
    const std::size_t begin = at / kPart * kPart, end = std::min(begin + kPart, kBytes);
    EXPECT_TRUE(says(problem, {(folder / kTensors).string(), fmt::format("bytes {} to {}", begin, end)}));
    flip(folder / kTensors, at);
  }
  EXPECT_EQ(checkpoint_problem(real_files(), folder), "");
}

// As where a machine goes down before its pages are on the disk: its ranks are named, and nobody else.
TEST(SharedCheckpoint, AMachineWhosePartsAreMissingIsNamed) {
  TempFolder temp;
  write(4, temp.path(), 2, "b");
  const Path path = temp / "step_00000002" / kTensors;
  const std::string whole = real_files().read(path);
  std::string half = whole;
  for (std::size_t at = 0; at < kBytes; ++at)
    if (at / kPart % 4 >= 2) half[at] = 0;
  real_files().replace(path, half);
  const std::string problem = checkpoint_problem(real_files(), temp / "step_00000002");
  EXPECT_TRUE(says(problem, {path.string(), "4 of its 10 parts", "rank 2 on node1", "rank 3 on node1"}));
  EXPECT_FALSE(says(problem, "node0"));
  real_files().replace(path, whole.substr(0, 7 * kPart));
  const std::string cut = checkpoint_problem(real_files(), temp / "step_00000002");
  EXPECT_TRUE(says(cut, {"truncated", "(written by rank 0 on node0, rank 1 on node0, rank 3 on node1)"}));
}

TEST(SharedCheckpoint, RanksAreNamedInTheOrderOfTheirNumbers) {
  FileHashes hashes;
  for (const char* by : {"rank 10 on node1", "rank 9 on node1", "rank 2 on node0", "rank 10 on node1", "", "somebody"})
    hashes.push_back({hashes.size(), hashes.size() + 1, "", by});
  EXPECT_EQ(written_by(hashes, {0, 1, 2, 3, 4, 5}),
            " (written by rank 2 on node0, rank 9 on node1, rank 10 on node1, somebody)");
  EXPECT_EQ(written_by(hashes, {4}), "");
}

TEST(SharedCheckpoint, AManifestMustCoverTheFile) {
  TempFolder temp;
  write(2, temp.path(), 2, "a");
  const Path path = temp / "step_00000002" / kManifest;
  const Json good = read_json(real_files(), path);
  const auto problem_with = [&](const std::function<void(Json&)>& change) {
    Json bad = good;
    change(bad.at("files").at(kTensors).at("stretches"));
    const auto writer = real_files().create(path);
    writer->write(bad.dump());
    writer->close();
    return checkpoint_problem(real_files(), temp / "step_00000002");
  };
  EXPECT_EQ(problem_with([](Json&) {}), "");
  EXPECT_TRUE(says(problem_with([](Json& s) { s.erase(3); }), {"do not follow each other at byte 333"}));
  EXPECT_TRUE(says(problem_with([](Json& s) { s.erase(s.size() - 1); }), {"end at byte 999"}));
  EXPECT_TRUE(says(problem_with([](Json& s) { s[0]["end"] = 0; }), {"do not follow each other at byte 0"}));
  EXPECT_TRUE(says(problem_with([](Json& s) { s[0]["begin"] = -1; }), {"is negative"}));
  EXPECT_TRUE(says(problem_with([](Json& s) { s = 7; }), {"not an array"}));
}

TEST(SharedCheckpoint, WhatNobodyWroteIsNoCheckpoint) {
  TempFolder temp;
  write(3, temp.path(), 1, "a");
  const std::vector<std::string> errors = write(3, temp.path(), 2, "b", real_files(), open_stretches, 0);
  for (const std::string& error : errors) EXPECT_TRUE(says(error, {kTensors}));
  EXPECT_EQ(real_files().list(temp.path()), Names{"step_00000001"});
}

class SharedCheckpointFailure : public ::testing::TestWithParam<Failure> {};

// Whichever rank makes the change that fails.
TEST_P(SharedCheckpointFailure, NeverLosesTheOneBeforeAndIsToldToAll) {
  const std::int64_t changes = at_every_change(GetParam(), [](FailingFiles& files, std::int64_t nth) {
    const OpenStretches open = [&](const Path& path) { return files.open_stretches(path); };
    TempFolder temp;
    write(3, temp.path(), 1, "a");
    const std::vector<std::string> errors = write(3, temp.path(), 2, "b", files, open);
    EXPECT_EQ(std::ranges::count(errors, ""), errors[0].empty() ? 3 : 0) << "all ranks or none, at change " << nth;
    for (const std::string& error : errors)
      EXPECT_TRUE(error.empty() || error.find("no space left") != error.npos) << error;
    const auto found = newest_whole_checkpoint(real_files(), temp.path(), [](const SkippedCheckpoint&) {});
    ASSERT_TRUE(found) << "failure at change " << nth;
    EXPECT_EQ(checkpoint_problem(real_files(), temp / "step_00000001"), "");
    EXPECT_TRUE(!errors[0].empty() || found->step == 2);
    EXPECT_EQ(write(3, temp.path(), 2, "c"), Names(3));
    EXPECT_EQ(real_files().read(temp / "step_00000002" / kTensors), tensors_of("c"));
    EXPECT_EQ(real_files().list(temp.path()), (Names{"step_00000001", "step_00000002"}));
  });
  EXPECT_GT(changes, 30);
}

INSTANTIATE_TEST_SUITE_P(Kinds, SharedCheckpointFailure,
                         ::testing::Values(Failure::once, Failure::full_disk, Failure::death),
                         redline::testing::failure_name);

}  // namespace
}  // namespace redline::io

// Files hold what was written; errors name the path; replace() shows the old text or the new one, whatever fails.
#include "base/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>

#include "base/error.h"
#include "testing/failing_files.h"
#include "testing/says.h"
#include "testing/temp_folder.h"
#include "testing/without_rights.h"

namespace redline {
namespace {

using redline::testing::error_of;
using redline::testing::FailingFiles;
using redline::testing::Failure;
using redline::testing::TempFolder;

void write_text(const Path& path, std::string_view text) {
  const auto writer = real_files().create(path);
  writer->write(text);
  writer->close();
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(Files, AParentIsAlwaysAFolderThatCanBeNamed) {
  EXPECT_EQ(parent_of("a/b"), "a");
  EXPECT_EQ(parent_of("a/b/"), "a");
  EXPECT_EQ(parent_of("b"), ".");
  EXPECT_EQ(parent_of("b/"), ".");
  EXPECT_EQ(parent_of("/b"), "/");
}

TEST(Files, HoldWhatWasWritten) {
  TempFolder temp;
  FileSystem& files = real_files();
  std::string text(3'000'000, 'x');  // several pieces of reading
  text[2'500'000] = 'y';
  const auto writer = files.create(temp / "a");
  writer->write(text);
  writer->write(std::string_view());
  writer->sync();
  writer->close();
  writer->close();  // closing twice is harmless
  EXPECT_EQ(files.read(temp / "a"), text);
  EXPECT_EQ(files.size(temp / "a"), text.size());
  EXPECT_EQ(text_of(MappedFile(temp / "a").bytes()), text);
  std::string pieces;
  files.read_pieces(temp / "a", [&](std::span<const std::byte> piece) { pieces += text_of(piece); });
  EXPECT_EQ(pieces, text);
}

TEST(Files, CreateTruncatesAppendDoesNot) {
  TempFolder temp;
  FileSystem& files = real_files();
  write_text(temp / "a", "long text");
  write_text(temp / "a", "ab");
  EXPECT_EQ(files.read(temp / "a"), "ab");
  const auto appender = files.append(temp / "a");
  appender->write("cd");
  appender->close();
  EXPECT_EQ(files.read(temp / "a"), "abcd");
  files.truncate(temp / "a", 1);
  EXPECT_EQ(files.read(temp / "a"), "a");
}

TEST(Files, FoldersAreCreatedListedRenamedRemoved) {
  TempFolder temp;
  FileSystem& files = real_files();
  EXPECT_TRUE(files.list(temp / "missing").empty());
  files.create_folders(temp / "x/y/z/");
  files.create_folders(temp / "x/y/z");
  write_text(temp / "x/b", "");
  write_text(temp / "x/a", "");
  EXPECT_EQ(files.list(temp / "x"), (std::vector<std::string>{"a", "b", "y"}));
  files.sync_folder(temp / "x");
  files.rename(temp / "x", temp / "w");
  EXPECT_FALSE(files.exists(temp / "x"));
  EXPECT_TRUE(files.exists(temp / "w/y/z"));
  files.remove_all(temp / "w");
  files.remove_all(temp / "w");  // nothing there is fine
  EXPECT_FALSE(files.exists(temp / "w"));
}

TEST(Files, ErrorsNameThePathAndTheReason) {
  TempFolder temp;
  FileSystem& files = real_files();
  const Path missing = temp / "no/such/file";
  const std::string reason = missing.string() + ": cannot open: No such file or directory";
  EXPECT_EQ(error_of<MachineError>([&] { files.read(missing); }), reason);
  EXPECT_EQ(error_of<MachineError>([&] { MappedFile mapped(missing); }), reason);
  for (const std::string& error :
       {error_of<MachineError>([&] { files.create(missing); }), error_of<MachineError>([&] { files.append(missing); }),
        error_of<MachineError>([&] { files.size(missing); }),
        error_of<MachineError>([&] { files.rename(missing, temp / "a"); }),
        error_of<MachineError>([&] { files.truncate(missing, 0); }),
        error_of<MachineError>([&] { files.sync_folder(missing); })}) {
    EXPECT_NE(error.find(missing.string()), error.npos) << error;
    EXPECT_NE(error.find("No such file or directory"), error.npos) << error;
  }
  write_text(temp / "file", "");
  EXPECT_THROW(files.create_folders(temp / "file"), UserError);
  EXPECT_THROW(files.create_folders(temp / "file/below"), UserError);
  EXPECT_THROW(files.list(temp / "file"), MachineError);
}

// Every way to read refuses what cannot be read, and does not wait for a pipe without a writer.
TEST(Files, NothingButAFileIsRead) {
  TempFolder temp;
  FileSystem& files = real_files();
  ASSERT_EQ(::mkfifo((temp / "pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("pipe", temp / "link");
  std::filesystem::create_directory(temp / "folder");
  for (const Path& path : {temp / "pipe", temp / "link", temp / "folder", Path("/dev/null")}) {
    const std::string sentence =
        path.string() + ": not a file but a folder, a pipe or a device; put a file there, or name another path";
    EXPECT_EQ(error_of([&] { files.read(path); }), sentence);
    EXPECT_EQ(error_of([&] { files.read_pieces(path, [](auto) {}); }), sentence);
    EXPECT_EQ(error_of([&] { MappedFile mapped(path); }), sentence);
    EXPECT_EQ(error_of([&] { InputFile input(path); }), sentence);
  }
  write_text(temp / "file", "text");
  std::filesystem::create_symlink("file", temp / "good link");
  EXPECT_EQ(files.read(temp / "good link"), "text");
}

TEST(Files, APathThatLeadsNowhereIsForTheUserToMend) {
  TempFolder temp;
  FileSystem& files = real_files();
  std::filesystem::create_symlink("round", temp / "round");
  for (const std::string& error :
       {error_of([&] { files.read(temp / "round"); }), error_of([&] { files.exists(temp / "round"); }),
        error_of([&] { files.size(temp / "round"); }), error_of([&] { InputFile input(temp / "round"); })}) {
    EXPECT_TRUE(error.starts_with((temp / "round").string() + ": cannot ")) << error;
    EXPECT_TRUE(error.ends_with("; name another path")) << error;
  }
}

TEST(Files, WhatMayNotBeWrittenIsForTheUserToMend) {
  TempFolder temp;
  FileSystem& files = real_files();
  write_text(temp / "a", "text");
  const redline::testing::WithoutRights nobody(temp.path(), std::filesystem::perms(0555));
  for (const std::string& error :
       {error_of([&] { files.create(temp / "new"); }), error_of([&] { files.create_folders(temp / "new/folder"); }),
        error_of([&] { files.rename(temp / "a", temp / "b"); }), error_of([&] { files.remove_all(temp / "a"); }),
        error_of([&] { files.replace(temp / "a", "other"); })}) {
    EXPECT_TRUE(error.starts_with(temp.path().string())) << error;
    EXPECT_TRUE(error.ends_with(": Permission denied; give this user the right to write there, or name another path"))
        << error;
  }
  EXPECT_EQ(files.read(temp / "a"), "text");
}

TEST(Files, AFileWithoutTheRightToReadItIsForTheUserToMend) {
  TempFolder temp;
  FileSystem& files = real_files();
  write_text(temp / "secret", "text");
  ASSERT_EQ(::chmod((temp / "secret").c_str(), 0), 0);
  const redline::testing::WithoutRights nobody(temp.path(), std::filesystem::perms(0555));
  EXPECT_EQ(error_of([&] { files.read(temp / "secret"); }),
            (temp / "secret").string() + ": cannot open: Permission denied; give this user the right to read it");
}

TEST(Files, AFullDiskIsTold) {
  if (!real_files().exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  const auto writer = real_files().append("/dev/full");
  const std::string error = error_of<MachineError>([&] { writer->write("text"); });
  EXPECT_EQ(error, "/dev/full: cannot write: No space left on device");
}

TEST(InputFile, ReadsPartsAndTellsWhereTheFileEnds) {
  TempFolder temp;
  write_text(temp / "a", "0123456789");
  const InputFile file(temp / "a");
  std::array<std::byte, 4> part;
  file.read(5, part);
  EXPECT_EQ(text_of(part), "5678");
  EXPECT_EQ(error_of([&] { file.read(8, part); }),
            (temp / "a").string() + ": cannot read: it ends at byte 10, earlier than it did; bring it back whole");
  const Path missing = temp / "b";
  EXPECT_EQ(error_of<MachineError>([&] { InputFile input(missing); }),
            missing.string() + ": cannot open: No such file or directory");
}

TEST(InputFile, FetchesPartsAndTellsWhereTheFileEnds) {
  TempFolder temp;
  write_text(temp / "a", std::string(std::size_t{3} << 20, 'x'));
  const InputFile file(temp / "a");
  file.fetch(0, std::uint64_t{3} << 20);
  file.fetch(12345, 1);
  file.fetch(7, 0);
  EXPECT_EQ(error_of([&] { file.fetch(5, std::uint64_t{3} << 20); }),
            (temp / "a").string() + ": cannot read: it ends at byte 3145728, earlier than it did; bring it back whole");
}

TEST(MappedFile, AnEmptyFileHasNoBytes) {
  TempFolder temp;
  write_text(temp / "empty", "");
  EXPECT_TRUE(MappedFile(temp / "empty").bytes().empty());
}

TEST(MappedFile, MovesItsBytes) {
  TempFolder temp;
  write_text(temp / "a", "first");
  write_text(temp / "b", "second");
  MappedFile a(temp / "a"), b(temp / "b");
  MappedFile c(std::move(a));
  c = std::move(b);
  EXPECT_EQ(text_of(c.bytes()), "second");
}

TEST(Replace, ReplacesAndLeavesNothingBeside) {
  TempFolder temp;
  real_files().replace(temp / "a", "old");
  real_files().replace(temp / "a", "new");
  EXPECT_EQ(real_files().read(temp / "a"), "new");
  EXPECT_EQ(real_files().list(temp.path()), std::vector<std::string>{"a"});
}

TEST(Replace, FollowsNoLinkThatSomebodyPutBeside) {
  const TempFolder temp;
  real_files().replace(temp / "precious", "theirs");
  std::filesystem::create_symlink(temp / "precious", temp / "a.partial");
  EXPECT_THROW(real_files().replace(temp / "a", "ours"), UserError);
  EXPECT_THROW(real_files().create(temp / "a.partial"), UserError);
  EXPECT_EQ(real_files().read(temp / "precious"), "theirs");
}

TEST(WholeFile, IsRefusedBeforeItFillsTheMemory) {
  const TempFolder temp;
  real_files().replace(temp / "a", "12345");
  EXPECT_EQ(read_at_most(real_files(), temp / "a", 5), "12345");
  EXPECT_THROW(read_at_most(real_files(), temp / "a", 4), UserError);
  std::filesystem::resize_file(temp / "a", std::uint64_t{20} << 30);  // sparse
  EXPECT_THROW(real_files().read(temp / "a"), UserError);
}

TEST(Replace, ShowsTheOldOrTheNewTextWhateverFails) {
  FailingFiles files;
  for (const Failure failure : {Failure::once, Failure::full_disk, Failure::death}) {
    std::int64_t nth = 0;
    for (bool failed = true; failed; ++nth) {
      TempFolder temp;
      real_files().replace(temp / "a", "old text");
      files.fail_at(nth, failure);
      try {
        files.replace(temp / "a", "new text");
        EXPECT_EQ(real_files().read(temp / "a"), "new text");
      } catch (const MachineError&) {
        const std::string text = real_files().read(temp / "a");
        EXPECT_TRUE(text == "old text" || text == "new text") << text;
        if (failure != Failure::death) {
          EXPECT_EQ(real_files().list(temp.path()), std::vector<std::string>{"a"});
        }
      }
      failed = files.failed();
    }
    EXPECT_GE(nth, 7);  // create, write, sync, close, rename, sync_folder, and the pass without a failure
  }
}

}  // namespace
}  // namespace redline

// Weights on their way between folders: whoever stops them finds nothing left. And the files beside them, which are
// handed on as they are.
#include "infer/hf_folders.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "data/tokenizer/tokenizer.h"
#include "testing/paths.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::infer {
namespace {

using namespace redline::testing;
namespace fs = std::filesystem;

TEST(HfFolders, StoppedAtTheBeginningOrBetweenFilesNothingIsLeft) {
  const TempFolder temp;
  export_model(real_files(), open_checkpoint(real_files(), fixture("llama3-gqa")), temp / "shards",
               {.shard_bytes = 200'000});
  const Checkpoint source = open_checkpoint(real_files(), temp / "shards");
  for (const bool at_once : {true, false}) {
    std::atomic<int> stop = at_once ? 1 : 0;
    std::uint64_t written = 0, all = 0;
    WriteWeights options;
    options.stop = &stop;
    options.progress = [&](std::uint64_t done, std::uint64_t of) {
      if (done > 0) stop = 1;
      written = done;
      all = of;
    };
    EXPECT_THROW(export_model(real_files(), source, temp / "out", options), Stopped);
    EXPECT_EQ(written == 0, at_once);
    EXPECT_TRUE(at_once || written < all) << written;
    stop = at_once ? 1 : 0;
    EXPECT_THROW(import_model(real_files(), source, temp / "out", options), Stopped);
    EXPECT_EQ(real_files().list(temp.path()), std::vector<std::string>{"shards"});
  }
}

// A small model with a tokenizer, and other files beside it.
class SideFiles : public ::testing::Test {
 protected:
  SideFiles() {
    fs::create_directories(hf_);
    for (const char* name : {"config.json", "model.safetensors"})
      fs::copy(fs::path(fixture("llama3-gqa")) / name, hf_ / name);
    put("generation_config.json", R"({"eos_token_id": 2})");
    put("tokenizer.json", data::built_in_tokenizer_json("bytes"));
    put("tokenizer_config.json", R"({"eos_token": "<end>"})");
    put("special_tokens_map.json", "{}");
    real_files().replace(temp_ / "secret", "{\"password\": 1}");
  }
  void put(const std::string& name, std::string_view text) { real_files().replace(hf_ / name, text); }
  Transferred import() {
    fs::remove_all(temp_ / "in");
    return import_model(real_files(), open_checkpoint(real_files(), hf_), temp_ / "in", {});
  }
  // And nothing is left of it.
  void expect_refused(std::initializer_list<std::string_view> parts) {
    EXPECT_TRUE(says(error_of([&] { import(); }), parts));
    EXPECT_FALSE(fs::exists(temp_ / "in") || fs::exists(temp_ / "in.partial"));
  }

  TempFolder temp_;
  const fs::path hf_ = temp_ / "hf";
};

TEST_F(SideFiles, AreNamedWhereTheyAreCopied) {
  const std::vector<std::string> copied = import().copied;
  EXPECT_EQ(std::set(copied.begin(), copied.end()),
            (std::set<std::string>{"generation_config.json", "special_tokens_map.json", "tokenizer.json",
                                   "tokenizer_config.json"}));
  for (const std::string& name : copied)
    EXPECT_EQ(real_files().read(temp_ / "in" / name), real_files().read(hf_ / name)) << name;
}

TEST_F(SideFiles, JsonThatIsNoneIsRefused) {
  for (const std::string name : {"generation_config.json", "tokenizer.json", "tokenizer_config.json",
                                 "special_tokens_map.json", "added_tokens.json", "vocab.json", "chat_template.json"}) {
    const bool there = fs::exists(hf_ / name);
    const std::string before = there ? real_files().read(hf_ / name) : "";
    for (const char* text : {"not JSON", "[1, 2]", ""}) {
      put(name, text);
      expect_refused({name, "JSON"});
    }
    fs::remove(hf_ / name);
    if (there) put(name, before);
  }
  import();
}

TEST_F(SideFiles, ALinkOutOfTheFolderIsNotFollowed) {
  for (const std::string name : {"generation_config.json", "added_tokens.json", "chat_template.jinja", "merges.txt"}) {
    fs::remove(hf_ / name);
    fs::create_symlink("../secret", hf_ / name);
    expect_refused({name, "link", "secret"});
    fs::remove(hf_ / name);
    fs::create_symlink("nowhere", hf_ / name);
    expect_refused({name, "link", "nowhere"});
    fs::remove(hf_ / name);
  }
  // One to a file beside it is as good as the file.
  fs::create_symlink("special_tokens_map.json", hf_ / "added_tokens.json");
  import();
  EXPECT_EQ(real_files().read(temp_ / "in/added_tokens.json"), "{}");
}

TEST_F(SideFiles, TheLinksOfHuggingFacesCacheAreFollowed) {
  const fs::path cache = temp_ / "models--x--y", snapshot = cache / "snapshots" / "abc";
  fs::create_directories(snapshot);
  fs::create_directories(cache / "blobs");
  for (const auto& entry : fs::directory_iterator(hf_)) {
    const std::string name = entry.path().filename().string();
    fs::rename(entry.path(), cache / "blobs" / ("blob-" + name));
    fs::create_symlink(fs::path("../../blobs") / ("blob-" + name), snapshot / name);
  }
  fs::remove(hf_);
  fs::create_directory_symlink(snapshot, hf_);  // named by a link, too
  EXPECT_EQ(import().copied.size(), 4u);
  fs::create_symlink("../../../secret", snapshot / "added_tokens.json");
  expect_refused({"added_tokens.json", "link"});
}

TEST_F(SideFiles, APickleIsAnsweredWithTheLineThatConvertsIt) {
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-00001-of-00002.bin"}) {
    fs::remove(hf_ / "model.safetensors");
    put(name, "PK");
    const std::string error = error_of([&] { open_checkpoint(real_files(), hf_); });
    EXPECT_TRUE(says(error, {name, "python3 -c", "from_pretrained('" + hf_.string() + "'", "save_pretrained"}));
    EXPECT_EQ(error.find('\n'), error.npos);
    fs::remove(hf_ / name);
  }
}

}  // namespace
}  // namespace redline::infer

// Files by the roles of their names: those of nanoGPT, llm.c, WikiText and Hugging Face, and folders without any.
#include "data/roles.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "config/load.h"
#include "data/from_config.h"
#include "data/shards/prepare.h"
#include "data/shards/small_folder.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::data {
namespace {

using redline::testing::error_of;
using redline::testing::says;

TEST(Roles, NamesHaveThem) {
  const std::map<std::string_view, FileRole> names = {
      {"train.bin", FileRole::train},
      {"train_000.bin", FileRole::train},
      {"Train.jsonl.zst", FileRole::train},
      {"fineweb_train_000001.bin", FileRole::train},
      {"data/train-00000-of-00004-3f2a91bc.parquet", FileRole::train},
      {"train/0000.parquet", FileRole::train},
      {"en/train/part-1.json.gz", FileRole::train},
      {"wiki.train.tokens", FileRole::train},
      {"train01.txt", FileRole::train},
      {"val.bin", FileRole::held_out},
      {"fineweb_val_000000.bin", FileRole::held_out},
      {"wiki.valid.raw", FileRole::held_out},
      {"data/validation-00000-of-00001.parquet", FileRole::held_out},
      {"eval.jsonl", FileRole::held_out},
      {"test.jsonl", FileRole::test},
      {"test/a.txt", FileRole::test},
      {"train/val.txt", FileRole::held_out},  // its own name before its folder's
      {"train.py", FileRole::none},
      {"train_to_nowhere.txt", FileRole::none},
      {"the_train_station.txt", FileRole::none},
      {"training.txt", FileRole::none},
      {"value.jsonl", FileRole::none},
      {"contest.txt", FileRole::none},
      {"data/00000.parquet", FileRole::none},
      {"README.md", FileRole::none},
  };
  for (const auto& [name, role] : names) EXPECT_EQ(role_of(name), role) << name;
}

class RolesOfFiles : public ::testing::Test {
 protected:
  std::string path(const std::string& name = "") const { return (folder_ / "d" / name).string(); }
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(Path(path(name)).parent_path());
    real_files().replace(path(name), text);
  }
  static std::vector<std::string> files(const Corpus& corpus) {
    std::vector<std::string> names;
    for (const Path& file : corpus.files()) names.push_back(file.filename().string());
    return names;
  }
  CorpusOptions options(std::vector<std::string> train) const {
    CorpusOptions o;
    o.train = std::move(train);
    return o;
  }
  using Names = std::vector<std::string>;
  redline::testing::TempFolder folder_;
};

const std::string kLine(200, 'x');

std::string some_ids(int from) {
  std::vector<std::uint16_t> ids;
  for (int i = 0; i < 500; ++i) ids.push_back(static_cast<std::uint16_t>(from + i * 7 % 900));
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * 2};
}

TEST_F(RolesOfFiles, ANanoGptFolderIsTrainedOnItsTrainFile) {
  write("train.bin", some_ids(0));
  write("val.bin", some_ids(50));
  write("input.txt", std::string(9000, 'a'));  // larger than the tokens, and no tokens
  write("prepare.py", "print()");
  const CorpusOptions o = options({path()});
  EXPECT_EQ(files(*open_training_corpus(o)), Names{"train.bin"});
  EXPECT_EQ(files(*open_held_out_corpus(o)), Names{"val.bin"});
  EXPECT_TRUE(has_held_out_files(o));
  ASSERT_EQ(roles_in_words(o).size(), 1u);
  EXPECT_TRUE(
      says(roles_in_words(o)[0], {"train.bin is trained on", "val.bin is held out", "prepare.py", "data.roles"}));
  // Every token of the file is trained on: no part of it is held out as well.
  EXPECT_EQ(dynamic_cast<const DocumentSource&>(*open_training_corpus(o)).length(0), 500);
  // What somebody names is what he says, and a pattern over both is a folder.
  EXPECT_EQ(files(*open_training_corpus(options({path("val.bin")}))), Names{"val.bin"});
  EXPECT_EQ(files(*open_training_corpus(options({path("*.bin")}))), Names{"train.bin"});
  EXPECT_EQ(files(*open_training_corpus(options({path("va*.bin")}))), Names{"val.bin"});
  CorpusOptions eval = options({path("train.bin")});
  eval.eval = {path()};
  EXPECT_EQ(files(*open_held_out_corpus(eval)), Names{"val.bin"});
}

TEST_F(RolesOfFiles, WithoutRolesEveryFileIsRead) {
  write("train.txt", kLine);
  write("val.txt", kLine);
  write("test.txt", kLine);
  CorpusOptions o = options({path()});
  EXPECT_EQ(files(*open_training_corpus(o)), Names{"train.txt"});
  o.roles = false;
  EXPECT_EQ(files(*open_training_corpus(o)), (Names{"test.txt", "train.txt", "val.txt"}));
  EXPECT_FALSE(has_held_out_files(o));
  config::Data old;  // a run from before there were roles goes on as it was
  old.train = {path()};
  old.roles = config::parse("[train]\nmax_steps = 1", "an old run").data.roles;
  EXPECT_EQ(files(*open_training_corpus(corpus_options(old))).size(), 3u);
}

TEST_F(RolesOfFiles, HuggingFaceLayouts) {
  write("README.md", "a set");
  write("data/train-00000-of-00002.jsonl", kLine);
  write("data/train-00001-of-00002.jsonl", kLine);
  write("data/validation-00000-of-00001.jsonl", kLine);
  write("data/test-00000-of-00001.jsonl", kLine);
  const CorpusOptions o = options({path()});
  EXPECT_EQ(training_paths(o),
            (Names{path("data/train-00000-of-00002.jsonl"), path("data/train-00001-of-00002.jsonl")}));
  const std::string said = roles_in_words(o)[0];
  EXPECT_TRUE(says(said, {"validation-00000-of-00001.jsonl is held out", "test-00000", "not read"}));
}

TEST_F(RolesOfFiles, FilesWithoutARoleAreTrainedOnWhereTheyAreTheMost) {
  write("a.txt", kLine);
  write("b.txt", kLine);
  write("val.txt", kLine);
  EXPECT_EQ(training_paths(options({path()})), (Names{path("a.txt"), path("b.txt")}));
  write("train.txt", "one short line");  // a story perhaps
  EXPECT_EQ(training_paths(options({path()})), (Names{path("a.txt"), path("b.txt"), path("train.txt")}));
  write("c/d.txt", "nothing here is called anything");
  EXPECT_FALSE(split_by_role(path("c"), "data.train"));
}

TEST_F(RolesOfFiles, PreparedFoldersInAFolder) {
  std::filesystem::create_directories(path());
  write_folder(real_files(), path("train"), {{1, 2, 3}, {4, 5}}, {});
  write_folder(real_files(), path("val"), {{6, 7}}, {});
  const CorpusOptions o = options({path()});
  EXPECT_EQ(training_paths(o), Names{path("train")});
  EXPECT_EQ(dynamic_cast<const DocumentSource&>(*open_training_corpus(o)).documents(), 2);
  EXPECT_EQ(dynamic_cast<const DocumentSource&>(*open_held_out_corpus(o)).documents(), 1);
}

TEST_F(RolesOfFiles, EachEntryOfAMixtureHasItsOwn) {
  for (const char* entry : {"web", "code"}) {
    write(fmt::format("{}/train.txt", entry), kLine);
    write(fmt::format("{}/val.txt", entry), kLine);
  }
  write("plain.txt", std::string(4000, 'y'));
  CorpusOptions o = options({path("web"), path("code"), path("plain.txt")});
  o.weights = {1, 1, 1};
  EXPECT_EQ(files(*open_training_corpus(o)), (Names{"train.txt", "train.txt", "plain.txt"}));
  EXPECT_EQ(files(*open_held_out_corpus(o)), (Names{"val.txt", "val.txt", "plain.txt"}));
}

TEST_F(RolesOfFiles, PreparingKeepsThem) {
  write("train.txt", "trained " + kLine);
  write("validation.txt", "held out");
  write("test.txt", "never");
  const auto prepared = [&](bool roles, double fraction = 0) {
    std::filesystem::remove_all(folder_ / "out");
    PrepareSettings s{.inputs = {path()}, .format = {}, .tokenizer = "bytes", .out = folder_ / "out"};
    s.roles = roles;
    s.val_fraction = fraction;
    s.threads = 1;
    return prepare(real_files(), s, std::atomic<int>(0), [](const PrepareProgress&) {});
  };
  const Prepared by_role = prepared(true);
  EXPECT_EQ(by_role.manifest.train.documents(), 1);
  EXPECT_EQ(by_role.manifest.val.documents(), 1);
  EXPECT_EQ(by_role.manifest.val.tokens(), 9);
  ASSERT_EQ(by_role.by_role.size(), 1u);
  EXPECT_TRUE(says(by_role.by_role[0], {"test.txt", "--roles"}));
  EXPECT_EQ(prepared(false).manifest.train.documents(), 3);
  EXPECT_TRUE(says(error_of([&] { prepared(true, 0.5); }), {"--val-fraction", "--roles none"}));
}

}  // namespace
}  // namespace redline::data

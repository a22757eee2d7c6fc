// Text files as documents: every byte once, any part of them by itself, and held-out text apart from training text.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "data/from_config.h"
#include "data/listed.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::data {
namespace {

using redline::testing::says;

class TextTest : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    const Path path = folder_.path() / name;
    real_files().create_folders(path.parent_path());
    real_files().replace(path, text);
    return path.string();
  }
  static config::Data data(std::vector<std::string> train, std::vector<std::string> eval = {}) {
    config::Data d;
    d.train = std::move(train);
    d.eval = std::move(eval);
    return d;
  }
  static std::string error_of(const config::Data& d) {
    return testing::error_of([&] { training_corpus(d); });
  }
  static const DocumentSource& indexed(const Corpus& corpus) { return dynamic_cast<const DocumentSource&>(corpus); }
  // All documents in index order, read whole and again in parts.
  static std::string text_of(const Corpus& corpus) {
    const DocumentSource& source = indexed(corpus);
    std::string text;
    std::vector<std::int32_t> tokens, parts;
    for (std::int64_t i = 0; i < source.documents(); ++i) {
      source.read(i, tokens);
      EXPECT_FALSE(tokens.empty());
      EXPECT_EQ(source.length(i), static_cast<std::int64_t>(tokens.size()));
      parts.clear();
      for (std::int64_t at = 0; at < source.length(i); at += 1000)
        source.append(i, at, std::min<std::int64_t>(1000, source.length(i) - at), parts);
      EXPECT_EQ(parts, tokens);
      text += source.decode(tokens);
    }
    return text;
  }
  static std::string lines(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += fmt::format("line {} of a text\n", i);
    return text;
  }
  redline::testing::TempFolder folder_;
};

TEST_F(TextTest, EveryByteOnceAndThenTheEnd) {
  const std::string a = lines(10), b = std::string("\x00\xff bytes", 8);
  const auto source = training_corpus(data({write("a.txt", a), write("b.txt", b)}, {"x"}));
  EXPECT_EQ(source->name(), "2 text files as bytes");
  EXPECT_EQ(source->vocabulary(), 257);
  EXPECT_EQ(indexed(*source).documents(), 2);
  EXPECT_EQ(text_of(*source), a + "<end>" + b + "<end>");
}

TEST_F(TextTest, LongFilesAreOneDocument) {
  for (const int count : {1000, 20000, 300000}) {  // small enough to be copied, and mapped
    const std::string text = lines(count);
    const auto source = training_corpus(data({write("long.txt", text)}, {"x"}));
    EXPECT_EQ(indexed(*source).documents(), 1);
    EXPECT_EQ(text_of(*source), text + "<end>");
  }
}

TEST_F(TextTest, HeldOutIsTheLastTwentiethAndStartsALine) {
  for (const int count : {10, 1000, 50000}) {
    const std::string text = lines(count);
    const config::Data d = data({write("t.txt", text)});
    const std::string training = text_of(*training_corpus(d)), held_out = text_of(*held_out_corpus(d));
    EXPECT_EQ(training + held_out, text + "<end>");
    EXPECT_TRUE(held_out.starts_with("line "));
    EXPECT_GT(held_out.size(), text.size() / 25);
    EXPECT_LT(held_out.size(), text.size() / 9 + 20);
  }
}

TEST_F(TextTest, HeldOutWithoutLinesOrAcrossFiles) {
  const config::Data flat = data({write("flat.txt", std::string(10000, 'x'))});
  EXPECT_EQ(text_of(*training_corpus(flat)).size(), 9500u);
  EXPECT_EQ(text_of(*held_out_corpus(flat)), std::string(500, 'x') + "<end>");
  // The cut falls into the second file, near its start: files are whole when they can be.
  const config::Data two = data({write("a.txt", std::string(9490, 'a')), write("b.txt", std::string(510, 'b'))});
  EXPECT_EQ(text_of(*training_corpus(two)), std::string(9490, 'a') + "<end>");
  EXPECT_EQ(text_of(*held_out_corpus(two)), std::string(510, 'b') + "<end>");
}

TEST_F(TextTest, EvalOfItsOwnLeavesTrainingWhole) {
  const std::string a = write("a.txt", "short"), b = write("b.txt", "other");
  const config::Data d = data({a}, {b});
  EXPECT_EQ(text_of(*training_corpus(d)), "short<end>");
  EXPECT_EQ(text_of(*held_out_corpus(d)), "other<end>");
}

TEST_F(TextTest, FoldersAndGlobs) {
  write("f/b.txt", "2");
  write("f/a/z.txt", "1");
  write("f/empty.txt", "");
  write("f/c.md", "3");
  write("f/.DS_Store", std::string("\0\0\0\1Bud1", 8));  // hidden files and folders are not data
  write("f/.git/config", "4");
  const std::string folder = (folder_.path() / "f").string();
  EXPECT_EQ(text_of(*training_corpus(data({folder}, {"x"}))), "1<end>2<end>3<end>");
  EXPECT_EQ(text_of(*training_corpus(data({folder + "/*.md", folder + "/b*"}, {"x"}))), "3<end>2<end>");
}

TEST_F(TextTest, MistakesAreTold) {
  const std::string folder = folder_.path().string();
  EXPECT_TRUE(says(error_of(data({folder + "/no.txt"})), {"data.train", "no file", folder + "/no.txt"}));
  EXPECT_TRUE(says(error_of(data({folder + "/*.zip"})), {"data.train", "matches", folder + "/*.zip"}));
  EXPECT_TRUE(says(error_of(data({write("e.txt", "")})), {"data.train", folder + "/e.txt", "empty"}));
  EXPECT_TRUE(says(error_of(data({folder})), {"data.train", folder, "no text"}));
  EXPECT_TRUE(says(error_of(data({"/dev/null"})), {"data.train", "/dev/null", "not a file"}));
  EXPECT_TRUE(says(error_of(data({write("s.txt", "short")})), {"data.train", "5 bytes", "data.eval"}));
  EXPECT_TRUE(says(error_of(data({"ping", "x"})), {"data.train", "\"ping\"", "./ping"}));
  EXPECT_NE(error_of(data({})), "no error");
}

TEST_F(TextTest, BytesThatAreNoTextMustBeAskedFor) {
  std::string program = std::string("\x7f\x45LF", 4) + std::string(300, '\0') + "and letters", table = "PAR1\x15\x04";
  config::Data d = data({write("program.txt", program)});
  EXPECT_TRUE(says(error_of(d), {"data.train", "program.txt", "ELF"}));
  d.tokenizer = "bytes";
  EXPECT_EQ(text_of(*training_corpus(d)).size() + text_of(*held_out_corpus(d)).size(),
            program.size() + std::string_view("<end>").size());
  // Text in a wrapping is never meant as it stands, nor is a table one document.
  d.train = {write("table.txt", table + std::string(100, 'x'))};
  EXPECT_TRUE(says(error_of(d), {"Parquet"}));
  d.train = {write("table.csv", "id,text\n1,a\n")};
  EXPECT_TRUE(says(error_of(d), {"data.separator"}));
  // The beginning may look like text where the middle does not.
  d = data({write("mixed", std::string(200'000, 'a') + std::string(200'000, '\0'))});
  EXPECT_TRUE(says(error_of(d), {"not text"}));
}

TEST_F(TextTest, ADocumentTakesASixteenthOfTheMemoryAtMost) {
  config::Data d = data({write("a.jsonl", "{\"text\":\"" + std::string(1 << 18, 'a') + "\"}\n")});
  d.ram_mib = 1;
  TextInput input(d.train, corpus_options(d).read.input, "data.train");
  const auto read = [&] {
    TextBlock block;
    std::string text;
    ASSERT_TRUE(input.next(block, 1, 1));
    input.parse(block, 0, text);
  };
  EXPECT_TRUE(says(testing::error_of(read), {"65536 bytes", "data.ram_mib (1)"}));
}

}  // namespace
}  // namespace redline::data

// The token that begins a text: before each document once, whatever reads it, and never twice; kept in prepared
// folders; data that disagree about it are refused.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/log.h"
#include "data/batch_maker.h"
#include "data/chat_folder.h"
#include "data/from_config.h"
#include "data/loader.h"
#include "data/shards/prepare.h"
#include "data/shards/small_folder.h"
#include "data/stream.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::data {
namespace {

using redline::testing::says;

constexpr std::int32_t kEnd = 500, kBegin = 503;  // of the tokenizer below

class BeginningTest : public ::testing::Test {
 protected:
  std::string llama(const std::string& name = "llama", const std::string& chat_template = "") {
    return write_llama_tokenizer(temp_ / name, chat_template);
  }
  std::string write(const std::string& name, const std::string& bytes) {
    real_files().replace(temp_ / name, bytes);
    return (temp_ / name).string();
  }
  std::string lines(const std::string& name, const std::vector<std::string>& documents) {
    std::string text;
    for (const std::string& d : documents) text += io::Json{{"text", d}}.dump() + "\n";
    return write(name, text);
  }
  config::Data settings(const std::string& train, const std::string& bos = "auto") {
    config::Data d;
    d.train = {train};
    d.tokenizer = llama();
    d.bos = bos;
    d.shuffle = false;
    return d;
  }
  static std::unique_ptr<Corpus> open(const config::Data& d) {
    CorpusOptions options = corpus_options(d);
    options.eval = {"unused"};  // all documents are for training
    return open_training_corpus(options);
  }
  // Every piece, in the order of the documents.
  static std::vector<Ids> pieces(const config::Data& d, std::int64_t row = 4096) {
    LoaderOptions o = loader_options(d, {1, row, 1}, true);
    o.packer = {{1, row, 1}, Packing::pad, false, {}, 1};
    o.feed.repeat = false;
    o.workers = 0;
    Loader loader(open(d), o);
    Batch batch(o.packer.shape);
    std::vector<Ids> all;
    while (loader.next(batch)) all.emplace_back(batch.tokens.begin(), batch.tokens.begin() + batch.real_tokens);
    return all;
  }
  Prepared prepared(const std::string& out, const std::vector<std::string>& inputs, const std::string& bos = "auto",
                    const std::string& chat = "none") {
    PrepareSettings s;
    s.inputs = inputs;
    s.tokenizer = llama();
    s.out = temp_ / out;
    s.bos = bos;
    s.chat = chat;
    s.threads = 1;
    const std::atomic<int> no_stop{0};
    return prepare(real_files(), s, no_stop, [](const PrepareProgress&) {});
  }
  // As an older program left it, which knew nothing of it.
  void forget_beginning(const std::string& folder) {
    Manifest m = read_prepared_folder(temp_ / folder, "k").manifest;
    m.beginning.reset();
    real_files().replace(temp_ / folder / kManifestFile, manifest_text(m));
  }
  std::string path(const std::string& name) { return (temp_ / name).string(); }

  redline::testing::TempFolder temp_;
};

TEST_F(BeginningTest, StandsBeforeEachDocumentOnceAndTheEndToo) {
  const std::string train = lines("a.jsonl", {"one", "", "<|begin_of_text|>two"});
  const auto tokenizer = open_tokenizer(llama(), "k");
  const auto around = [&](const char* text, bool begin) {
    Ids ids = tokenizer->encode(text);
    if (begin) ids.insert(ids.begin(), kBegin);
    ids.push_back(kEnd);
    return ids;
  };
  EXPECT_EQ(pieces(settings(train)), (std::vector<Ids>{around("one", true), around("two", true)}));
  EXPECT_EQ(pieces(settings(train, "none")), (std::vector<Ids>{around("one", false), around("two", true)}));
  EXPECT_TRUE(says(open(settings(train))->name(), {"<|begin_of_text|>"}));
  EXPECT_EQ(open(settings(train))->beginning(), (Ids{kBegin}));
  EXPECT_EQ(open(settings(train, "none"))->beginning(), Ids{});
}

TEST_F(BeginningTest, OfALongDocumentTheFirstPieceAloneHasIt) {
  const config::Data d = settings(lines("a.jsonl", {std::string(200, 'x') + " and so on", "short"}));
  std::int64_t begins = 0;
  const std::vector<Ids> all = pieces(d, 16);
  ASSERT_GT(all.size(), 3u);
  for (const Ids& piece : all) begins += std::ranges::count(piece, kBegin);
  EXPECT_EQ(begins, 2);
  EXPECT_EQ(all[0][0], kBegin);
}

TEST_F(BeginningTest, AutoIsTheTokenizersOwnAndAlwaysNeedsAToken) {
  config::Data d = settings(lines("a.jsonl", {"one"}));
  d.tokenizer = write_chat_tokenizer(temp_ / "plain", "");
  EXPECT_EQ(pieces(d)[0][0], open_tokenizer(d.tokenizer, "k")->encode("one")[0]);
  d.bos = "always";
  EXPECT_EQ(pieces(d)[0][0], kBegin) << "known by its name";
  d.tokenizer = "bytes";
  EXPECT_TRUE(says(testing::error_of([&] { open(d); }), {"data.bos", "bytes", "auto"}));
  d.train = {write("a.txt", "one")};
  d.tokenizer = "";
  EXPECT_TRUE(says(testing::error_of([&] { open(d); }), {"data.bos", "bytes"}));
}

// A run that was made before goes on: the number that its data have did not change.
TEST_F(BeginningTest, WithoutOneTheIdentityIsWhatItWas) {
  const config::Data with = settings(lines("a.jsonl", {"one"})), without = settings(path("a.jsonl"), "none");
  config::Data plain = without;
  plain.tokenizer = write_chat_tokenizer(temp_ / "plain", "");
  EXPECT_NE(open(with)->fingerprint(), open(without)->fingerprint());
  const std::uint64_t never = open(plain)->fingerprint();
  plain.bos = "auto";
  EXPECT_EQ(open(plain)->fingerprint(), never);
}

TEST_F(BeginningTest, ConversationsBeginAsTheirTemplateSays) {
  const std::string chat = write("chat.jsonl", messages_line({{"user", "Why?"}, {"assistant", "So."}}) +
                                                   R"({"prompt": "Two and", "completion": " two"})"
                                                   "\n");
  const auto begins = [&](const std::string& form, const std::string& bos) {
    config::Data d = settings(chat, bos);
    d.chat = form;
    std::vector<std::int64_t> counts;
    for (const Ids& ids : pieces(d)) {
      counts.push_back(std::ranges::count(ids, kBegin));
      if (counts.back() > 0) {
        EXPECT_EQ(token_id(ids[0]), kBegin);
      }
    }
    return counts;
  };
  using Counts = std::vector<std::int64_t>;
  EXPECT_EQ(begins("llama3", "auto"), (Counts{1, 1})) << "once by the template, once before a prompt";
  EXPECT_EQ(begins("llama3", "always"), (Counts{1, 1}));
  EXPECT_EQ(begins("llama3", "none"), (Counts{1, 0})) << "as it always was";
  EXPECT_EQ(begins("chatml", "auto"), (Counts{0, 1})) << "as apply_chat_template";
  EXPECT_EQ(begins("chatml", "always"), (Counts{1, 1}));
  config::Data d = settings(chat);
  d.chat = "llama3";
  EXPECT_EQ(open(d)->beginning(), (Ids{kBegin}));
  d.chat = "chatml";
  EXPECT_EQ(open(d)->beginning(), std::nullopt) << "messages begin without a token, and prompts with one";
}

TEST_F(BeginningTest, PreparedFoldersKeepIt) {
  const std::string input = lines("a.jsonl", {"one", "two"});
  EXPECT_EQ(prepared("with", {input}).manifest.beginning, (Ids{kBegin}));
  EXPECT_EQ(prepared("without", {input}, "none").manifest.beginning, Ids{});
  EXPECT_EQ(read_prepared_folder(temp_ / "with", "k").manifest.beginning, (Ids{kBegin}));
  config::Data d = settings(path("with"));
  d.tokenizer = "";
  EXPECT_EQ(pieces(d)[0].front(), kBegin);
  EXPECT_EQ(pieces(d)[0].back(), kEnd);
  EXPECT_EQ(open(d)->beginning(), (Ids{kBegin}));
  d.bos = "none";
  EXPECT_TRUE(says(testing::error_of([&] { open(d); }), {"data.bos", "with", "--bos none"}));
  d.train = {path("without")};
  d.bos = "auto";
  EXPECT_EQ(open(d)->beginning(), Ids{});
  d.bos = "always";
  EXPECT_TRUE(says(testing::error_of([&] { open(d); }), {"data.bos", "without", "--bos always"}));
  d.bos = "auto";
  d.train = {path("with"), path("without")};
  EXPECT_TRUE(says(testing::error_of([&] { open(d); }), {"with", "without", "--bos"}));
  d.weights = {1, 1};
  EXPECT_TRUE(says(testing::error_of([&] { open(d); }), {"with", "without", "data.bos"}));
}

TEST_F(BeginningTest, OldFoldersGoOnAsTheyAreWithAWord) {
  prepared("old", {lines("a.jsonl", {"one", "two"})}, "none");
  forget_beginning("old");
  config::Data d = settings(path("old"));
  d.tokenizer = "";
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(open(d)->beginning(), Ids{});
  EXPECT_TRUE(says(::testing::internal::GetCapturedStderr(), {path("old"), "<|begin_of_text|>", "data.bos=none"}));
  d.bos = "none";
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(open(d)->beginning(), Ids{});
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST_F(BeginningTest, DataThatDisagreeAreRefused) {
  prepared("without", {lines("a.jsonl", {"one", "two"})}, "none");
  const auto text = open(settings(path("a.jsonl"))), none = open(settings(path("a.jsonl"), "none"));
  const auto error = [](const Corpus& a, const Corpus& b) {
    return testing::error_of([&] { require_same_beginning(a, "data.train", b, "data.eval"); });
  };
  EXPECT_EQ(error(*text, *text), "no error");
  EXPECT_TRUE(says(error(*text, *none), {"data.train", "data.eval", "<|begin_of_text|>", "data.bos"}));
  config::Data d = settings(path("without"));
  d.tokenizer = "";
  EXPECT_TRUE(says(error(*open(d), *text), {"data.train", "data.eval", "--bos"}));
  EXPECT_EQ(error(*open(d), *none), "no error");
}

// Files of other programs do not say how documents begin, and stay as they are.
TEST_F(BeginningTest, TokenFilesAreLookedAtAndLeftAsTheyAre) {
  const auto bin = [&](const char* name, const std::vector<std::uint16_t>& ids) {
    return write(name, std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * 2));
  };
  const std::vector<std::uint16_t> with = {kBegin, 1, 2, kEnd, kBegin, 3, kEnd}, without = {1, 2, kEnd, 3, 4, kEnd};
  EXPECT_EQ(open(settings(bin("with.bin", with)))->beginning(), (Ids{kBegin}));
  EXPECT_EQ(open(settings(bin("without.bin", without)))->beginning(), Ids{});
  EXPECT_EQ(pieces(settings(path("without.bin")))[0], (Ids{1, 2, kEnd}));
  EXPECT_EQ(open(settings(path("with.bin"), "always"))->beginning(), (Ids{kBegin}));
  EXPECT_TRUE(says(testing::error_of([&] { open(settings(path("without.bin"), "always")); }), {"data.bos", "tokens"}));
}

}  // namespace
}  // namespace redline::data

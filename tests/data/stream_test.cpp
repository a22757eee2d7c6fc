// Training straight from text and .jsonl: the documents of the files, each once an epoch, shuffled in windows, going on
// from any state, whatever the file and however many threads.
#include "data/stream.h"

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <map>
#include <set>

#include "base/error.h"
#include "data/from_config.h"
#include "data/listed.h"
#include "io/json.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::data {
namespace {

class StreamTest : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& bytes) {
    const auto file = real_files().create(folder_.path() / name);
    file->write(bytes);
    file->close();
    return (folder_.path() / name).string();
  }

  // Documents "0 xxx...", "1 xx...", of random lengths; every seventh is empty.
  static std::vector<std::string> texts(std::size_t count) {
    std::vector<std::string> out;
    const std::vector<std::int64_t> lengths = random_lengths(count, 300, 7);
    for (std::size_t i = 0; i < count; ++i)
      out.push_back(i % 7 == 3 ? "" : fmt::format("{} ", i) + std::string(static_cast<std::size_t>(lengths[i]), 'x'));
    return out;
  }
  static std::string json_lines(const std::vector<std::string>& documents) {
    std::string text;
    for (const std::string& d : documents) text += io::Json{{"id", 1}, {"text", d}}.dump() + "\n";
    return text;
  }
  static std::string zstd(const std::string& text) {
    std::string out(ZSTD_compressBound(text.size()), '\0');
    out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 1));
    return out;
  }
  std::string gzip(const std::string& name, const std::string& text) {
    const std::string path = (folder_.path() / name).string();
    const gzFile file = gzopen(path.c_str(), "wb");
    EXPECT_EQ(gzwrite(file, text.data(), static_cast<unsigned>(text.size())), static_cast<int>(text.size()));
    gzclose(file);
    return path;
  }

  static std::unique_ptr<Corpus> bytes(const std::vector<std::string>& paths, Part part = Part::all,
                                       const std::string& separator = "") {
    return open_stream({.paths = paths,
                        .key = "data.train",
                        .format = {.text_field = "text", .separator = separator},
                        .tokenizer = open_tokenizer("bytes", "data.tokenizer"),
                        .part = part,
                        .seed = 5});
  }
  static LoaderOptions options(const std::string& packing, std::int64_t workers = 0, bool repeat = true) {
    LoaderOptions o = options_for({4, 128, 16}, packing, workers, repeat);
    o.feed.shuffle_buffer = 50;
    return o;
  }
  // The whole documents of one epoch, in the order of the batches.
  static std::vector<std::string> read_all(std::unique_ptr<Corpus> corpus, LoaderOptions o) {
    o.packer = {{1, 4096, 64}, Packing::pack, false, {}, 1};
    o.feed.repeat = false;
    Loader loader(std::move(corpus), o);
    Batch batch(o.packer.shape);
    std::string text;
    while (loader.next(batch)) {
      const Tokens tokens(batch.tokens.begin(), batch.tokens.begin() + batch.real_tokens);
      text += loader.corpus().decode(tokens);
    }
    std::vector<std::string> documents;
    for (std::size_t at = 0, end; (end = text.find("<end>", at)) != text.npos; at = end + 5)
      documents.push_back(text.substr(at, end - at));
    return documents;
  }
  static std::vector<std::string> not_empty(std::vector<std::string> documents) {
    std::erase(documents, "");
    return documents;
  }

  redline::testing::TempFolder folder_;
};

TEST_F(StreamTest, EveryDocumentOfEveryKindOfFileComesOnceAndInAnotherOrder) {
  const std::vector<std::string> documents = texts(400), expected = not_empty(documents);
  const std::string lines = json_lines(documents);
  std::string joined;
  for (const std::string& d : documents) joined += d + "\n---\n";
  const std::string plain = write("a.jsonl", lines), packed = write("a.jsonl.zst", zstd(lines)),
                    gz = gzip("a.jsonl.gz", lines), text = write("a.txt", joined);
  for (const std::string& path : {plain, packed, gz, text}) {
    LoaderOptions o = options("pack", 2);
    o.feed.shuffle = false;
    EXPECT_EQ(read_all(bytes({path}, Part::all, "\n---\n"), o), expected) << path;
    o.feed.shuffle = true;
    std::vector<std::string> shuffled = read_all(bytes({path}, Part::all, "\n---\n"), o);
    EXPECT_NE(shuffled, expected) << path;
    std::vector<std::string> a = shuffled, b = expected;
    std::ranges::sort(a);
    std::ranges::sort(b);
    EXPECT_EQ(a, b) << path;
    // A document stays within its window of 50.
    for (std::size_t i = 0; i < shuffled.size(); ++i) {
      const auto at = std::ranges::find(expected, shuffled[i]) - expected.begin();
      EXPECT_LT(std::abs(at - static_cast<std::ptrdiff_t>(i)), 50);
    }
  }
}

TEST_F(StreamTest, PiecesOfLongDocumentsAreShuffledAmongThoseOfOthers) {
  std::vector<std::string> documents;
  for (int d = 0; d < 12; ++d) documents.push_back(std::string(999, static_cast<char>('a' + d)));  // 10 pieces of 100
  LoaderOptions o = options_for({1, 100, 1}, "pack", 2, false);
  o.feed.shuffle_buffer = 40;
  Loader loader(bytes({write("long.jsonl", json_lines(documents))}), o);
  Batch batch(o.packer.shape);
  std::string order;
  while (loader.next(batch)) {
    EXPECT_EQ(batch.pairs, batch.targets[99] == kNoTarget ? 99 : 100);
    order += static_cast<char>(batch.tokens[0]);
  }
  ASSERT_EQ(order.size(), 120u);
  for (std::size_t window = 0; window < 3; ++window) {  // of four documents each
    const std::string pieces = order.substr(40 * window, 40);
    int repeats = 0;
    for (std::size_t i = 1; i < pieces.size(); ++i) repeats += pieces[i] == pieces[i - 1];
    EXPECT_LT(repeats, 20) << pieces;
    for (std::size_t d = 0; d < 4; ++d)
      EXPECT_EQ(std::ranges::count(pieces, static_cast<char>('a' + 4 * window + d)), 10) << pieces;
  }
}

TEST_F(StreamTest, GoesOnFromASavedStateBitForBit) {
  const std::string lines = json_lines(texts(300));
  const std::vector<std::vector<std::string>> files = {
      {write("a.jsonl", lines), write("b.jsonl", json_lines(texts(20)))},
      {write("c.jsonl.zst", zstd(lines)), write("d.txt", "one text that is a document")},
  };
  for (const auto& paths : files)
    for (const std::string& packing : kPackingNames) {
      expect_goes_on([&] { return bytes(paths); }, options(packing));
      LoaderOptions large = options(packing);  // epochs end within a window
      large.feed.shuffle_buffer = 2048;
      expect_goes_on([&] { return bytes(paths, Part::training); }, large);
    }
  LoaderOptions ordered = options("pack");
  ordered.feed.shuffle = false;
  expect_goes_on([&] { return bytes(files[1]); }, ordered);
}

TEST_F(StreamTest, AnEpochIsCountedByReadingIt) {
  const std::vector<std::string> documents = texts(2000);
  const std::string lines = json_lines(documents);
  const std::string plain = write("a.jsonl", lines), packed = write("a.jsonl.zst", zstd(lines));
  std::optional<Epoch> first;
  for (const std::string& path : {plain, packed})
    for (const std::int64_t workers : {0, 2}) {
      EXPECT_FALSE(Loader(bytes({path}), options("pack")).epoch());
      double share = 0;
      int reports = 0;
      const Epoch counted =
          count_epoch(bytes({path}), options("pack", workers), [&](const EpochSize&, std::optional<double> read) {
            ++reports;
            share = read.value_or(0);
          });
      EXPECT_EQ(counted.documents, static_cast<std::int64_t>(not_empty(documents).size()));
      EXPECT_GT(reports, 0);
      EXPECT_LE(share, 1);
      if (!first) first = counted;
      EXPECT_EQ(counted.tokens, first->tokens);
      EXPECT_EQ(counted.pieces, first->pieces);
      EXPECT_EQ(counted.batches, first->batches) << path << " " << workers;
    }
  struct Stopped {};
  EXPECT_THROW(
      count_epoch(bytes({plain}), options("pack", 2), [](const EpochSize&, std::optional<double>) { throw Stopped{}; }),
      Stopped);
}

TEST_F(StreamTest, AStateIsSmall) {
  LoaderOptions o = options("pack", 1);
  Loader loader(bytes({write("a.jsonl", json_lines(texts(3000)))}), o);
  Batch batch(o.packer.shape);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(loader.next(batch));
  EXPECT_LE(loader.state().waiting.size(), 64u);
  EXPECT_GT(loader.state().empty_documents, 0);
}

TEST_F(StreamTest, HeldOutDocumentsAreNeverTrainedOnAndAreTheRest) {
  const std::vector<std::string> documents = texts(1000);
  const std::string path = write("a.jsonl", json_lines(documents));
  const auto training = read_all(bytes({path}, Part::training), options("pack", 1));
  const auto held_out = read_all(bytes({path}, Part::held_out), options("pack", 0));
  const std::set<std::string> a(training.begin(), training.end()), b(held_out.begin(), held_out.end());
  for (const std::string& d : b) EXPECT_FALSE(a.contains(d));
  EXPECT_EQ(training.size() + held_out.size(), not_empty(documents).size());
  EXPECT_GT(held_out.size(), 10u);
  EXPECT_LT(held_out.size(), 17u);
}

// Fewer than 64: the last that has text is held out, and the others are all trained on.
TEST_F(StreamTest, OfFewDocumentsTheLastIsHeldOut) {
  for (const std::size_t count : {2, 3, 5, 60, 63}) {
    std::vector<std::string> documents = texts(count);
    documents.push_back("");  // no text: it cannot be the one
    const std::string path = write("few.jsonl", json_lines(documents));
    std::vector<std::string> expected = not_empty(documents);
    const std::vector<std::string> last = {expected.back()};
    expected.pop_back();
    LoaderOptions o = options("pack", 0);
    o.feed.shuffle = false;
    EXPECT_EQ(read_all(bytes({path}, Part::held_out), o), last) << count;
    EXPECT_EQ(read_all(bytes({path}, Part::training), o), expected) << count;
  }
  EXPECT_TRUE(testing::says(bytes({write("few.jsonl", json_lines(texts(3)))}, Part::training)->name(), "held out"));
}

// One document is parted: its last 64th is held out, also after a resume in the middle.
TEST_F(StreamTest, OfOneDocumentTheEndIsHeldOut) {
  std::string text;
  for (int i = 0; i < 700; ++i) text += fmt::format("{},", i);
  const std::string packed = gzip("one.gz", text);
  const auto read = [&](Part part) {
    LoaderOptions o = options("pack", 0);
    o.packer = {{1, 4096, 64}, Packing::pack, false, {}, 1};
    o.feed.repeat = o.feed.shuffle = false;
    Loader loader(bytes({packed}, part), o);
    Batch batch(o.packer.shape);
    Tokens tokens;
    while (loader.next(batch))
      tokens.insert(tokens.end(), batch.tokens.begin(), batch.tokens.begin() + batch.real_tokens);
    return loader.corpus().decode(tokens);
  };
  const std::string all = text + "<end>", held_out = read(Part::held_out), training = read(Part::training);
  EXPECT_EQ(training + held_out, all);
  EXPECT_GE(held_out.size(), (text.size() + 1) / 64);
  EXPECT_LE(held_out.size(), text.size() / 64 + 8);
  expect_goes_on([&] { return bytes({packed}, Part::training); }, options("pack"));
  EXPECT_TRUE(testing::says(testing::error_of([&] { bytes({write("short.txt", "short")}, Part::training); }),
                            {"data.eval", "5 bytes"}));
  EXPECT_TRUE(testing::says(testing::error_of([&] {
                              bytes({write("e.jsonl", json_lines({"", ""}))}, Part::held_out);
                            }),
                            {"no text"}));
}

TEST_F(StreamTest, BatchesGoRoundTheRanks) {
  const std::string path = write("a.jsonl", json_lines(texts(500)));
  for (const bool shuffle : {true, false}) {
    LoaderOptions o = options("pack");
    o.feed.shuffle = shuffle;
    expect_rounds([&] { return bytes({path}, Part::training); }, o);
    o.feed.repeat = false;
    expect_rounds([&] { return bytes({path}, Part::held_out); }, o);
  }
}

TEST_F(StreamTest, ABadLineIsToldAfterTheBatchesBeforeIt) {
  std::vector<std::string> documents(2000, std::string(100, 'y'));
  const std::string path = write("bad.jsonl", json_lines(documents) + "{\"text\": \n");
  for (const std::int64_t workers : {0, 1, 3}) {
    LoaderOptions o = options("stream", workers);
    Loader loader(bytes({path}), o);
    Batch batch(o.packer.shape);
    int batches = 0;
    const auto read = [&] {
      while (loader.next(batch)) ++batches;
    };
    EXPECT_TRUE(testing::says(testing::error_of(read), {"bad.jsonl:2001"}));
    EXPECT_EQ(batches, 2000 * 101 / 512) << workers;
    EXPECT_THROW(loader.next(batch), UserError);
  }
}

TEST_F(StreamTest, ChangedFilesAreNoticed) {
  const std::string path = write("a.jsonl", json_lines(texts(300)));
  const std::uint64_t before = bytes({path})->fingerprint();
  LoaderOptions o = options("pack");
  Loader loader(bytes({path}), o);
  Batch batch(o.packer.shape);
  for (int i = 0; i < 20; ++i) loader.next(batch);
  write("a.jsonl", json_lines(texts(10)));
  EXPECT_NE(bytes({path})->fingerprint(), before);
  Loader other(bytes({path}), o);
  EXPECT_THROW(other.restore(loader.state()), UserError);
}

TEST_F(StreamTest, TheConfigurationDecidesWhatIsAStream) {
  config::Data d;
  const auto error = [&] { return testing::error_of([&] { training_corpus(d); }); };
  d.train = {write("a.jsonl", json_lines(texts(100)))};
  EXPECT_TRUE(testing::says(error(), {"data.tokenizer"}));
  d.tokenizer = "bytes";
  EXPECT_FALSE(training_corpus(d)->endless());
  EXPECT_EQ(training_corpus(d)->vocabulary(), 257);
  EXPECT_NE(training_corpus(d)->fingerprint(), held_out_corpus(d)->fingerprint());
  d.tokenizer = "nonsense";
  EXPECT_TRUE(testing::says(error(), {"data.tokenizer"}));
  // Plain text stays bytes with random access until something asks for its documents.
  d = {};
  d.train = {write("a.txt", std::string(1000, 'x'))};
  EXPECT_NE(dynamic_cast<DocumentSource*>(training_corpus(d).get()), nullptr);
  d.separator = "\n\n";
  EXPECT_EQ(dynamic_cast<DocumentSource*>(training_corpus(d).get()), nullptr);
}

}  // namespace
}  // namespace redline::data

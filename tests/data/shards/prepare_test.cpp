// Preparing: the same bytes for any number of threads, what is malformed stopped at or counted, and a folder that is
// whole or not there, wherever the disk or the machine fails.
#include "data/shards/prepare.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <map>

#include "base/error.h"
#include "base/hash.h"
#include "base/random.h"
#include "data/shards/shards.h"
#include "data/shards/small_folder.h"
#include "data/tokenizer/tokenizer.h"
#include "testing/at_once.h"
#include "testing/failing_files.h"
#include "testing/memory.h"
#include "testing/paths.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::data {
namespace {

using redline::testing::says;
using Folder = std::map<std::string, std::string>;  // names and bytes

class PrepareTest : public ::testing::Test {
 protected:
  std::string write(const std::string& name, std::string_view bytes) {
    real_files().create_folders((folder_ / name).parent_path());
    const auto file = real_files().create(folder_ / name);
    file->write(bytes);
    file->close();
    return (folder_ / name).string();
  }
  Folder contents(const Path& folder) {
    Folder all;
    for (const std::string& name : real_files().list(folder)) all[name] = real_files().read(folder / name);
    return all;
  }
  PrepareSettings settings(std::vector<std::string> inputs) {
    PrepareSettings s;
    s.inputs = std::move(inputs);
    s.tokenizer = "bytes";
    s.out = out_;
    s.threads = 2;
    return s;
  }
  Prepared run(const PrepareSettings& s, FileSystem& files = real_files()) {
    return prepare(files, s, no_stop_, [](const PrepareProgress&) {});
  }
  std::string error_of(const PrepareSettings& s) {
    return testing::error_of([&] { run(s); });
  }
  std::vector<std::string> texts(Part part = Part::all, bool evaluation = false) {
    const auto source = open_shards({read_prepared_folder(out_, "k")}, {"k", part, evaluation, 0, {}, {}});
    std::vector<std::string> all;
    for (const Ids& ids : all_documents(*source)) all.push_back(source->decode(ids));
    return all;
  }
  // Documents of all sizes, in several files.
  std::vector<std::string> many_inputs() {
    const Random random(9, 9);
    for (int f = 0; f < 3; ++f) {
      std::string lines;
      for (std::uint64_t i = 0; i < 3000; ++i) {
        const auto size = random.below(i + 10'000 * static_cast<std::uint64_t>(f), i % 50 == 0 ? 30'000 : 400);
        lines += "{\"text\":\"" + std::string(size, static_cast<char>('a' + i % 26)) + "\"}\n";
      }
      write(fmt::format("in/{}.jsonl", f), lines);
    }
    write("in/z.txt", "a text");
    return {(folder_ / "in").string()};
  }

  redline::testing::TempFolder folder_;
  Path out_ = folder_ / "out";
  std::atomic<int> no_stop_{0};
};

TEST_F(PrepareTest, SmallExample) {
  const auto a = write("a.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"\"}\n{\"text\":\"c\"}\n"), b = write("b.txt", "dd");
  const Prepared prepared = run(settings({a, b}));
  EXPECT_EQ(texts(), (std::vector<std::string>{"ab<end>", "c<end>", "dd<end>"}));
  const Manifest m = read_prepared_folder(out_, "k").manifest;
  EXPECT_EQ(m, prepared.manifest);
  EXPECT_EQ(m.dtype, TokenType::u16);
  EXPECT_EQ(m.vocabulary, 257);
  EXPECT_EQ(m.end_token, kEndOfDocument);
  EXPECT_EQ(m.skipped_empty, 1);
  EXPECT_EQ(m.source_files, 2);
  EXPECT_EQ(m.source_bytes, 5);
  EXPECT_EQ(prepared.total.tokens, 8);
  EXPECT_EQ(real_files().list(out_),
            (std::vector<std::string>{"manifest.json", "train-00000.offsets", "train-00000.tokens"}));
  EXPECT_TRUE(says(error_of(settings({a})), {"--out", "manifest.json"}));
}

TEST_F(PrepareTest, TokensAndConversationsAreNamedForWhatTheyAre) {
  for (const char* name : {"train.bin", "a.idx"})
    EXPECT_TRUE(says(error_of(settings({write(name, std::string(512, '\1'))})), {name, "data.train=", "tokens"}));
  const std::string a = write("a.txt", "some text");
  run(settings({a}));
  PrepareSettings again = settings({(folder_ / "out").string()});
  again.out = folder_ / "again";
  EXPECT_TRUE(says(error_of(again), {"data.train=", "tokens"}));
  for (const char* line : {R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})",
                           R"({"instruction": "a", "input": "", "output": "b"})"}) {
    again = settings({write("chat.jsonl", std::string(line) + "\n")});
    again.out = folder_ / "again";
    EXPECT_TRUE(says(error_of(again), {"chat.jsonl:1:1", "data.chat=auto", "--chat auto"})) << line;
  }
}

TEST_F(PrepareTest, EndTokens) {
  const auto a = write("a.txt", "x");
  PrepareSettings s = settings({a});
  s.no_end_token = true;
  run(s);
  EXPECT_EQ(texts(), std::vector<std::string>{"x"});
  EXPECT_EQ(read_prepared_folder(out_, "k").manifest.end_token, std::nullopt);
  EXPECT_EQ(open_shards({read_prepared_folder(out_, "k")}, {"k", Part::all, false, 0, {}, {}})->end_token(),
            std::nullopt);
  real_files().remove_all(out_);
  s = settings({a});
  s.end_token = 'y';
  run(s);
  EXPECT_EQ(texts(), std::vector<std::string>{"xy"});
  s.end_token = 257;
  EXPECT_TRUE(says(error_of(s), {"--end-token 257"}));
}

// A flipped bit of plain text, or of Parquet without checksums, is told by nothing else.
TEST_F(PrepareTest, ASecondReadingIsHeldAgainstTheFirst) {
  const auto a = write("a.jsonl", "{\"text\":\"ab\"}\n"), b = write("b.txt", "dd");
  const Manifest m = run(settings({a, b})).manifest;
  ASSERT_EQ(m.inputs.size(), 2u);
  EXPECT_EQ(m.inputs[0], (HashedInput{"a.jsonl", 14, hash64(real_files().read(a))}));
  EXPECT_EQ(read_prepared_folder(out_, "k").manifest.inputs, m.inputs);
  PrepareSettings again = settings({a, b});
  again.out = folder_ / "again";
  again.same_input_as = read_prepared_folder(out_, "k");
  EXPECT_EQ(run(again).manifest, m);
  real_files().remove_all(again.out);
  write("b.txt", "de");
  EXPECT_TRUE(says(error_of(again), {"--same-input-as", "b.txt", hex64(m.inputs[1].hash)}));
  EXPECT_FALSE(real_files().exists(again.out));
  again.inputs = {a};
  EXPECT_TRUE(says(error_of(again), {"--same-input-as", "2 files", "1 file"}));
}

TEST_F(PrepareTest, ADocumentOverTheLimitIsPassedOverAndNamed) {
  const auto a =
      write("a.jsonl", "{\"text\":\"a\"}\n{\"text\":\"" + std::string(5000, 'b') + "\"}\n{\"text\":\"c\"}\n");
  PrepareSettings s = settings({a});
  s.format.longest_document = 1000;
  s.format.longest_key = "--max-document-mib";
  EXPECT_TRUE(says(error_of(s), {"a.jsonl:2:1", "5012 bytes", "--max-document-mib", "--on-error skip"}));
  s.skip_bad = true;
  EXPECT_EQ(run(s).manifest.skipped_malformed, 1);
  EXPECT_EQ(texts(), (std::vector<std::string>{"a<end>", "c<end>"}));
}

// Long texts are tokenized in parts, and their ids handed on narrow: it shows in nothing but memory.
TEST_F(PrepareTest, ALongDocumentIsWhole) {
  std::string text(9'500'000, 'a');
  for (std::size_t i = 0; i < text.size(); i += 997) text[i] = static_cast<char>('b' + i % 20);
  run(settings({write("a.jsonl", "{\"text\":\"x\"}\n{\"text\":\"" + text + "\"}\n{\"text\":\"y\"}\n")}));
  EXPECT_EQ(texts(), (std::vector<std::string>{"x<end>", text + "<end>", "y<end>"}));
}

// The line, its text and its ids are not all held at once, and none of them twice.
TEST_F(PrepareTest, ALongLineTakesThreeTimesItsBytesAtMost) {
  constexpr std::int64_t kBytes = 48 << 20;
  const auto file = real_files().create(folder_ / "a.jsonl");
  const std::string part(1 << 16, 'x');
  file->write("{\"text\":\"");
  for (std::int64_t written = 0; written < kBytes; written += std::ssize(part)) file->write(part);
  file->write("\"}\n");
  file->close();
  ::malloc_trim(0);
  const std::int64_t before = testing::status_bytes("VmRSS:");
  [[maybe_unused]] const bool watched = testing::reset_peak() && before > 0;
  PrepareSettings s = settings({(folder_ / "a.jsonl").string()});
  s.threads = 1;
  EXPECT_EQ(run(s).total.tokens, kBytes + 1);
  const std::int64_t most = testing::status_bytes("VmHWM:") - before;
  RecordProperty("most_mib", static_cast<int>(most >> 20));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep what was freed
  if (watched) {
    EXPECT_LT(most, 3 * kBytes + (24 << 20));
  }
#endif
}

// What closes a document may stand beside the tokenizer alone: the copy knows it, too.
TEST_F(PrepareTest, TheTokenizersEndGoesAlong) {
  std::string json = real_files().read(testing::source_folder() + "/tests/fixtures/tokenizers/gpt2.tokenizer.json");
  for (std::size_t at; (at = json.find("<|endoftext|>")) != json.npos;) json.replace(at, 13, "<my_end>");
  write("tok/tokenizer.json", json);
  write("tok/tokenizer_config.json", R"({"eos_token": "<my_end>"})");
  PrepareSettings s = settings({write("a.txt", "a text")});
  s.tokenizer = (folder_ / "tok").string();
  run(s);
  EXPECT_EQ(texts(), std::vector<std::string>{"a text<my_end>"});
}

TEST_F(PrepareTest, TheSameBytesForAnyNumberOfThreads) {
  PrepareSettings s = settings(many_inputs());
  s.val_fraction = 0.1;
  s.shard_tokens = 700'000;
  Folder first;
  for (const int threads : {1, 2, 5}) {
    s.threads = threads;
    s.out = folder_ / fmt::format("out{}", threads);
    const Prepared prepared = run(s);
    EXPECT_EQ(prepared.total.documents + prepared.manifest.skipped_empty, 9001);
    EXPECT_GE(prepared.manifest.train.shards.size(), 2u);
    if (first.empty()) first = contents(s.out);
    EXPECT_TRUE(contents(s.out) == first) << threads;
  }
}

TEST_F(PrepareTest, ValidationSplit) {
  PrepareSettings s = settings(many_inputs());
  s.val_fraction = 0.1;
  run(s);
  const auto train = texts(Part::training), val = texts(Part::held_out, true);
  EXPECT_NEAR(static_cast<double>(val.size()) / static_cast<double>(val.size() + train.size()), 0.1, 0.02);
  real_files().remove_all(out_);
  s.val_fraction = 0;
  run(s);
  const auto all = texts();
  EXPECT_EQ(all.size(), train.size() + val.size());
  // Which documents go where is written down: Philox stream "val", seed 0, by ordinal.
  std::vector<std::string> expected;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (Random(0, 0x76616c).uniform(i) < 0.1) expected.push_back(all[i]);
  EXPECT_TRUE(val == expected);
}

TEST_F(PrepareTest, AMissingFieldIsNotToBeSkipped) {
  const auto path = write("a.jsonl", "{\"body\":\"a\"}\n");
  PrepareSettings s = settings({path});
  EXPECT_EQ(error_of(s).find("skip"), std::string::npos) << error_of(s);
  s.skip_bad = true;
  EXPECT_TRUE(says(error_of(s), {"skipped", path + ":1:1"}));
}

TEST_F(PrepareTest, BadDocumentsStopOrAreCounted) {
  const auto bad = write("a.jsonl", "{\"text\":\"a\"}\nnot json\n{\"text\":\"\xff\"}\n{\"text\":\"b\"}\n");
  const auto cut = write("b.jsonl.gz", std::string("\x1f\x8b\x08\0\0\0\0\0\0\3", 10));
  const auto good = write("c.txt", "c");
  EXPECT_TRUE(says(error_of(settings({bad, cut})), {bad + ":2:1: ", "--on-error skip"}));
  EXPECT_TRUE(says(error_of(settings({cut, bad})), {"b.jsonl.gz", "byte 10"}));
  EXPECT_FALSE(real_files().exists(out_));
  PrepareSettings s = settings({bad, cut, good});
  s.skip_bad = true;
  const Prepared prepared = run(s);
  EXPECT_EQ(texts(), (std::vector<std::string>{"a<end>", "b<end>", "c<end>"}));
  EXPECT_EQ(prepared.manifest.skipped_malformed, 2);
  EXPECT_EQ(prepared.manifest.skipped_file_ends, 1);
  EXPECT_EQ(prepared.problems.size(), 3u);
  real_files().remove_all(out_);
  s.inputs = {cut};
  EXPECT_TRUE(says(error_of(s), {"no documents"}));
  EXPECT_FALSE(real_files().exists(out_));
}

TEST_F(PrepareTest, ForeignFilesAreNeverTouched) {
  const auto a = write("a.txt", "x");
  write("out/mine.txt", "precious");
  EXPECT_TRUE(says(error_of(settings({a})), {"holds mine.txt"}));
  EXPECT_EQ(real_files().list(out_).size(), 1u);
  real_files().remove_all(out_);
  write("out", "a file");
  EXPECT_TRUE(says(error_of(settings({a})), {"not a folder"}));
}

TEST_F(PrepareTest, WhatAKilledRunLeftIsRemovedAndSaid) {
  const auto a = write("a.txt", "x");
  EXPECT_FALSE(run(settings({a})).started_over);
  real_files().remove_all(out_);
  write("out.partial/.lock", "");
  write("out.partial/folder/train-00007.tokens", "left over");
  EXPECT_TRUE(run(settings({a})).started_over);
  EXPECT_EQ(real_files().list(out_).size(), 3u);
}

TEST_F(PrepareTest, OfSeveralAtOnceOneIsDoneAndTheOthersAreRefused) {
  using redline::testing::CameTo;
  const PrepareSettings s = settings({write("a.jsonl", "{\"text\":\"a\"}\n")});
  run(s);
  const Folder wanted = contents(out_);
  for (int round = 0; round < 10; ++round) {
    real_files().remove_all(out_);
    const auto ends = redline::testing::at_once(4, [&] { run(s); });
    EXPECT_EQ(ends, (std::vector{CameTo::done, CameTo::user_error, CameTo::user_error, CameTo::user_error}));
    EXPECT_EQ(contents(out_), wanted);
  }
}

TEST_F(PrepareTest, StoppingLeavesNothing) {
  const auto inputs = many_inputs();
  std::atomic<int> stop{0};
  const Prepared prepared = prepare(real_files(), settings(inputs), stop, [&](const PrepareProgress&) { stop = 2; });
  EXPECT_TRUE(prepared.stopped);
  EXPECT_FALSE(real_files().exists(out_));
  real_files().create_folders(out_);  // an empty folder that was there stays
  EXPECT_TRUE(prepare(real_files(), settings(inputs), stop, [&](const PrepareProgress&) {}).stopped);
  EXPECT_TRUE(real_files().exists(out_));
  EXPECT_TRUE(real_files().list(out_).empty());
}

// The disk fills up, or the machine dies, at every single change: the folder is whole with the right bytes or has no
// manifest, and the same command then makes it.
TEST_F(PrepareTest, FailuresEverywhere) {
  std::string lines;
  for (int i = 0; i < 120; ++i) lines += fmt::format("{{\"text\":\"document number {}\"}}\n", i);
  PrepareSettings s = settings({write("a.jsonl", lines)});
  s.shard_tokens = 1200;
  s.val_fraction = 0.2;
  run(s);
  const Folder wanted = contents(out_);
  for (const auto failure : {testing::Failure::full_disk, testing::Failure::death}) {
    const std::int64_t changes = testing::at_every_change(failure, [&](FileSystem& files, std::int64_t nth) {
      real_files().remove_all(out_);
      const std::string error = testing::error_of<MachineError>([&] { run(s, files); });
      const bool failed = error != "no error";
      EXPECT_TRUE(!failed || says(error, {"no space left on device"})) << error;
      if (!real_files().exists(out_ / kManifestFile)) {
        EXPECT_TRUE(failed) << nth;
        EXPECT_TRUE(failure == testing::Failure::death || real_files().list(out_).empty()) << nth;
        run(s);
      }
      EXPECT_TRUE(contents(out_) == wanted) << nth;
    });
    EXPECT_GT(changes, 20);
  }
}

// Bytes of any kind were asked for: zeros and what is no UTF-8 are taken, and other tokenizers are told how to ask.
TEST_F(PrepareTest, TheTokenizerOfBytesTakesAnyBytes) {
  const std::string bytes = std::string(3000, '\0') + "\xff\xfe";
  PrepareSettings s = settings({write("z.txt", bytes)});
  run(s);
  const auto source = open_shards({read_prepared_folder(out_, "k")}, {"k", Part::all, false, 0, {}, {}});
  Ids wanted(3000, 0);
  wanted.insert(wanted.end(), {255, 254, 256});
  EXPECT_EQ(all_documents(*source), std::vector<Ids>{wanted});
  s.tokenizer = "ping";
  s.out = folder_ / "other";
  EXPECT_TRUE(says(error_of(s), {"z.txt", "--tokenizer bytes"}));
  s.tokenizer = "bytes";
  s.inputs = {write("z.jsonl", "{\"text\": \"\xff\"}\n")};  // a line of JSON is UTF-8 all the same
  EXPECT_TRUE(says(error_of(s), {"z.jsonl", "UTF-8"}));
}

}  // namespace
}  // namespace redline::data

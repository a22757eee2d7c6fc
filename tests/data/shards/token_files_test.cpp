// Tokens that other programs wrote: their layouts byte by byte, documents by end token or index, and broken files.
#include "data/shards/token_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "data/from_config.h"
#include "data/shards/small_folder.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::data {
namespace {

using redline::testing::says;

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string llmc(std::int32_t magic, std::int32_t version, std::int32_t count, const std::string& tokens) {
  std::vector<std::int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return raw(header) + tokens;
}
std::string gpt2(const std::vector<std::uint16_t>& tokens) {
  return llmc(20240520, 1, static_cast<std::int32_t>(tokens.size()), raw(tokens));
}

std::string megatron_index(std::uint8_t type, const std::vector<std::int32_t>& lengths,
                           const std::vector<std::int64_t>& pointers, const std::vector<std::int64_t>& bounds,
                           std::uint64_t version = 1) {
  return std::string("MMIDIDX\0\0", 9) + raw<std::uint64_t>({version}) + std::string(1, static_cast<char>(type)) +
         raw<std::uint64_t>({lengths.size(), bounds.size()}) + raw(lengths) + raw(pointers) + raw(bounds);
}

class BinFilesTest : public ::testing::Test {
 protected:
  std::string write(const std::string& name, std::string_view bytes) {
    const auto file = real_files().create(folder_ / name);  // not synced: some tests write thousands
    file->write(bytes);
    file->close();
    return (folder_ / name).string();
  }
  static TokenSettings settings(Part part = Part::all) { return {"data.train", part, false, 0, {}, {}}; }
  static std::unique_ptr<DocumentSource> open(const std::vector<std::string>& paths, TokenSettings s = settings()) {
    auto source = open_token_files(data_paths(paths, s.key), s);
    EXPECT_NE(source, nullptr);
    return source;
  }
  static std::string error_of(const std::vector<std::string>& paths, TokenSettings s = settings()) {
    try {
      const auto source = open_token_files(data_paths(paths, s.key), s);
      if (!source) return "not tokens";
      all_documents(*source);
    } catch (const UserError& e) {
      return e.what();
    }
    return "no error";
  }
  using Documents = std::vector<Ids>;
  redline::testing::TempFolder folder_;
};

TEST_F(BinFilesTest, LlmcGpt2) {
  const auto a = write("a_000001.bin", gpt2({50256, 1, 2, 50256, 3, 50256, 4}));
  const auto b = write("a_000002.bin", gpt2({5, 50256, 50256, 50256, 6}));  // the rest of 4, then a run of ends
  const auto source = open({(folder_ / "a_*.bin").string()});
  EXPECT_EQ(all_documents(*source), (Documents{{1, 2, 50256}, {3, 50256}, {4}, {5, 50256}, {6}}));
  EXPECT_EQ(source->vocabulary(), 50257);
  EXPECT_EQ(source->name(), "2 llm.c files");
  EXPECT_EQ(source->decode({1, 2}), "<1><2>");
  EXPECT_THROW(source->encode("x"), UserError);
}

TEST_F(BinFilesTest, LlmcLlama3) {
  const auto a = write("a.bin", llmc(20240801, 7, 6, raw<std::uint32_t>({128000, 70000, 128001, 128000, 1, 128255})));
  const auto source = open({a});
  EXPECT_EQ(all_documents(*source), (Documents{{70000, 128001}, {1, 128255}}));
  EXPECT_EQ(source->vocabulary(), 128256);
}

TEST_F(BinFilesTest, NanoGpt) {
  const auto a = write("train.bin", raw<std::uint16_t>({1, 2, 50256, 3, 50256}));
  EXPECT_EQ(all_documents(*open({a})), (Documents{{1, 2, 50256}, {3, 50256}}));
  EXPECT_EQ(open({a})->vocabulary(), 50257);
  TokenSettings s = settings();
  s.end_token = 2;
  EXPECT_EQ(all_documents(*open({a}, s)), (Documents{{1, 2}, {50256, 3, 50256}}));
  s.end_token.reset();
  s.tokenizer = "bytes";  // brings the end token 256 and the vocabulary
  const auto b = write("b.bin", raw<std::uint16_t>({'h', 'i', 256, 'y'}));
  EXPECT_EQ(all_documents(*open({b}, s)), (Documents{{'h', 'i', 256}, {'y'}}));
  EXPECT_EQ(open({b}, s)->decode({'h', 'i'}), "hi");
  EXPECT_TRUE(says(error_of({a}, s), {"holds the id 50256"}));
}

// Characters as nanoGPT's first example has them: no end token at all, so one document, the end of which can be held
// out.
TEST_F(BinFilesTest, OneLongRowIsOneDocument) {
  std::vector<std::uint16_t> ids;
  for (int i = 0; i < 200'000; ++i) ids.push_back(static_cast<std::uint16_t>(i % 65));
  const std::string path = write("char.bin", raw(ids));
  const auto source = open({path});
  EXPECT_EQ(source->vocabulary(), 65);
  EXPECT_EQ(source->documents(), 1);
  EXPECT_EQ(source->length(0), 200'000);
  Ids part;
  source->append(0, 70'001, 3, part);
  EXPECT_EQ(part, (Ids{70'001 % 65, 70'002 % 65, 70'003 % 65}));
  const auto training = open({path}, settings(Part::training)), held_out = open({path}, settings(Part::held_out));
  EXPECT_EQ(training->documents(), 1);
  EXPECT_EQ(training->length(0), 200'000 - 3125);
  EXPECT_EQ(held_out->documents(), 1);
  EXPECT_EQ(held_out->length(0), 3125);
  Documents both = all_documents(*training);
  const Documents rest = all_documents(*held_out);
  both[0].insert(both[0].end(), rest[0].begin(), rest[0].end());
  EXPECT_TRUE(std::ranges::equal(both[0], ids));
}

// Ends at every place around the scan's stretches and chunks.
TEST_F(BinFilesTest, FindingDocumentsAgreesWithASimpleWay) {
  ThreadPool pool(2);
  for (const std::size_t size : {1, 2, 63, 64, 65, 129, 1000}) {
    for (std::size_t step = 1; step < 70; step += 3) {
      std::vector<std::uint16_t> ids(size, 7);
      for (std::size_t i = step / 2; i < size; i += step) ids[i] = i % 2 ? 9 : 8;
      std::vector<std::uint64_t> wanted;
      const auto is_end = [&](std::size_t i) { return ids[i] == 8 || ids[i] == 9; };
      for (std::size_t i = 0; i < size; ++i)
        if (!is_end(i) && (i == 0 || is_end(i - 1))) wanted.push_back(i);
      const TokenArray array{reinterpret_cast<const std::byte*>(ids.data()), static_cast<std::int64_t>(size),
                             TokenType::u16};
      const FoundDocuments found = find_documents(array, {8, 9}, "x", pool);
      EXPECT_EQ(found.starts, wanted) << size << " " << step;
      EXPECT_EQ(found.largest_id, *std::max_element(ids.begin(), ids.end()));
    }
  }
  std::vector<std::uint16_t> large((std::size_t{1} << 22) * 2 + 77, 1);  // over the edges of chunks
  for (const std::size_t at : {(std::size_t{1} << 22) - 1, (std::size_t{1} << 22), (std::size_t{1} << 23) - 1})
    large[at] = 2;
  const TokenArray array{reinterpret_cast<const std::byte*>(large.data()), static_cast<std::int64_t>(large.size()),
                         TokenType::u16};
  const auto starts = find_documents(array, {2, 2}, "x", pool).starts;
  for (const std::uint64_t wanted : {std::uint64_t{0}, (std::uint64_t{1} << 22) + 1, std::uint64_t{1} << 23})
    EXPECT_TRUE(std::ranges::binary_search(starts, wanted)) << wanted;
  EXPECT_TRUE(find_documents({array.data, 0, TokenType::u16}, {2, 2}, "x", pool).starts.empty());
}

TEST_F(BinFilesTest, Megatron) {
  write("m.bin", raw<std::uint16_t>({1, 2, 3, 4, 5, 6}));
  // Sequences [1,2] [3] [] [4,5,6]; documents: the first two, none, the empty one, the last.
  write("m.idx", megatron_index(8, {2, 1, 0, 3}, {0, 4, 6, 6}, {0, 2, 2, 3, 4}));
  const Documents wanted = {{1, 2, 3}, {4, 5, 6}};
  for (const char* name : {"m.bin", "m.idx", "m", "m.*"})
    EXPECT_EQ(all_documents(*open({(folder_ / name).string()})), wanted) << name;
  EXPECT_EQ(open({(folder_ / "m").string()})->vocabulary(), 7);
  write("n.bin", raw<std::int32_t>({70000, 1}));
  write("n.idx", megatron_index(4, {2}, {0}, {0, 1}) + "\1");  // with a mode a sequence
  EXPECT_EQ(all_documents(*open({(folder_ / "n").string()})), (Documents{{70000, 1}}));
  EXPECT_EQ(all_documents(*open({(folder_ / "m").string(), (folder_ / "n").string()})).size(), 3u);
}

TEST_F(BinFilesTest, BrokenMegatron) {
  const auto error_with = [&](const std::string& index, const std::string& tokens) {
    write("m.bin", tokens);
    write("m.idx", index);
    return error_of({(folder_ / "m").string()});
  };
  const std::string tokens = raw<std::uint16_t>({1, 2, 3, 4});
  const std::string good = megatron_index(8, {2, 2}, {0, 4}, {0, 1, 2});
  EXPECT_EQ(error_with(good, tokens), "no error");
  for (std::size_t size = 0; size < good.size(); ++size)
    EXPECT_NE(error_with(good.substr(0, size), tokens), "no error") << size;
  for (std::size_t size = 1; size < tokens.size(); ++size)
    EXPECT_TRUE(says(error_with(good, tokens.substr(0, size)), {"does not fit"})) << size;
  const std::tuple<std::string, std::string, const char*> cases[] = {
      {megatron_index(8, {2, 2}, {0, 4}, {0, 1, 2}, 2), tokens, "version 2"},
      {megatron_index(7, {2, 2}, {0, 4}, {0, 1, 2}), tokens, "type code 7"},
      {megatron_index(8, {-2, 2}, {0, 4}, {0, 1, 2}), tokens, "does not fit"},
      {megatron_index(8, {2, 2}, {0, 5}, {0, 1, 2}), tokens, "does not fit"},
      {megatron_index(8, {2, 2}, {0, INT64_MAX - 1}, {0, 1, 2}), tokens, "does not fit"},
      {megatron_index(8, {2, 2}, {INT64_MIN, 4}, {0, 1, 2}), tokens, "does not fit"},
      {megatron_index(8, {2, 2}, {0, 2}, {0, 1, 2}), tokens, "inside"},
      {megatron_index(8, {2, 2}, {0, 4}, {0, 3, 2}), tokens, "cannot be"},
      {megatron_index(8, {2, 2}, {0, 4}, {0, 1}), tokens, "do not run"},
      {megatron_index(3, {2}, {0}, {0, 1}), raw<std::int16_t>({-1, 5}), "negative"},
      {megatron_index(2, {1}, {0}, {0, 1}), "\xff", "negative"},
      {megatron_index(4, {1}, {0}, {0, 1}), raw<std::int32_t>({-1}), "negative"},
      {megatron_index(8, {}, {}, {0}), tokens, "no documents"},
  };
  for (const auto& [index, bin, words] : cases) EXPECT_TRUE(says(error_with(index, bin), {words}));
}

TEST_F(BinFilesTest, BrokenFilesWithoutIndex) {
  const std::string good = gpt2({1, 50256, 2});
  for (std::size_t size = 4; size < good.size(); size += size < 1000 ? 31 : 1) {
    const std::string error = error_of({write("a.bin", good.substr(0, size))});
    EXPECT_TRUE(says(error, {"a.bin: "})) << size;
  }
  EXPECT_TRUE(says(error_of({write("b.bin", good + "x")}), {"promises 3 tokens"}));
  EXPECT_TRUE(says(error_of({write("c.bin", llmc(20240520, 2, 0, ""))}), {"version 2"}));
  EXPECT_TRUE(says(error_of({write("d.bin", llmc(20240520, 1, -1, ""))}), {"promises -1"}));
  EXPECT_TRUE(says(error_of({write("e.bin", llmc(20240520, 1, 0, ""))}), {"no documents"}));
  EXPECT_TRUE(says(error_of({write("f.bin", llmc(20240522, 1, 0, ""))}), {"evaluation set"}));
  EXPECT_TRUE(says(error_of({write("g.bin", gpt2({60000}))}), {"60000"}));
  EXPECT_TRUE(says(error_of({write("h.bin", "abc")}), {"no whole number"}));
  EXPECT_TRUE(says(error_of({write("i.bin", raw<std::uint16_t>({50256, 50256}))}), {"no documents"}));
  EXPECT_EQ(all_documents(*open({write("j.bin", raw<std::uint16_t>({3}))})), (Documents{{3}}));
}

TEST_F(BinFilesTest, KindsAreToldApart) {
  const auto text = write("a.txt", "hello"), nano = write("a.bin", raw<std::uint16_t>({1, 2})),
             c = write("c.bin", gpt2({1}));
  EXPECT_EQ(error_of({text}), "not tokens");
  EXPECT_TRUE(says(error_of({text, nano}), {"all must be of one kind"}));
  EXPECT_TRUE(says(error_of({nano, c}), {"all must be of one kind"}));
  write_folder(real_files(), folder_ / "p", {{1}}, {});
  EXPECT_EQ(error_of({(folder_ / "p").string()}), "no error");
  EXPECT_TRUE(says(error_of({(folder_ / "p").string(), nano}), {"all must be of one kind"}));
  for (const char* way : {"p/*", "p*/*.tokens"})
    EXPECT_TRUE(says(error_of({(folder_ / way).string()}), {"name that folder itself"})) << way;
  config::Data data;
  data.train = {(folder_ / "p").string()};
  data.eval = {nano};
  EXPECT_EQ(dynamic_cast<const DocumentSource&>(*open_training_corpus(corpus_options(data))).documents(), 1);
  EXPECT_TRUE(says(open_held_out_corpus(corpus_options(data))->name(), {"1 nanoGPT file", "uint16"}));
}

// Whatever a file is called: what begins as a program does is no tokens.
TEST(BinFiles, OthersUnderTheNameOfTokensAreNamed) {
  const redline::testing::TempFolder temp;
  for (const auto& [magic, name] :
       {std::pair{"\x7f\x45LF", "an ELF program"}, std::pair{"PAR1\x15\x04", "a Parquet file"}}) {
    real_files().replace(temp / "train.bin", magic + std::string(4096, '\1'));
    EXPECT_TRUE(says(testing::error_of([&] {
                       open_nanogpt({temp / "train.bin"}, TokenSettings{"data.train", Part::all, false, 0, "", {}});
                     }),
                     {name}));
  }
}

}  // namespace
}  // namespace redline::data

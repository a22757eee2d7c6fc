// Sampling: prompts, vocabularies, text from a model that is read as its own, and text while it comes: characters and
// stop strings that several tokens make up.
#include "infer/sample.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "data/tokenizer/tokenizer.h"
#include "io/json.h"
#include "testing/paths.h"
#include "testing/temp_folder.h"

namespace redline::infer {
namespace {

using namespace redline::testing;
using Tokens = std::vector<std::int32_t>;

Checkpoint checkpoint_of(const std::string& name = "llama-mha") { return open_checkpoint(real_files(), fixture(name)); }

TEST(Sample, IsTheSameForTheSameSeedAndGoesPastTheWindow) {
  Checkpoint checkpoint = checkpoint_of();
  checkpoint.max_positions = 8;
  device::CpuDevice device(1);
  const std::vector<std::int32_t> prompt = {1, 2, 3};
  SampleOptions options;
  options.generate = {.tokens = 20, .choice = {.temperature = 1, .top_k = 10}, .seed = 3};
  std::vector<std::int32_t> heard;
  const auto a = sample(checkpoint, prompt, options, device, [&](std::size_t, std::int32_t t) {
    heard.push_back(t);
    return true;
  });
  const auto b = sample(checkpoint, prompt, options, device, {});
  EXPECT_EQ(a.texts[0].tokens, b.texts[0].tokens);
  EXPECT_EQ(a.texts[0].tokens, heard);
  EXPECT_EQ(a.texts[0].tokens.size(), 20u);
}

// The models that Hugging Face made, with grouped queries, scaled rotary positions and QK-norm: greedy text with the
// cache is that of whole windows through the logits program.
TEST(Sample, GreedyTextIsThatOfTheLogitsProgram) {
  device::CpuDevice device(2);
  for (const char* name :
       {"llama-mha", "llama3-gqa", "qwen3-gqa", "olmo2-gqa", "qwen2-gqa", "mistral-window", "smollm3-nope",
        "olmo3-window", "gemma3-text", "llama-biases", "olmoe", "qwen3-moe", "mixtral"}) {
    const Checkpoint checkpoint = checkpoint_of(name);
    std::vector<std::int32_t> text = {65, 104, 33, 200, 7, 91};
    SampleOptions options;
    options.generate = {.tokens = 40, .choice = {.temperature = 0}};
    const auto cached = sample(checkpoint, text, options, device, {}).texts[0].tokens;

    model::LoweringOptions lowering;
    lowering.batch = {1, 46, 1};
    lowering.training = false;
    lowering.logits = true;
    const auto engine = load_engine(checkpoint, lowering, device);
    const auto vocab = static_cast<std::size_t>(checkpoint.model.vocab);
    data::Batch batch(lowering.batch);
    std::vector<std::int32_t> whole;
    model::TokenChooser chooser;
    for (int i = 0; i < 40; ++i) {
      batch.clear();
      batch.append(text);
      engine->upload(batch);
      const std::vector<float> logits = engine->logits();
      whole.push_back(
          chooser.choose(std::span(logits).subspan((text.size() - 1) * vocab, vocab), {.temperature = 0}, 0));
      text.push_back(whole.back());
    }
    EXPECT_EQ(cached, whole) << name;
  }
}

TEST(Sample, RefusesAPromptLongerThanThePositions) {
  Checkpoint checkpoint = checkpoint_of();
  checkpoint.max_positions = 4;
  EXPECT_NO_THROW(check_prompt(checkpoint, std::vector<std::int32_t>(4, 1)));
  EXPECT_THROW(check_prompt(checkpoint, std::vector<std::int32_t>(5, 1)), UserError);
  EXPECT_THROW(check_prompt(checkpoint, {}), UserError);
}

TEST(Checkpoint, AFolderWithoutAModelIsRefused) {
  const TempFolder folder;
  EXPECT_THROW(open_checkpoint(real_files(), folder.path()), UserError);
  EXPECT_THROW(open_checkpoint(real_files(), folder / "nothing"), UserError);
}

TEST(Vocabulary, KnowsBytesAndRefusesTokensOutsideTheModel) {
  Checkpoint checkpoint = checkpoint_of();
  checkpoint.model.vocab = 257;
  EXPECT_THROW(Vocabulary(real_files(), checkpoint), UserError);  // the folder has none
  const Vocabulary plain(real_files(), checkpoint, "bytes");
  EXPECT_EQ(plain.encode("a<"), (std::vector<std::int32_t>{'a', '<'}));
  EXPECT_EQ(plain.end_tokens(), (std::vector<std::int32_t>{2, 256}));  // config.json names 2
  EXPECT_EQ(plain.decode(std::vector<std::int32_t>{'h', 'i'}), "hi");
  checkpoint.model.vocab = 100;
  EXPECT_THROW(Vocabulary(real_files(), checkpoint, "bytes"), UserError);
  checkpoint.model.vocab = 1000;
  EXPECT_GT(Vocabulary(real_files(), checkpoint, "ping").encode("<begin>")[0], 256);
}

// A run and a folder alike: what the tokenizer puts before a text, unless the run has seen documents without it.
TEST(Vocabulary, APromptBeginsAsTheFoldersTokenizerSays) {
  const TempFolder temp;
  const Path gpt2 = fixture("tokenizers/gpt2.tokenizer.json");
  io::Json json = io::read_json(real_files(), gpt2);
  json["post_processor"] = io::Json::parse(R"({"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [],
    "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [500], "tokens": ["<|endoftext|>"]}}})");
  real_files().replace(temp / "tokenizer.json", json.dump());
  Checkpoint checkpoint = checkpoint_of();
  checkpoint.folder = temp.path();
  checkpoint.model.vocab = 512;
  const Vocabulary vocabulary(real_files(), checkpoint);
  const std::vector<std::int32_t> tokens = vocabulary.encode("a text");
  EXPECT_EQ(tokens.front(), 500);
  EXPECT_EQ(vocabulary.encode("<|endoftext|>a text"), tokens) << "not twice";
  const std::vector<std::int32_t> bare(tokens.begin() + 1, tokens.end());
  checkpoint.run.emplace();
  EXPECT_EQ(Vocabulary(real_files(), checkpoint).encode("a text"), tokens);
  checkpoint.run->data.bos = "none";
  EXPECT_EQ(Vocabulary(real_files(), checkpoint).encode("a text"), bare);
  // With "auto" a checkpoint's own word counts, also where another copy of the tokenizer is given.
  checkpoint.run->data.bos = "auto";
  real_files().create_folders(temp / "given");
  real_files().replace(temp / "given/tokenizer.json", json.dump());
  json["post_processor"] = nullptr;
  real_files().replace(temp / "tokenizer.json", json.dump());
  EXPECT_EQ(Vocabulary(real_files(), checkpoint).encode("a text"), bare);
  EXPECT_EQ(Vocabulary(real_files(), checkpoint, (temp / "given").string()).encode("a text"), bare);
  checkpoint.run.reset();
  EXPECT_EQ(Vocabulary(real_files(), checkpoint).encode("a text"), bare);
}

// A folder that brings its tokenizer is read and written with it.
TEST(Vocabulary, IsTheTokenizerOfTheFolder) {
  const TempFolder folder;
  Checkpoint checkpoint = checkpoint_of();
  const Path tokenizers = fixture("tokenizers");
  std::filesystem::copy_file(tokenizers / "gpt2.tokenizer.json", folder / "tokenizer.json");
  checkpoint.folder = folder.path();
  checkpoint.model.vocab = 1 << 20;
  const Vocabulary vocabulary(real_files(), checkpoint);
  const std::vector<std::int32_t> ids = vocabulary.encode("Hello, world");
  EXPECT_EQ(vocabulary.decode(ids), "Hello, world");
  EXPECT_EQ(ids, data::open_tokenizer((folder / "tokenizer.json").string(), "test")->encode("Hello, world"));
  checkpoint.model.vocab = 256;
  EXPECT_THROW(Vocabulary(real_files(), checkpoint), UserError);
}

std::shared_ptr<const data::Tokenizer> tokenizer_named(const std::string& name) {
  return data::open_tokenizer(fixture("tokenizers/" + name), "test");
}

TextStream stream_of(std::shared_ptr<const data::Tokenizer> tokenizer, const Tokens& before,
                     std::vector<std::string> stops = {}) {
  return {[tokenizer](std::span<const std::int32_t> t) { return tokenizer->decode(t); }, before, std::move(stops)};
}

// Whatever the tokenizer, the pieces make up the text, and no piece ends inside a character.
TEST(TextStream, PiecesMakeUpTheText) {
  const std::string text = "Grüße, 世界! 🌍🌍 naïve coöperation \xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x9A\x80 end";
  for (const char* name : {"gpt2.tokenizer.json", "llama3.tokenizer.json", "pieces.model"}) {
    const auto tokenizer = tokenizer_named(name);
    const Tokens before = tokenizer->encode("It was. "), tokens = tokenizer->encode(text);
    TextStream stream = stream_of(tokenizer, before);
    std::string together;
    for (const std::int32_t token : tokens) {
      const std::string piece = stream.push(token);
      EXPECT_FALSE(piece.ends_with("\xEF\xBF\xBD")) << name;
      together += piece;
    }
    together += stream.finish();
    Tokens all = before;
    all.insert(all.end(), tokens.begin(), tokens.end());
    EXPECT_EQ(together, tokenizer->decode(all).substr(tokenizer->decode(before).size())) << name;
    EXPECT_EQ(stream.text(), together);
    EXPECT_FALSE(stream.stopped());
  }
}

TEST(TextStream, EndsBeforeTheFirstStopStringAndShowsNoneOfIt) {
  const auto bytes = data::open_tokenizer("bytes", "test");
  for (const auto& [text, stops, want, stopped] :
       std::vector<std::tuple<std::string, std::vector<std::string>, std::string, bool>>{
           {"one two three", {"two"}, "one ", true},
           {"one two three", {"three", "tw"}, "one ", true},
           {"aab", {"ab"}, "a", true},
           {"abcabd", {"abd"}, "abc", true},
           {"one tw", {"two"}, "one tw", false},
           {"one", {"", "x"}, "one", false},
           {"stop", {"stop"}, "", true}}) {
    TextStream stream = stream_of(bytes, bytes->encode("before"), stops);
    std::string shown;
    for (const std::int32_t token : bytes->encode(text)) {
      shown += stream.push(token);
      EXPECT_TRUE(want.starts_with(shown)) << text << ": " << shown;
    }
    shown += stream.finish();
    EXPECT_EQ(shown, want) << text;
    EXPECT_EQ(stream.stopped(), stopped) << text;
  }
}

// A character that never becomes whole is shown at the end, as what the tokenizer makes of it.
TEST(TextStream, AnIncompleteCharacterComesLast) {
  const auto gpt2 = tokenizer_named("gpt2.tokenizer.json");
  Tokens tokens = gpt2->encode("🌍");
  ASSERT_GT(tokens.size(), 1u);
  tokens.pop_back();
  TextStream stream = stream_of(gpt2, gpt2->encode("a"));
  for (const std::int32_t token : tokens) EXPECT_EQ(stream.push(token), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
}

}  // namespace
}  // namespace redline::infer

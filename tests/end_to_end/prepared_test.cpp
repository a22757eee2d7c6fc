// From text to a trained model: prepared shards bring their tokenizer along, training on them goes on after a stop with
// the same bits, and a stream of the same text trains as well.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"
#include "cli/program.h"
#include "io/json.h"
#include "testing/paths.h"
#include "testing/says.h"

namespace redline::cli {
namespace {

const Path kTokenizer = Path(testing::source_folder()) / "tests/fixtures/tokenizers/gpt2.tokenizer.json";

class Prepared : public ProgramTest {
 protected:
  // Some lines of made-up words as .jsonl, and shards of them.
  void SetUp() override {
    const Random random(5, 1);
    std::string lines;
    std::uint64_t at = 0;
    for (int d = 0; d < 300; ++d) {
      std::string text;
      for (std::uint64_t w = 0; w < 10 + random.below(at++, 60); ++w)
        text += w == 0 ? "It" : random.below(at++, 2) ? " was" : " the";
      lines += io::Json{{"text", text}}.dump() + "\n";
    }
    write("text.jsonl", lines);
    const Ran ran = run({"data", "prepare", "--tokenizer", kTokenizer.string(), "--out", "shards", "text.jsonl"});
    ASSERT_EQ(ran.status, 0) << ran.err;
  }

  Words train_words(const std::string& out, const std::string& steps) {
    return {"train",
            "--device",
            "cpu",
            "--out",
            out,
            "model.layers=1",
            "model.hidden=16",
            "model.heads=2",
            "model.ffn=32",
            "model.vocab=512",
            "train.batch_size=2",
            "train.seq_len=32",
            "train.max_steps=" + steps,
            "train.eval_every=0",
            "checkpoint.every=2",
            "optim.schedule=constant"};
  }
  std::string weights(const std::string& out) {
    return real_files().read(folder_ / out / "checkpoints/step_00000006/model.safetensors");
  }
};

TEST_F(Prepared, BringsItsTokenizerAlong) {
  EXPECT_EQ(real_files().read(folder_ / "shards/tokenizer.json"), real_files().read(kTokenizer));
  const io::Json manifest = io::read_json(real_files(), folder_ / "shards/manifest.json");
  EXPECT_EQ(manifest.dump().find("\"documents\":300") != std::string::npos, true) << manifest.dump();
}

TEST_F(Prepared, TrainsResumesAndSpeaks) {
  for (const std::string source : {"shards", "text.jsonl"}) {
    const auto train = [&](const std::string& out, const std::string& steps, bool resume) {
      Words words = train_words(out, steps);
      words.push_back("data.train=" + source);
      if (source != "shards") words.push_back("data.tokenizer=" + kTokenizer.string());
      if (resume) words.emplace_back("--resume");
      const Ran ran = run(words);
      ASSERT_EQ(ran.status, 0) << ran.err;
    };
    const std::string once = "once-" + source, twice = "twice-" + source;
    train(once, "6", false);
    train(twice, "3", false);
    train(twice, "6", true);
    EXPECT_TRUE(weights(once) == weights(twice)) << source;
    const Ran sample = run({"sample", "--checkpoint", once, "--prompt", "It was", "--tokens", "5", "--device", "cpu"});
    EXPECT_EQ(sample.status, 0) << sample.err;
    EXPECT_EQ(sample.out.rfind("It was", 0), 0u) << sample.out;
  }
}

// A line that is no JSON ends the run with what was done before it saved, and --resume goes on past it when told to.
TEST_F(Prepared, ABadLineCostsNoStep) {
  std::string lines = real_files().read(folder_ / "text.jsonl");
  const std::size_t cut = lines.find('\n', lines.size() * 2 / 3);
  lines.insert(cut + 1, "{\"text\": \"never closed\n");
  write("bad.jsonl", lines);
  const auto words = [&](bool resume) {
    Words w = train_words("bad", "100000");
    for (const char* more :
         {"data.train=bad.jsonl", "data.shuffle=false", "checkpoint.every=0", "data.eval=text.jsonl"})
      w.emplace_back(more);
    w.push_back("data.tokenizer=" + kTokenizer.string());
    if (resume) w.insert(w.end(), {"--resume", "data.on_error=skip", "train.max_steps=170"});
    return w;
  };
  const Ran stopped = run(words(false));
  EXPECT_EQ(stopped.status, 2) << stopped.err;
  EXPECT_TRUE(testing::says(stopped.err, {"bad.jsonl:", "data.on_error=skip"}));
  const std::vector<std::string> saved = real_files().list(folder_ / "bad/checkpoints");
  ASSERT_EQ(saved.size(), 1u);
  const std::string metrics = real_files().read(folder_ / "bad/metrics.jsonl");
  const auto steps = std::ranges::count(metrics, '\n') - metrics.starts_with("{\"step\":0,");
  EXPECT_EQ(saved[0], fmt::format("step_{:08}", steps)) << "every step that was done";
  EXPECT_LT(steps, 170);
  const Ran resumed = run(words(true));
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_TRUE(testing::says(resumed.err, {"passed over: bad.jsonl:"}));
}

}  // namespace
}  // namespace redline::cli

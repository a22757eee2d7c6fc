// Runs on conversations (data.chat): they learn answers and nothing else, from files and from shards, and go on bit for
// bit.
#include <gtest/gtest.h>

#include <cmath>

#include "data/chat_folder.h"
#include "data/shards/prepare.h"
#include "io/json.h"
#include "testing/temp_folder.h"
#include "train/run_here.h"

namespace redline::train {
namespace {

struct Conversations {
  testing::TempFolder folder;
  std::string tokenizer = data::write_chat_tokenizer(folder / "tokenizer", data::kChatMl);
  std::string file = (folder / "chat.jsonl").string();

  explicit Conversations(const std::string& lines = data::many_conversations(200)) {
    real_files().replace(file, lines);
  }
  config::Config config(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {fmt::format("data.train={}", file), fmt::format("data.tokenizer={}", tokenizer),
                               "data.chat=auto", "data.documents=0", "model.vocab=520", "data.shuffle_buffer=32",
                               "train.max_steps=12", "train.seq_len=96", "optim.schedule=constant", "model.dropout=0"});
    return tiny_run(more);
  }
};

TEST(ChatRun, LearnsAnswersAndSaysTheirShare) {
  const Conversations chat;
  const Ran ran = run(chat.config({"train.sample_every=12", "train.sample_tokens=4"}), chat.folder / "run");
  ASSERT_EQ(ran.seen.steps.size(), 12u);
  const StepMetrics& last = ran.seen.steps.back();
  ASSERT_TRUE(last.learned);
  EXPECT_GT(*last.learned, 0.2);
  EXPECT_LT(*last.learned, 0.8);
  EXPECT_LT(last.loss, ran.seen.steps[0].loss - 0.5);
  ASSERT_TRUE(last.eval_loss && last.eval_bits_per_byte);
  EXPECT_GT(*last.eval_bits_per_byte, 0);
  EXPECT_LT(*last.eval_bits_per_byte, *last.eval_loss / std::log(2.0)) << "a token stands for a byte or more";
  // What others make of the checkpoint: the template stays, and an answer ends what the model writes.
  const Path checkpoint = chat.folder / "run" / "checkpoints" / io::checkpoint_name(12);
  const io::Json described = io::read_json(real_files(), checkpoint / "tokenizer_config.json");
  EXPECT_EQ(described["chat_template"], data::kChatMl);
  EXPECT_EQ(described["eos_token"], "<|im_end|>");
}

TEST(ChatRun, AResumeGoesOnBitForBitFromFilesAndShards) {
  const Conversations chat;
  data::PrepareSettings settings;
  settings.inputs = {chat.file};
  settings.tokenizer = chat.tokenizer;
  settings.chat = "auto";
  settings.out = chat.folder / "shards";
  const std::atomic<int> no_stop{0};
  data::prepare(real_files(), settings, no_stop, [](const data::PrepareProgress&) {});
  for (const std::string& data : {chat.file, (chat.folder / "shards").string()}) {
    const std::string name = Path(data).filename().string();
    const auto config = [&](const std::string& steps) {
      return chat.config({fmt::format("data.train={}", data), "train.max_steps=" + steps});
    };
    const Ran one = run(config("10"), chat.folder / (name + "1"));
    run(config("5"), chat.folder / (name + "2"));
    const Ran two = run(config("10"), chat.folder / (name + "2"), true);
    EXPECT_EQ(one.result.eval_loss, two.result.eval_loss);
    EXPECT_EQ(tensors(chat.folder / (name + "1"), 10), tensors(chat.folder / (name + "2"), 10));
  }
}

TEST(ChatRun, AStepWithoutAnAnswerIsToldAndBreaksNothing) {
  std::string lines, question;  // longer than a row, so that its answer is cut off
  for (int i = 0; i < 400; ++i) question += fmt::format("word {} ", i);
  for (int i = 0; i < 8; ++i) lines += data::messages_line({{"user", question}, {"assistant", "yes"}});
  const Conversations chat(lines);
  const Path eval = chat.folder / "eval.jsonl";
  real_files().replace(eval, data::messages_line({{"user", "x"}, {"assistant", "yes"}}));
  const Ran ran = run(chat.config({"data.long_documents=truncate", fmt::format("data.eval={}", eval.string()),
                                   "train.max_steps=3", "log.norms_every=1"}),
                      chat.folder / "run");
  ASSERT_EQ(ran.seen.steps.size(), 3u);
  for (const StepMetrics& m : ran.seen.steps) {
    EXPECT_EQ(m.tokens, 0);
    EXPECT_EQ(m.learned, 0.0);
    EXPECT_EQ(m.loss, 0.0);
    EXPECT_EQ(m.grad_norm, 0.0);
    EXPECT_GT(m.tflops, 0);
  }
  EXPECT_TRUE(any_has(ran.seen.warnings, "step 1 had no token of an answer to learn from"));
  EXPECT_TRUE(std::isfinite(*ran.seen.steps.back().eval_loss));
}

}  // namespace
}  // namespace redline::train

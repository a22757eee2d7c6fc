// What may change between a stop and a resume, and what is noticed: settings, data that moved, data that are others.
#include "train/run_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/hash.h"
#include "config/keys.h"
#include "io/json.h"
#include "testing/temp_folder.h"
#include "train/tiny_run.h"

namespace redline::train {
namespace {

namespace fs = std::filesystem;

std::string refusal(const config::Config& config, const Path& folder, bool allow = false) {
  return error_of([&] { go_on(config, folder, allow); });
}

// Text without any order, so that every place in it is like no other.
std::string letters(std::size_t size, unsigned seed = 1) {
  std::string text(size, ' ');
  for (char& c : text) c = "abcdefg hijklm\n"[(seed = seed * 1664525u + 1013904223u) >> 28 & 14];
  return text;
}

std::string lines_of(std::size_t count, unsigned seed = 1) {
  std::string text, line;
  for (unsigned i = 0; i < count; ++i) {
    line = letters(60, seed + i);
    std::erase(line, '\n');
    text += fmt::format("{{\"text\": \"{}\"}}\n", line);
  }
  return text;
}

// In place: the same file, the same size, a later time.
void overwrite(const Path& path, std::size_t at, std::string_view bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(at));
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  fs::last_write_time(path, fs::last_write_time(path) + std::chrono::seconds(2));
}

// Gives a checkpoint another state.json, as whole as the one it had.
void replace_state(const Path& run_folder, std::int64_t step, const std::function<void(io::Json&)>& change) {
  const Path folder = run_folder / "checkpoints" / io::checkpoint_name(step);
  io::Json state = io::read_json(real_files(), folder / "state.json");
  change(state);
  const std::string text = state.dump();
  real_files().replace(folder / "state.json", text);
  io::Json manifest = io::read_json(real_files(), folder / io::kManifest);
  manifest["files"]["state.json"] = {{"bytes", text.size()}, {"xxh3", hex64(hash64(text))}};
  real_files().replace(folder / io::kManifest, manifest.dump());
}

TEST(ChangeOnResume, EveryKeyOfTheTableIsHeldToIt) {
  testing::TempFolder temp;
  run(tiny_run({"train.max_steps=1"}), temp.path());
  const auto told = [&](const std::string& word, bool allow) {
    return refusal(tiny_run({"train.max_steps=1", word}), temp.path(), allow);
  };
  for (const char* free : {"optim.lr=0.5", "train.eval_tokens=64", "kernels.deterministic=true", "data.workers=1",
                           "log.every=3", "checkpoint.keep=1", "model.max_positions=4096"})
    EXPECT_EQ(told(free, false), "") << free;
  for (const char* asks : {"model.rope_theta=5e4", "model.dropout=0", "train.seed=1", "data.seed=7", "train.seq_len=32",
                           "data.packing=pad", "precision.matmul=fp32", "train.batch_size=4", "train.accumulate=1"}) {
    EXPECT_TRUE(says(told(asks, false), {"--allow-change"}));
    EXPECT_TRUE(says(told(asks, false), {std::string(asks).substr(0, std::string(asks).find('='))}));
    EXPECT_EQ(told(asks, true), "") << asks;
  }
  for (const char* never : {"model.layers=1", "model.ffn=64", "model.vocab=300", "model.tied=true"})
    EXPECT_TRUE(says(told(never, true), {"which its parameters cannot follow"}));
  const std::string several = refusal(tiny_run({"train.max_steps=1", "train.seed=1", "data.packing=pad"}), temp.path());
  EXPECT_TRUE(says(several, {"data.packing = \"pack\", not \"pad\", and train.seed = 0, not 1"}));
}

TEST(ChangeOnResume, AStepMayBeCutIntoOtherMicroBatches) {
  testing::TempFolder temp;
  const config::Config c = tiny_run({"train.max_steps=6", "data.packing=stream", "model.dropout=0"});
  const Ran whole = run(c, temp.path() / "whole");
  run(c, temp.path() / "run", false, real_files(), true);
  config::Config other = c;
  other.train.batch_size = 4;
  other.train.accumulate = 1;
  const Ran rest = go_on(other, temp.path() / "run");
  ASSERT_EQ(rest.result.steps, 6);
  for (std::size_t i = 0; i < 5; ++i) {  // the same tokens in the same steps; documents are cut elsewhere
    EXPECT_EQ(rest.seen.steps[i].tokens, whole.seen.steps[i + 1].tokens) << i;
    EXPECT_NEAR(rest.seen.steps[i].loss, whole.seen.steps[i + 1].loss, 0.01) << i;
  }
}

TEST(ChangeOnResume, MoreRowsAreAllowedAndTold) {
  testing::TempFolder temp;
  run(tiny_run({"train.max_steps=2"}), temp.path());
  const Ran rest =
      go_on(tiny_run({"train.max_steps=4", "train.batch_size=4", "precision.matmul=fp32"}), temp.path(), true);
  EXPECT_EQ(rest.result.steps, 4);
  EXPECT_TRUE(any_has(rest.seen.notes, {"train.batch_size = 4", "it was 2"}));
  EXPECT_TRUE(any_has(rest.seen.notes, "a step has 8 rows now, and had 4"));
  EXPECT_TRUE(any_has(rest.seen.notes, "nothing of them is converted"));
  EXPECT_TRUE(any_has(rest.seen.notes, "kept: parameters, moments, step 2 and its "));
  EXPECT_TRUE(any_has(rest.seen.notes, "and the place in the data"));
  EXPECT_EQ(
      go_on(tiny_run({"train.max_steps=5", "train.batch_size=4", "precision.matmul=fp32"}), temp.path()).result.steps,
      5);  // what was allowed once is the run's
}

TEST(ChangeOnResume, AnotherScheduleSaysFromWhichRateToWhich) {
  testing::TempFolder temp;
  const std::vector<std::string> base = {"optim.schedule=linear", "optim.lr=1e-2", "optim.min_lr=0",
                                         "optim.warmup_steps=0", "train.eval_every=0"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), base.begin(), base.end());
    return tiny_run(more);
  };
  run(with({"train.max_steps=11"}), temp.path(), false, real_files(), true);  // one step
  const Ran longer = go_on(with({"train.max_steps=21"}), temp.path());
  EXPECT_TRUE(any_has(longer.seen.notes, {"learning rate", "0.0095", "0.009)", "ends with 0 at step 21"}));
  EXPECT_FALSE(any_has(longer.seen.notes, "kept:"));
  const Ran warm =
      go_on(with({"train.max_steps=31", "optim.schedule_start=21", "optim.warmup_steps=4", "optim.schedule=cosine"}),
            temp.path());
  EXPECT_TRUE(any_has(warm.seen.notes, {"learning rate", "0.002", "ended with 0", "ends with 0 at step 31"}));
  EXPECT_EQ(warm.seen.steps[4].lr, 1e-2);
  EXPECT_EQ(warm.seen.steps.back().lr, 0);
}

// A file of each kind.
class DataOnResume : public ::testing::TestWithParam<const char*> {
 protected:
  DataOnResume()
      : name_(GetParam()), file_(temp_ / name_), bytes_(name_ == "a.jsonl" ? lines_of(110000) : letters(8 << 20)) {
    if (name_ == "a.bin")
      for (std::size_t i = 1; i < bytes_.size(); i += 2) bytes_[i] = 0;  // ids below 256
    real_files().replace(file_, bytes_);
  }
  // A letter of the text, that many of 256 shares into the file.
  std::size_t letter(double shares) const {
    return bytes_.find('a', static_cast<std::size_t>(shares / 256 * static_cast<double>(bytes_.size())));
  }
  config::Config config(const std::string& steps, const Path& file, const Path& eval = {}) const {
    std::vector<std::string> words = {"train.max_steps=" + steps, "data.train=" + file.string(), "train.eval_every=0"};
    if (name_ == "a.jsonl") words.push_back("data.tokenizer=bytes");
    if (!eval.empty()) words.push_back("data.eval=" + eval.string());
    return tiny_run(words);
  }

  testing::TempFolder temp_;
  std::string name_;
  Path file_;
  std::string bytes_;
};

TEST_P(DataOnResume, ChangedBytesAreNoticedWhereverTheyAre) {
  const Path run_folder = temp_ / "run";
  run(config("2", file_), run_folder);
  EXPECT_TRUE(go_on(config("3", file_), run_folder).seen.warnings.empty());
  // At an end, between the blocks that are compared first, and in one of them.
  for (const double shares : {0.01, 100.1, 128.7}) {
    overwrite(file_, letter(shares), "n");
    const std::string refused = refusal(config("4", file_), run_folder);
    EXPECT_TRUE(says(refused, {"data.train (", "is not what", "--allow-change"}));
    overwrite(file_, letter(shares), "a");  // and back: another time, the same bytes
  }
  const Ran same = go_on(config("4", file_), run_folder);
  EXPECT_TRUE(any_has(same.seen.notes, {"data.train", "moved", "every byte"}));
  overwrite(file_, letter(100.1), "n");
  const Ran allowed = go_on(config("5", file_), run_folder, true);
  EXPECT_EQ(allowed.result.steps, 5);
  EXPECT_TRUE(any_has(allowed.seen.notes, {"data.train", "other data", "beginning"}));
  EXPECT_TRUE(any_has(allowed.seen.notes, "; begun anew: the order of the data"));
  EXPECT_EQ(go_on(config("6", file_), run_folder).result.steps, 6);  // its data from here on
}

TEST_P(DataOnResume, ACopyElsewhereGoesOnToTheSameBits) {
  run(config("4", file_), temp_ / "whole");
  run(config("4", file_), temp_ / "run", false, real_files(), true);
  fs::create_directories(temp_ / "moved/deeper");
  fs::rename(temp_ / "run", temp_ / "moved/run");
  const Path moved = temp_ / "moved/deeper" / (name_ == "a.bin" ? "b.bin" : name_);
  fs::copy_file(file_, moved);
  fs::remove(file_);
  const std::string gone = refusal(config("4", file_), temp_ / "moved/run");
  EXPECT_TRUE(says(gone, {fmt::format("data.train: there is no {} any more", file_.string()), "data.train=PATH"}));
  const Ran rest = go_on(config("4", moved), temp_ / "moved/run");
  EXPECT_TRUE(rest.seen.warnings.empty());
  EXPECT_EQ(tensors(temp_ / "moved/run", 4), tensors(temp_ / "whole", 4));
}

TEST_P(DataOnResume, HeldOutDataAreHeldToItAsWell) {
  const Path eval = temp_ / ("eval" + Path(name_).extension().string()), run_folder = temp_ / "run";
  fs::copy_file(file_, eval);
  run(config("2", file_, eval), run_folder);
  overwrite(eval, letter(100.1), "n");
  const std::string refused = refusal(config("3", file_, eval), run_folder);
  EXPECT_TRUE(says(refused, {"data.eval (", "was evaluated on"}));
  EXPECT_TRUE(any_has(go_on(config("3", file_, eval), run_folder, true).seen.notes,
                      "held-out losses from here on cannot be compared"));
  const std::string none = refusal(config("4", file_), run_folder);
  EXPECT_TRUE(says(none, {"--allow-change"}));
}

TEST_P(DataOnResume, AFileThatChangesUnderARunIsNamedAtTheNextCheckpoint) {
  const std::size_t at = letter(100.1);
  Hears writer([&](const Stepped& s) {
    if (s.step == 4) overwrite(file_, at, "n");
  });
  const Ran ran = go_on(config("12", file_), temp_ / "run", false, false, &writer);
  ASSERT_EQ(ran.seen.saves.size(), 3u);
  ASSERT_EQ(ran.seen.warnings.size(), 1u);  // once
  EXPECT_TRUE(says(ran.seen.warnings[0], {fmt::format("data.train: {} changed on the disk", file_.string())}));
  EXPECT_TRUE(says(refusal(config("13", file_), temp_ / "run"), {"is not what"}));
}

INSTANTIATE_TEST_SUITE_P(Kinds, DataOnResume, ::testing::Values("a.txt", "a.jsonl", "a.bin"),
                         [](const auto& i) { return std::string(i.param).substr(2); });

// The state of a run that was begun before all of its data were compared, or before pieces had another order.
TEST(EarlierState, GoesOnWhereItCanBeReadAndElseWhereThatIsAllowed) {
  testing::TempFolder temp;
  const Path text = temp / "a.txt";
  real_files().replace(text, letters(5000));
  const config::Config c = tiny_run({"train.max_steps=3", "train.eval_every=0"});
  config::Config of_text = c;
  of_text.data.train = {text.string()};
  const auto earlier = [](io::Json& state) {
    state["format"] = 2;
    state["data"] = state["data"]["contents"];
  };
  run(c, temp / "ping", false, real_files(), true);
  replace_state(temp / "ping", 1, earlier);
  EXPECT_EQ(go_on(c, temp / "ping").result.steps, 3);

  run(of_text, temp / "text", false, real_files(), true);
  replace_state(temp / "text", 1, earlier);
  EXPECT_TRUE(says(refusal(of_text, temp / "text"), {"is from an earlier redline"}));
  EXPECT_EQ(go_on(of_text, temp / "text", true).result.steps, 3);

  run(c, temp / "loader", false, real_files(), true);
  replace_state(temp / "loader", 1, [](io::Json& state) { state["loader"] = "elsewhere"; });
  EXPECT_TRUE(says(refusal(c, temp / "loader"), {"--allow-change", "order of the data"}));
  const Ran anew = go_on(c, temp / "loader", true);
  EXPECT_EQ(anew.result.steps, 3);
  EXPECT_TRUE(any_has(anew.seen.notes, "; begun anew: the order of the data"));
}

// As the command resumes that was given no configuration: with the run's own.
Ran own(const Path& folder, bool allow = false, const std::vector<std::string>& words = {}) {
  const config::Config c =
      config::load({.file = (folder / "config.toml").string(), .preset = "", .overrides = words}, model::settle_family);
  return go_on(c, folder, allow, true);
}

TEST(RunConfig, ChangedByHandIsNamedAndNotBelieved) {
  testing::TempFolder temp;
  run(tiny_run({"train.max_steps=3"}), temp.path(), false, real_files(), true);
  const Path path = temp / "config.toml";
  const std::string text = real_files().read(path);
  EXPECT_TRUE(is_sealed(text));
  const auto changed = [&](std::vector<std::pair<std::string, std::string>> pairs) {
    std::string other = text;
    for (const auto& [from, to] : pairs) {
      const std::size_t at = other.find("\n" + from);
      ASSERT_NE(at, other.npos) << from;
      other.replace(at + 1, from.size(), to);
    }
    real_files().replace(path, other);
  };
  changed(
      {{"rope_theta = 10000.0", "rope_theta = 50000.0"}, {"lr = 0.01", "lr = 0.02"}, {"beta2 = 0.95", "beta2 = 0.9"}});
  const std::string refused = error_of([&] { own(temp.path()); });
  EXPECT_TRUE(says(
      refused,
      {path.string() + " is not as the run wrote it: it has ",
       "model.rope_theta = 50000.0 where the checkpoint has 10000.0", "optim.lr = 0.02 where the checkpoint has 0.01",
       "optim.beta2 = 0.9 where the checkpoint has 0.95", "step_00000001/config.toml", "--allow-change"}));

  changed({{"lr = 0.01", "lr = 0.02"}});
  EXPECT_TRUE(says(error_of([&] { own(temp.path()); }), {"optim.lr"}));
  EXPECT_EQ(own(temp.path(), false, {"optim.lr=0.02", "train.max_steps=1"}).result.outcome, Outcome::already_finished);
  EXPECT_EQ(own(temp.path(), true).result.steps, 3);
  EXPECT_EQ(own(temp.path(), false, {"train.max_steps=4"}).result.steps, 4);  // it is the run's now

  real_files().replace(path, text.substr(0, text.find("\n[optim]")));  // all after it would be the preset's
  EXPECT_TRUE(says(error_of([&] { own(temp.path()); }), {"optim.warmup_steps = 15 where the checkpoint has 4"}));
}

TEST(RunConfig, WhatIsOnlyWrittenOtherwiseIsBelieved) {
  testing::TempFolder temp;
  run(tiny_run({"train.max_steps=3"}), temp.path(), false, real_files(), true);
  const Path path = temp / "config.toml";
  real_files().replace(path, "# mine\n" + real_files().read(path));
  EXPECT_EQ(own(temp.path()).result.steps, 3);
  fs::copy_file(temp / "checkpoints/step_00000003/config.toml", path, fs::copy_options::overwrite_existing);
  EXPECT_EQ(own(temp.path(), false, {"train.max_steps=4"}).result.steps, 4);
}

TEST(RunConfig, PathsMeanTheSameFromAnyWorkingDirectory) {
  testing::TempFolder temp;
  const Path here = fs::current_path();
  real_files().replace(temp / "a.txt", letters(5000));
  real_files().replace(temp / "b.txt", letters(3000));
  fs::create_directories(temp / "elsewhere");
  fs::current_path(temp.path());
  run(tiny_run({"train.max_steps=3", "data.train=a.txt", "data.eval=./b.txt"}), "run", false, real_files(), true);
  fs::current_path(temp / "elsewhere");
  const std::string problem = error_of([&] { EXPECT_EQ(own("../run").result.steps, 3); });
  fs::current_path(here);
  EXPECT_EQ(problem, "");
}

// What a resume was told is in config.toml before the next checkpoint is: a kill between the two loses nothing.
TEST(RunConfig, WhatAResumeWasToldHoldsBeforeItsFirstCheckpoint) {
  testing::TempFolder temp;
  const config::Config c = tiny_run({"train.max_steps=3"});
  run(c, temp.path(), false, real_files(), true);
  config::Config told = c;
  told.optim.lr = 0.005;
  real_files().replace(temp / "config.toml", sealed_text(as_kept(told)));
  const Ran rest = own(temp.path());
  EXPECT_EQ(rest.result.steps, 3);
  EXPECT_TRUE(any_has(rest.seen.notes, "resuming with optim.lr = 0.005 (it was 0.01)"));
}

}  // namespace
}  // namespace redline::train

// What a run promises: it learns, it repeats and resumes bit for bit, it stops when asked or when numbers break, and a
// full disk never costs it what it had saved.
#include "train/trainer.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <thread>

#include "io/checkpoint_folder.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "testing/failing_files.h"
#include "testing/temp_folder.h"
#include "testing/upload_windows.h"
#include "testing/without_rights.h"
#include "train/run_lock.h"
#include "train/signals.h"
#include "train/tiny_run.h"

namespace redline::train {
namespace {

using testing::Recorder;
using testing::tiny_run;

struct Ran {
  TrainResult result;
  Recorder seen;
};

// Asks a run to stop once it has its weights and begins: it makes one step and saves it.
struct StopsAtOnce final : Observer {
  std::atomic<int> stop{0};
  void started(const RunHeader&) override { stop = SIGTERM; }
};

Ran run(const config::Config& config, const Path& folder, bool resume = false, FileSystem& files = real_files(),
        bool stops_at_once = false) {
  Ran ran;
  StopsAtOnce stopper;
  device::CpuDevice device(2);
  TrainOptions options;
  options.config = config;
  options.folder = folder;
  options.resume = resume;
  options.peak_flops = 1e11;
  options.observers = {&ran.seen, &stopper};
  if (stops_at_once) options.stop = &stopper.stop;
  ran.result = train(options, device, files);
  return ran;
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

// Every byte of parameters and moments in a checkpoint.
std::string tensors(const Path& run_folder, std::int64_t step) {
  const Path folder = run_folder / "checkpoints" / io::checkpoint_name(step);
  return real_files().read(folder / "model.safetensors") + real_files().read(folder / "optimizer.safetensors");
}

// Changes one bit of a file, that far into it.
void flip(const Path& path, double share) {
  std::string bytes = real_files().read(path);
  char& byte = bytes[static_cast<std::size_t>(share * static_cast<double>(bytes.size()))];
  byte = static_cast<char>(byte ^ 1);
  real_files().replace(path, bytes);
}

std::vector<double> losses(const Recorder& r) {
  std::vector<double> out;
  for (const StepMetrics& m : r.steps) out.push_back(m.loss);
  return out;
}

TEST(Trainer, LearnsEvaluatesAndSavesWhenAsked) {
  testing::TempFolder temp;
  const Ran ran = run(tiny_run(), temp.path() / "run");
  EXPECT_EQ(ran.result.outcome, Outcome::finished);
  ASSERT_EQ(ran.seen.steps.size(), 40u);
  EXPECT_EQ(ran.seen.evaluations.size(), 5u);  // before the first step, and after 10, 20, 30, 40
  EXPECT_LT(ran.seen.evaluations.back(), ran.seen.evaluations.front() - 1.0);
  EXPECT_EQ(ran.seen.saves, (std::vector<std::int64_t>{5, 10, 15, 20, 25, 30, 35, 40}));
  EXPECT_EQ(io::list_checkpoints(real_files(), temp.path() / "run/checkpoints").size(), 2u);
  for (const StepMetrics& m : ran.seen.steps) {
    EXPECT_EQ(m.eval_loss.has_value(), m.step % 10 == 0);
    EXPECT_GT(m.tokens, 0);
    EXPECT_LE(m.tokens, 2 * 2 * 64);
    EXPECT_GE(m.padding, 0.0);
    EXPECT_LT(m.padding, 0.5);
    EXPECT_GT(m.mfu, 0.0);
    EXPECT_GE(m.mfu_palm, m.mfu);
    EXPECT_NEAR(m.mfu, m.tflops * 1e12 / 1e11, 1e-9);
  }
  EXPECT_EQ(ran.seen.steps.back().lr, tiny_run().optim.min_lr);
}

TEST(Trainer, TheSameRunTwiceGivesTheSameBits) {
  testing::TempFolder temp;
  const config::Config c = tiny_run({"train.max_steps=12"});
  const Ran a = run(c, temp.path() / "a"), b = run(c, temp.path() / "b");
  EXPECT_EQ(losses(a.seen), losses(b.seen));
  EXPECT_EQ(tensors(temp.path() / "a", 12), tensors(temp.path() / "b", 12));
  const Ran other = run(tiny_run({"train.max_steps=12", "train.seed=1"}), temp.path() / "c");
  EXPECT_NE(losses(a.seen), losses(other.seen));
}

TEST(Trainer, AStopFinishesTheStepSavesAndResumesToTheSameBits) {
  testing::TempFolder temp;
  const config::Config c = tiny_run({"train.max_steps=17"});
  const Ran whole = run(c, temp.path() / "whole");
  std::vector<double> seen;
  for (int i = 0; i < 17; ++i) {
    const Ran part = run(c, temp.path() / "parts", true, real_files(), i < 16);
    ASSERT_EQ(part.seen.steps.size(), 1u);
    EXPECT_EQ(part.result.outcome, i < 16 ? Outcome::stopped : Outcome::finished);
    seen.push_back(part.seen.steps[0].loss);
  }
  EXPECT_EQ(seen, losses(whole.seen));
  EXPECT_EQ(tensors(temp.path() / "whole", 17), tensors(temp.path() / "parts", 17));
}

TEST(Trainer, AnyPackingOfAStreamResumesToTheSameBitsWithOtherWorkers) {
  testing::TempFolder temp;
  std::string lines;
  for (int i = 0; i < 90; ++i)  // a few epochs of a small file
    lines += fmt::format("{{\"text\": \"{} {}\"}}\n", i, std::string(static_cast<std::size_t>(i * 7 % 100), 'a'));
  real_files().replace(temp.path() / "a.jsonl", lines);
  for (const std::string packing : {"pack", "stream", "bucket", "pad"}) {
    const auto config = [&](std::string workers) {
      return tiny_run({"train.max_steps=12", "train.eval_every=0", "checkpoint.every=100", "data.packing=" + packing,
                       "data.train=" + (temp.path() / "a.jsonl").string(), "data.tokenizer=bytes",
                       "data.long_documents=truncate", "data.workers=" + workers, "data.prefetch=2"});
    };
    const Ran whole = run(config("0"), temp.path() / packing);
    std::vector<double> seen;
    Ran part;
    for (int i = 0; i < 12; ++i) {
      part = run(config(i % 2 ? "3" : "1"), temp.path() / (packing + " in parts"), true, real_files(), i < 11);
      ASSERT_EQ(part.seen.steps.size(), 1u);
      seen.push_back(part.seen.steps[0].loss);
    }
    EXPECT_EQ(seen, losses(whole.seen)) << packing;
    EXPECT_EQ(tensors(temp.path() / packing, 12), tensors(temp.path() / (packing + " in parts"), 12)) << packing;
    ASSERT_TRUE(whole.seen.steps.back().truncated_tokens.has_value());
    EXPECT_GT(*whole.seen.steps.back().truncated_tokens, 0);
    EXPECT_EQ(part.seen.steps.back().truncated_tokens, whole.seen.steps.back().truncated_tokens) << packing;
    const auto told = std::ranges::any_of(
        whole.seen.notes, [](const std::string& note) { return note.starts_with("data.long_documents dropped "); });
    EXPECT_TRUE(told) << packing;
  }
}

TEST(Trainer, TellsOfTheDataPipelineWhereAsked) {
  testing::TempFolder temp;
  const Ran quiet = run(tiny_run({"train.max_steps=3"}), temp.path() / "quiet");
  EXPECT_TRUE(quiet.seen.pipelines.empty());
  const Ran ran = run(tiny_run({"train.max_steps=3", "data.debug=true"}), temp.path() / "run");
  ASSERT_FALSE(ran.seen.pipelines.empty());
  EXPECT_FALSE(ran.seen.pipelines.back().slowest.empty());
}

TEST(Trainer, AFinishedRunHasNothingLeftToDo) {
  testing::TempFolder temp;
  const config::Config c = tiny_run({"train.max_steps=5"});
  run(c, temp.path());
  const std::string before = tensors(temp.path(), 5);
  const Ran again = run(c, temp.path(), true);
  EXPECT_EQ(again.result.outcome, Outcome::already_finished);
  EXPECT_TRUE(again.seen.steps.empty());
  EXPECT_EQ(tensors(temp.path(), 5), before);
}

TEST(Trainer, AFolderThatHoldsARunIsNeverOverwritten) {
  testing::TempFolder temp;
  run(tiny_run({"train.max_steps=2"}), temp.path());
  EXPECT_NE(error_of([&] { run(tiny_run({"train.max_steps=2"}), temp.path()); }).find("--resume"), std::string::npos);
  const std::string other = error_of([&] { run(tiny_run({"model.ffn=64"}), temp.path(), true); });
  EXPECT_NE(other.find("model.ffn"), std::string::npos) << other;
  const Ran longer = run(tiny_run({"train.max_steps=4"}), temp.path(), true);  // the user's choice, and said
  EXPECT_EQ(longer.result.steps, 4);
  bool said = false;
  for (const std::string& n : longer.seen.notes) said = said || n.find("train.max_steps") != std::string::npos;
  EXPECT_TRUE(said);
}

// Each checkpoint knows what it is of: also for a run that has no step left, whose tensors nobody would read.
TEST(Trainer, ARunWithoutItsConfigurationIsStillWhatItsCheckpointsSay) {
  testing::TempFolder temp;
  run(tiny_run({"train.max_steps=2"}), temp.path());
  real_files().remove_all(temp.path() / "config.toml");
  const auto refused = [&](const std::vector<std::string>& overrides) {
    return error_of([&] { run(tiny_run(overrides), temp.path(), true); });
  };
  const std::string checkpoint = (temp.path() / "checkpoints/step_00000002").string();
  for (const char* steps : {"train.max_steps=2", "train.max_steps=4"}) {
    const std::string model = refused({steps, "model.ffn=64"});
    EXPECT_EQ(model.find(checkpoint + " is of another model: it was started with model.ffn = 48, not 64"), 0u) << model;
    const std::string batch = refused({steps, "train.batch_size=4"});
    EXPECT_EQ(batch.find(checkpoint + " is of another run: it was started with train.batch_size = 2, not 4"), 0u)
        << batch;
  }
  EXPECT_FALSE(real_files().exists(temp.path() / "config.toml"));
  EXPECT_EQ(run(tiny_run({"train.max_steps=2"}), temp.path(), true).result.outcome, Outcome::already_finished);
  EXPECT_EQ(run(tiny_run({"train.max_steps=4"}), temp.path(), true).result.steps, 4);
}

TEST(Trainer, ARunsConfigurationThatCannotBeUsedIsNamed) {
  testing::TempFolder temp;
  run(tiny_run({"train.max_steps=2"}), temp.path());
  const Path path = temp.path() / "config.toml";
  for (const char* text :
       {"", "[model]\nlayers = 0\n"}) {  // a rule that no line of it breaks, and one that a line does
    real_files().replace(path, text);
    const std::string message = error_of([&] { run(tiny_run({"train.max_steps=4"}), temp.path(), true); });
    EXPECT_EQ(message.find(path.string() + " cannot be used ("), 0u) << message;
    EXPECT_TRUE(message.ends_with("; each checkpoint of the run holds a copy of it")) << message;
  }
  std::filesystem::copy_file(temp.path() / "checkpoints/step_00000002/config.toml", path,
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(run(tiny_run({"train.max_steps=4"}), temp.path(), true).result.steps, 4);
}

TEST(Trainer, ResumingNothingStartsFromTheBeginningAndSaysSo) {
  testing::TempFolder temp;
  const Ran ran = run(tiny_run({"train.max_steps=1"}), temp.path(), true);
  EXPECT_EQ(ran.result.steps, 1);
  ASSERT_FALSE(ran.seen.notes.empty());
  EXPECT_NE(ran.seen.notes[0].find("from the beginning"), std::string::npos);
}

TEST(Trainer, AFolderThatAnotherProcessTrainsIntoIsRefused) {
  testing::TempFolder temp;
  const Path folder = temp.path() / "run";
  run(tiny_run({"train.max_steps=2"}), folder);
  const std::string before = real_files().read(folder / "config.toml");
  {
    const RunLock other(folder);
    const std::string message = error_of([&] { run(tiny_run({"train.max_steps=4"}), folder, true); });
    EXPECT_NE(message.find("another process is training into this folder"), std::string::npos) << message;
    EXPECT_EQ(real_files().read(folder / "config.toml"), before);
  }
  run(tiny_run({"train.max_steps=4"}), folder, true);
}

TEST(Trainer, ADryRunWritesNothing) {
  testing::TempFolder temp;
  device::CpuDevice device(1);
  TrainOptions options;
  options.config = tiny_run();
  options.folder = temp.path() / "dry";
  options.dry_run = true;
  EXPECT_EQ(train(options, device, real_files()).outcome, Outcome::dry_run);
  EXPECT_FALSE(real_files().exists(options.folder));
}

// A rate so high that the first update throws the parameters out of fp32's range within a few steps.
const std::vector<std::string> kBroken = {"optim.lr=1e30",        "optim.min_lr=1e30", "optim.schedule=constant",
                                          "optim.warmup_steps=0", "optim.clip=0",      "train.eval_every=0"};

TEST(Trainer, ALossThatIsNotFiniteStopsTheRunAndTouchesNothing) {
  testing::TempFolder temp;
  run(tiny_run({"train.max_steps=5"}), temp.path());
  const std::string before = tensors(temp.path(), 5);
  std::vector<std::string> overrides = kBroken;
  overrides.push_back("train.max_steps=40");
  std::string message;
  try {
    run(tiny_run(overrides), temp.path(), true);
  } catch (const NotFinite& e) {
    message = e.what();
  }
  ASSERT_NE(message, "");
  EXPECT_NE(message.find("step "), std::string::npos) << message;
  EXPECT_NE(message.find("documents "), std::string::npos) << message;
  EXPECT_NE(message.find("optim.lr"), std::string::npos) << message;
  EXPECT_EQ(tensors(temp.path(), 5), before);
  // The way out that the message names: a lower rate, from the same checkpoint.
  EXPECT_EQ(run(tiny_run({"train.max_steps=8"}), temp.path(), true).result.steps, 8);
}

TEST(Trainer, ParametersThatAreNotFiniteAreNeverSaved) {
  testing::TempFolder temp;
  std::vector<std::string> overrides = kBroken;
  overrides.insert(overrides.end(), {"checkpoint.every=1", "optim.lr=1e300", "optim.min_lr=1e300"});
  EXPECT_THROW(run(tiny_run(overrides), temp.path()), NotFinite);
  EXPECT_TRUE(io::list_checkpoints(real_files(), temp.path() / "checkpoints").empty());
}

TEST(Trainer, WhatAResumeWasToldTheNextOneKnows) {
  testing::TempFolder temp;
  run(tiny_run({"train.max_steps=2"}), temp.path());
  run(tiny_run({"train.max_steps=4", "optim.lr=5e-3"}), temp.path(), true);
  const config::Config kept = read_run_config(real_files(), temp.path());
  EXPECT_EQ(kept.train.max_steps, 4);
  EXPECT_EQ(kept.optim.lr, 5e-3);
}

TEST(Trainer, CheckpointsThatCannotBeReadAreNotOverwritten) {
  testing::TempFolder temp;
  run(tiny_run({"train.max_steps=5"}), temp.path());
  const Path manifest = temp.path() / "checkpoints/step_00000005" / io::kManifest;
  std::string text = real_files().read(manifest);
  text.replace(text.find("\"format\": 1"), 11, "\"format\": 9");
  real_files().replace(manifest, text);
  const std::string message = error_of([&] { run(tiny_run({"train.max_steps=6"}), temp.path(), true); });
  EXPECT_NE(message.find("none of the checkpoints"), std::string::npos) << message;
  EXPECT_TRUE(real_files().exists(manifest));
}

// After hours of steps is too late.
TEST(Trainer, CheckpointsThatMayNotBeWrittenAreToldBeforeTheFirstStep) {
  testing::TempFolder temp;
  const Path folder = temp.path() / "run", checkpoints = folder / "checkpoints";
  real_files().create_folders(checkpoints);
  for (const Path& open : {temp.path(), folder}) std::filesystem::permissions(open, std::filesystem::perms::all);
  Recorder seen;
  TrainOptions options;
  options.config = tiny_run({"train.max_steps=2"});
  options.folder = folder;
  options.observers = {&seen};
  {
    const testing::WithoutRights nobody(checkpoints, std::filesystem::perms(0555));
    device::CpuDevice device(1);
    const std::string message = error_of([&] { train(options, device, real_files()); });
    EXPECT_NE(message.find("give this user the right to write there"), message.npos) << message;
  }
  EXPECT_TRUE(seen.steps.empty());
  EXPECT_EQ(run(options.config, folder, true).result.steps, 2);
}

TEST(Trainer, OtherDataThanTheCheckpointsIsRefused) {
  testing::TempFolder temp;
  const Path text = temp.path() / "text";
  real_files().replace(text, std::string(3000, 'a'));
  const config::Config c = tiny_run({"train.max_steps=2", "data.train=" + text.string()});
  run(c, temp.path() / "run");
  real_files().replace(text, std::string(3000, 'b'));
  config::Config longer = c;
  longer.train.max_steps = 4;
  const std::string message = error_of([&] { run(longer, temp.path() / "run", true); });
  EXPECT_NE(message.find("is not what"), std::string::npos) << message;
}

TEST(Trainer, ADryRunOfAModelThatDoesNotFitShowsItsMemory) {
  testing::TempFolder temp;
  device::CpuDevice device(1);
  struct Header final : Observer {
    std::int64_t total = 0;
    void started(const RunHeader& h) override { total = h.memory->total; }
  } header;
  TrainOptions options;
  options.config = config::load({.file = "", .preset = "llama-1.36b", .overrides = {"train.batch_size=4096"}});
  options.folder = temp.path() / "large";
  options.dry_run = true;
  options.observers = {&header};
  EXPECT_EQ(train(options, device, real_files()).outcome, Outcome::dry_run);
  EXPECT_GT(header.total, device.memory_bytes());
  options.dry_run = false;
  const std::string message = error_of([&] { train(options, device, real_files()); });
  EXPECT_NE(message.find("train.batch_size"), std::string::npos) << message;
  EXPECT_FALSE(real_files().exists(options.folder));
}

TEST(Trainer, AVocabularySmallerThanTheDatasIsRefused) {
  testing::TempFolder temp;
  const std::string message = error_of([&] { run(tiny_run({"model.vocab=200"}), temp.path()); });
  EXPECT_NE(message.find("model.vocab is 200"), std::string::npos) << message;
  EXPECT_NE(message.find("267"), std::string::npos) << message;
}

TEST(Trainer, DamagedCheckpointsArePassedOverAndTheRunEndsTheSame) {
  testing::TempFolder temp;
  const config::Config c = tiny_run({"train.max_steps=15"});
  const Ran whole = run(c, temp.path() / "whole");
  const std::string expected = tensors(temp.path() / "whole", 15);
  for (const char* damage : {"truncate", "flip", "flip weights", "flip header", "remove", "no manifest",
                             "empty manifest", "no optimizer in the manifest", "pipe"}) {
    const Path folder = temp.path() / damage;
    std::atomic<int> stop{0};
    // Ten steps of the same run, then the newest of its two checkpoints is damaged.
    {
      device::CpuDevice device(2);
      TrainOptions options;
      options.config = c;
      options.folder = folder;
      struct StopAt10 final : Observer {
        std::atomic<int>* stop = nullptr;
        void stepped(const StepMetrics& m) override {
          if (m.step == 9) *stop = SIGTERM;  // seen after step 10
        }
      } at10;
      at10.stop = &stop;
      options.observers = {&at10};
      options.stop = &stop;
      train(options, device, real_files());
    }
    const Path newest = folder / "checkpoints/step_00000010";
    ASSERT_TRUE(real_files().exists(newest)) << damage;
    const Path victim = newest / "optimizer.safetensors";
    if (damage == std::string("truncate")) real_files().truncate(victim, real_files().size(victim) / 2);
    if (damage == std::string("remove")) real_files().remove_all(victim);
    if (damage == std::string("no manifest")) real_files().remove_all(newest / io::kManifest);
    if (damage == std::string("empty manifest") || damage == std::string("no optimizer in the manifest")) {
      io::Json manifest = io::read_json(real_files(), newest / io::kManifest);
      auto& named = manifest["files"];
      named.erase("optimizer.safetensors");
      if (damage == std::string("empty manifest")) named = io::Json::object();
      real_files().replace(newest / io::kManifest, manifest.dump());
      real_files().remove_all(victim);
    }
    if (damage == std::string("pipe")) {  // nobody writes to it, and nobody waits
      real_files().remove_all(newest / io::kManifest);
      ASSERT_EQ(::mkfifo((newest / io::kManifest).c_str(), 0600), 0);
    }
    if (damage == std::string("flip")) flip(victim, 0.5);
    if (damage == std::string("flip weights")) flip(newest / "model.safetensors", 0.5);
    if (damage == std::string("flip header")) flip(victim, 0.001);  // found before its hash is known
    const Ran resumed = run(c, folder, true);
    EXPECT_EQ(resumed.seen.steps.front().step, 6) << damage;  // from the checkpoint of step 5
    ASSERT_EQ(resumed.seen.warnings.size(), 1u) << damage;
    EXPECT_NE(resumed.seen.warnings[0].find("step_00000010"), std::string::npos);
    const std::string& warning = resumed.seen.warnings[0];
    const bool changed = warning.find("safetensors has changed: its hash is not the one in") != warning.npos;
    EXPECT_EQ(changed, std::string(damage).starts_with("flip")) << warning;
    EXPECT_TRUE(warning.ends_with("; that of step 5 is taken instead")) << warning;
    EXPECT_EQ(tensors(folder, 15), expected) << damage;
  }
}

// A wrong hash is known when all of a file has gone to the device: the checkpoint before takes the place of it.
TEST(Trainer, WhatWentToADeviceOfADamagedCheckpointIsReplaced) {
  testing::TempFolder temp;
  const config::Config c = tiny_run({"train.max_steps=6"});
  run(c, temp.path() / "whole");
  const Path folder = temp.path() / "run";
  for (const bool resume : {false, true}) run(c, folder, resume, real_files(), true);  // a step and a checkpoint each
  flip(folder / "checkpoints/step_00000002/optimizer.safetensors", 0.5);
  testing::LateDevice device(2);
  Recorder seen;
  TrainOptions options;
  options.config = c;
  options.folder = folder;
  options.resume = true;
  options.observers = {&seen};
  train(options, device, real_files());
  EXPECT_EQ(seen.warnings.size(), 1u);
  EXPECT_EQ(seen.steps.front().step, 2);
  EXPECT_EQ(device.windows_sent, 2 * 2);  // weights and moments, of both checkpoints
  EXPECT_EQ(device.under_way, 0);
  EXPECT_EQ(tensors(folder, 6), tensors(temp.path() / "whole", 6));
}

// No tensors are loaded for a run that has no steps left, and still it is not done when what it ended with is gone.
TEST(Trainer, AFinishedRunWhoseLastCheckpointIsDamagedGoesOnFromTheOneBefore) {
  testing::TempFolder temp;
  const config::Config c = tiny_run({"train.max_steps=15"});
  run(c, temp.path());
  const std::string expected = tensors(temp.path(), 15);
  flip(temp.path() / "checkpoints/step_00000015/model.safetensors", 0.5);
  const Ran resumed = run(c, temp.path(), true);
  EXPECT_EQ(resumed.result.outcome, Outcome::finished);
  EXPECT_EQ(resumed.seen.steps.front().step, 11);
  EXPECT_EQ(tensors(temp.path(), 15), expected);
  EXPECT_EQ(run(c, temp.path(), true).result.outcome, Outcome::already_finished);
}

// Resumes a run of five steps.
TrainOptions one_step_more(const Path& folder, Observer& observer) {
  TrainOptions options;
  options.config = tiny_run({"train.max_steps=6"});
  options.folder = folder;
  options.resume = true;
  options.observers = {&observer};
  return options;
}

TEST(Trainer, TellsHowMuchOfACheckpointIsLoaded) {
  testing::TempFolder temp;
  run(tiny_run({"train.max_steps=5"}), temp.path());
  struct Listener final : Observer {
    std::vector<std::uint64_t> done, of;
    void loading(std::uint64_t bytes, std::uint64_t all) override {
      done.push_back(bytes);
      of.push_back(all);
    }
    void started(const RunHeader&) override { EXPECT_FALSE(done.empty()); }
  } heard;
  device::CpuDevice device(2);
  const TrainOptions options = one_step_more(temp.path(), heard);
  train(options, device, real_files());
  const Path folder = temp.path() / "checkpoints/step_00000005";
  const std::uint64_t all =
      real_files().size(folder / "model.safetensors") + real_files().size(folder / "optimizer.safetensors");
  ASSERT_GE(heard.done.size(), 2u);
  EXPECT_TRUE(std::ranges::is_sorted(heard.done));
  EXPECT_EQ(heard.done.back(), all);
  for (const std::uint64_t of : heard.of) EXPECT_EQ(of, all);

  // A run that has no steps left reads its last checkpoint as well, to see that it is whole.
  heard = {};
  EXPECT_EQ(train(options, device, real_files()).outcome, Outcome::already_finished);
  ASSERT_GE(heard.done.size(), 2u);
  EXPECT_EQ(heard.done.front(), 0u);
  EXPECT_EQ(heard.done.back(), heard.of.back());
  EXPECT_GT(heard.of.back(), all);  // and the other files
}

TEST(Trainer, ASignalWhileWeightsAreLoadedEndsItAndNothingIsWritten) {
  testing::TempFolder temp;
  run(tiny_run({"train.max_steps=5"}), temp.path());
  struct Stopper final : Observer {
    std::atomic<int> stop{0};
    std::string said;
    void loading(std::uint64_t, std::uint64_t) override { stop = SIGINT; }
    void note(const std::string& text) override { said = text; }
    void started(const RunHeader&) override { ADD_FAILURE() << "went on"; }
  } stopper;
  device::CpuDevice device(2);
  TrainOptions options = one_step_more(temp.path(), stopper);
  options.stop = &stopper.stop;
  EXPECT_EQ(train(options, device, real_files()).outcome, Outcome::stopped);
  EXPECT_EQ(stopper.said, "stopped by signal 2 while weights were loaded; nothing was written");
  EXPECT_FALSE(real_files().exists(temp.path() / "checkpoints/step_00000006"));
  stopper.stop = 0;
  EXPECT_EQ(run(options.config, temp.path(), true).result.outcome, Outcome::finished);
}

TEST(Trainer, AFullDiskAtAnyWriteLeavesARunThatResumesToTheSameBits) {
  testing::TempFolder temp;
  const config::Config c = tiny_run({"train.max_steps=4", "checkpoint.every=2", "train.eval_every=0"});
  run(c, temp.path() / "whole");
  const std::string expected = tensors(temp.path() / "whole", 4);
  testing::FailingFiles counting;
  run(c, temp.path() / "counted", false, counting);
  const std::int64_t changes = counting.changes();
  ASSERT_GT(changes, 20);
  for (std::int64_t i = 0; i < changes; ++i) {
    const Path folder = temp.path() / "failing";
    real_files().remove_all(folder);
    testing::FailingFiles failing;
    failing.fail_at(i, testing::Failure::full_disk);
    const std::string message = error_of([&] { run(c, folder, false, failing); });
    if (failing.failed()) {
      EXPECT_NE(message.find("failing"), std::string::npos) << "change " << i << ": " << message;  // names the file
    }
    const Ran resumed = run(c, folder, true);
    EXPECT_EQ(resumed.result.steps, 4);
    ASSERT_EQ(tensors(folder, 4), expected) << "full disk at change " << i;
  }
}

TEST(TotalSteps, IsWhatComesFirst) {
  config::Train t;
  t.batch_size = 2;
  t.seq_len = 100;
  t.accumulate = 3;
  t.max_steps = 10;
  EXPECT_EQ(total_steps(t), 10);
  t.max_tokens = 601;
  EXPECT_EQ(total_steps(t), 2);
  t.max_steps = 0;
  EXPECT_EQ(total_steps(t), 2);
  t.max_steps = 1;
  EXPECT_EQ(total_steps(t), 1);
}

// `timeout` sends a signal twice, and means one.
TEST(StopSignals, TheFirstIsCaughtAndALaterOneEndsTheProcess) {
  StopSignals signals;
  EXPECT_EQ(signals.caught(), 0);
  std::raise(SIGTERM);
  std::raise(SIGTERM);
  EXPECT_EQ(signals.caught(), SIGTERM);
  const auto later = [] {
    StopSignals again;
    std::raise(SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    std::raise(SIGTERM);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(later(), ::testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace redline::train

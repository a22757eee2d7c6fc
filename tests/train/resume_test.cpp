// What resuming promises: the same bits as a run that was never stopped, whatever happened to it meanwhile. Checkpoints
// are written while training goes on: it waits for none of them but the last, and a save that fails costs no step.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "io/checkpoint_folder.h"
#include "io/json.h"
#include "io/new_folder.h"
#include "io/safetensors.h"
#include "testing/failing_files.h"
#include "testing/temp_folder.h"
#include "testing/transfer_windows.h"
#include "train/memory_advice.h"
#include "train/run_folder.h"
#include "train/tiny_run.h"

namespace redline::train {
namespace {

// Changes one bit of a file, that far into it.
void flip(const Path& path, double share) {
  std::string bytes = real_files().read(path);
  char& byte = bytes[static_cast<std::size_t>(share * static_cast<double>(bytes.size()))];
  byte = static_cast<char>(byte ^ 1);
  real_files().replace(path, bytes);
}

TEST(Resume, AnyPackingOfAStreamResumesToTheSameBitsWithOtherWorkers) {
  testing::TempFolder temp;
  std::string lines;
  for (int i = 0; i < 90; ++i)
    lines += fmt::format("{{\"text\": \"{} {}\"}}\n", i, std::string(static_cast<std::size_t>(i * 7 % 100), 'a'));
  real_files().replace(temp.path() / "a.jsonl", lines);
  for (const std::string packing : {"pack", "stream", "bucket", "pad"}) {
    const auto config = [&](std::string workers) {
      return tiny_run({"train.max_steps=7", "train.eval_every=0", "checkpoint.every=100", "data.packing=" + packing,
                       "data.train=" + (temp.path() / "a.jsonl").string(), "data.tokenizer=bytes",
                       "data.long_documents=truncate", "data.workers=" + workers, "data.prefetch=2"});
    };
    const Ran whole = run(config("0"), temp.path() / packing);
    std::vector<double> seen;
    Ran part;
    for (int i = 0; i < 7; ++i) {
      part = run(config(i % 2 ? "3" : "1"), temp.path() / (packing + " in parts"), true, real_files(), i < 6);
      ASSERT_EQ(part.seen.steps.size(), 1u);
      seen.push_back(part.seen.steps[0].loss);
    }
    EXPECT_EQ(seen, losses(whole.seen)) << packing;
    EXPECT_EQ(tensors(temp.path() / packing, 7), tensors(temp.path() / (packing + " in parts"), 7)) << packing;
    ASSERT_TRUE(whole.seen.steps.back().truncated_tokens.has_value());
    EXPECT_GT(*whole.seen.steps.back().truncated_tokens, 0);
    EXPECT_EQ(part.seen.steps.back().truncated_tokens, whole.seen.steps.back().truncated_tokens) << packing;
    EXPECT_TRUE(any_has(whole.seen.notes, "data.long_documents dropped ")) << packing;
  }
}

TEST(Resume, AFinishedRunHasNothingLeftToDo) {
  testing::TempFolder temp;
  const config::Config c = tiny_run({"train.max_steps=5"});
  run(c, temp.path());
  const std::string before = tensors(temp.path(), 5);
  real_files().create_folders(temp / "checkpoints/step_00000003.partial");  // a kill while it was removed
  const Ran again = run(c, temp.path(), true);
  EXPECT_FALSE(real_files().exists(temp / "checkpoints/step_00000003.partial"));
  EXPECT_EQ(again.result.outcome, Outcome::already_finished);
  EXPECT_TRUE(again.seen.steps.empty());
  EXPECT_EQ(tensors(temp.path(), 5), before);
}

// Each checkpoint knows what it is of: also for a run that has no step left, whose tensors are not read.
TEST(Resume, ARunWithoutItsConfigurationIsStillWhatItsCheckpointsSay) {
  testing::TempFolder temp;
  run(tiny_run({"train.max_steps=2"}), temp.path());
  real_files().remove_all(temp.path() / "config.toml");
  const auto refused = [&](const std::vector<std::string>& overrides) {
    return error_of([&] { run(tiny_run(overrides), temp.path(), true); });
  };
  const std::string checkpoint = (temp.path() / "checkpoints/step_00000002").string();
  for (const char* steps : {"train.max_steps=2", "train.max_steps=4"}) {
    const std::string model = refused({steps, "model.ffn=64"});
    EXPECT_EQ(model.find(checkpoint + " was made with model.ffn = 48, not 64"), 0u) << model;
    const std::string batch = refused({steps, "train.batch_size=4"});
    EXPECT_EQ(batch.find(checkpoint + " was made with train.batch_size = 2, not 4"), 0u) << batch;
  }
  EXPECT_FALSE(real_files().exists(temp.path() / "config.toml"));
  EXPECT_EQ(run(tiny_run({"train.max_steps=2"}), temp.path(), true).result.outcome, Outcome::already_finished);
  EXPECT_EQ(run(tiny_run({"train.max_steps=4"}), temp.path(), true).result.steps, 4);
}

TEST(Resume, ARunsConfigurationThatCannotBeUsedIsNamed) {
  testing::TempFolder temp;
  run(tiny_run({"train.max_steps=2"}), temp.path());
  const Path path = temp.path() / "config.toml", copy = temp.path() / "checkpoints/step_00000002/config.toml";
  for (const char* text :
       {"", "[model]\nlayers = 0\n"}) {  // a rule that no line of it breaks, and one that a line does
    real_files().replace(path, text);
    const std::string message = error_of([&] { read_run_config(real_files(), temp.path()); });
    EXPECT_EQ(message.find(path.string() + " cannot be used ("), 0u) << message;
    EXPECT_TRUE(message.ends_with("; put its copy in its place: " + copy.string())) << message;
  }
  // A run that is given its configuration goes by the checkpoint's copy.
  EXPECT_NE(error_of([&] { run(tiny_run({"train.max_steps=4", "train.seed=1"}), temp.path(), true); }), "");
  EXPECT_EQ(run(tiny_run({"train.max_steps=4"}), temp.path(), true).result.steps, 4);
  EXPECT_EQ(read_run_config(real_files(), temp.path()).train.max_steps, 4);
}

TEST(Resume, ResumingNothingStartsFromTheBeginningAndSaysSo) {
  testing::TempFolder temp;
  const Ran ran = run(tiny_run({"train.max_steps=1"}), temp.path(), true);
  EXPECT_EQ(ran.result.steps, 1);
  ASSERT_FALSE(ran.seen.notes.empty());
  EXPECT_TRUE(says(ran.seen.notes[0], {"from the beginning"}));
}

TEST(Resume, WhatAResumeWasToldTheNextOneKnows) {
  testing::TempFolder temp;
  run(tiny_run({"train.max_steps=2"}), temp.path());
  run(tiny_run({"train.max_steps=4", "optim.lr=5e-3"}), temp.path(), true);
  const config::Config kept = read_run_config(real_files(), temp.path());
  EXPECT_EQ(kept.train.max_steps, 4);
  EXPECT_EQ(kept.optim.lr, 5e-3);
}

TEST(Resume, CheckpointsThatCannotBeReadAreNotOverwritten) {
  testing::TempFolder temp;
  run(tiny_run({"train.max_steps=5"}), temp.path());
  const Path manifest = temp.path() / "checkpoints/step_00000005" / io::kManifest;
  std::string text = real_files().read(manifest);
  text.replace(text.find("\"format\": 1"), 11, "\"format\": 9");
  real_files().replace(manifest, text);
  const std::string message = error_of([&] { run(tiny_run({"train.max_steps=6"}), temp.path(), true); });
  EXPECT_TRUE(says(message, {"none of the checkpoints"}));
  EXPECT_TRUE(real_files().exists(manifest));
}

TEST(Resume, OtherDataThanTheCheckpointsIsRefused) {
  testing::TempFolder temp;
  const Path text = temp.path() / "text";
  real_files().replace(text, std::string(3000, 'a'));
  const config::Config c = tiny_run({"train.max_steps=2", "data.train=" + text.string()});
  run(c, temp.path() / "run");
  real_files().replace(text, std::string(3000, 'b'));
  config::Config longer = c;
  longer.train.max_steps = 4;
  const std::string message = error_of([&] { run(longer, temp.path() / "run", true); });
  EXPECT_TRUE(says(message, {"is not what"}));
}

TEST(Resume, AStateOfBeforePiecesWerePutInOrderIsKnownAsSuch) {
  testing::TempFolder temp;
  run(tiny_run({"train.max_steps=2"}), temp.path() / "run");
  const Path folder = temp.path() / "run/checkpoints" / io::checkpoint_name(2);
  EXPECT_EQ(read_loader_state(real_files(), folder).order, data::LoaderState::kOrder);
  std::string state = real_files().read(folder / "state.json");
  const std::string order = fmt::format("\"order\":{},", data::LoaderState::kOrder);
  ASSERT_NE(state.find(order), std::string::npos) << state;
  state.erase(state.find(order), order.size());
  real_files().replace(folder / "state.json", state);
  EXPECT_EQ(read_loader_state(real_files(), folder).order, 1);
}

TEST(Resume, DamagedCheckpointsArePassedOverAndTheRunEndsTheSame) {
  testing::TempFolder temp;
  const config::Config c = tiny_run({"train.max_steps=15", "optim.schedule=constant"});
  run(c, temp.path() / "whole");
  const std::string expected = tensors(temp.path() / "whole", 15);
  // The run as it was after ten steps; then the newest of its two checkpoints is damaged.
  const Path ten = temp.path() / "ten";
  run(tiny_run({"train.max_steps=10", "optim.schedule=constant"}), ten);
  for (const char* damage : {"truncate", "flip", "flip weights", "flip header", "remove", "no manifest",
                             "empty manifest", "no optimizer in the manifest", "pipe"}) {
    const Path folder = temp.path() / damage;
    std::filesystem::copy(ten, folder, std::filesystem::copy_options::recursive);
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
    if (damage == std::string("pipe")) {  // no process writes to it, and the run does not wait
      real_files().remove_all(newest / io::kManifest);
      ASSERT_EQ(::mkfifo((newest / io::kManifest).c_str(), 0600), 0);
    }
    if (damage == std::string("flip")) flip(victim, 0.5);
    if (damage == std::string("flip weights")) flip(newest / "model.safetensors", 0.5);
    if (damage == std::string("flip header")) flip(victim, 0.001);  // found before its hash is known
    const Ran resumed = run(c, folder, true);
    EXPECT_EQ(resumed.seen.steps.front().step, 6) << damage;  // from the checkpoint of step 5
    ASSERT_EQ(resumed.seen.warnings.size(), 1u) << damage;
    EXPECT_TRUE(says(resumed.seen.warnings[0], {"step_00000010"}));
    const std::string& warning = resumed.seen.warnings[0];
    const bool changed = warning.find("safetensors has changed: its hash is not the one in") != warning.npos;
    EXPECT_EQ(changed, std::string(damage).starts_with("flip")) << warning;
    EXPECT_TRUE(warning.ends_with("; that of step 5 is taken instead")) << warning;
    EXPECT_EQ(tensors(folder, 15), expected) << damage;
  }
}

// What a resume says of its settings is about the checkpoint that it takes, and is said once.
TEST(Resume, ADamagedCheckpointsChangesAreNotTold) {
  testing::TempFolder temp;
  run(tiny_run({"train.max_steps=10", "optim.schedule=constant"}), temp.path());
  flip(temp / "checkpoints/step_00000010/optimizer.safetensors", 0.5);
  const config::Config other =
      tiny_run({"train.max_steps=12", "optim.schedule=constant", "optim.beta2=0.5", "train.seed=3"});
  const Ran resumed = go_on(other, temp.path(), true);
  EXPECT_EQ(resumed.seen.steps.front().step, 6);
  const auto telling = [&](std::string_view what) {
    return std::ranges::count_if(resumed.seen.notes, [&](const auto& note) { return says(note, what); });
  };
  EXPECT_EQ(telling("resuming with optim.beta2 = 0.5 "), 1);
  EXPECT_EQ(telling("kept: parameters"), 1);
  EXPECT_EQ(telling("kept: parameters, moments, step 5"), 1);
}

// A wrong hash is known when all of a file has gone to the device: the checkpoint before takes the place of it.
TEST(Resume, WhatWentToADeviceOfADamagedCheckpointIsReplaced) {
  testing::TempFolder temp;
  const config::Config c = tiny_run({"train.max_steps=6"});
  run(c, temp.path() / "whole");
  const Path folder = temp.path() / "run";
  for (const bool resume : {false, true}) run(c, folder, resume, real_files(), true);  // a step and a checkpoint each
  flip(folder / "checkpoints/step_00000002/optimizer.safetensors", 0.5);
  testing::LateDevice device(2);
  const Ran rest = run_on(device, {}, c, folder, true);
  EXPECT_EQ(rest.seen.warnings.size(), 1u);
  EXPECT_EQ(rest.seen.steps.front().step, 2);
  EXPECT_EQ(device.windows_sent, 2 * 2);  // weights and moments, of both checkpoints
  EXPECT_EQ(device.under_way, 0);
  EXPECT_EQ(tensors(folder, 6), tensors(temp.path() / "whole", 6));
}

// No tensors are loaded for a run that has no steps left, and still it is not done when what it ended with is gone.
TEST(Resume, AFinishedRunWhoseLastCheckpointIsDamagedGoesOnFromTheOneBefore) {
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
  TrainOptions options = options_for(tiny_run({"train.max_steps=6"}), folder, {&observer});
  options.resume = true;
  return options;
}

TEST(Resume, TellsHowMuchOfACheckpointIsLoaded) {
  testing::TempFolder temp;
  run(tiny_run({"train.max_steps=5"}), temp.path());
  std::vector<std::uint64_t> done, of;
  Hears heard(
      [&](const Loading& e) {
        done.push_back(e.bytes);
        of.push_back(e.of);
      },
      [&](const Started&) { EXPECT_FALSE(done.empty()); });
  device::CpuDevice device(2);
  const TrainOptions options = one_step_more(temp.path(), heard);
  train(options, device, real_files());
  const Path folder = temp.path() / "checkpoints/step_00000005";
  const std::uint64_t all =
      real_files().size(folder / "model.safetensors") + real_files().size(folder / "optimizer.safetensors");
  ASSERT_GE(done.size(), 2u);
  EXPECT_TRUE(std::ranges::is_sorted(done));
  EXPECT_EQ(done.back(), all);
  for (const std::uint64_t bytes : of) EXPECT_EQ(bytes, all);

  // A run that has no steps left reads its last checkpoint as well, to see that it is whole.
  done.clear();
  of.clear();
  EXPECT_EQ(train(options, device, real_files()).outcome, Outcome::already_finished);
  ASSERT_GE(done.size(), 2u);
  EXPECT_EQ(done.front(), 0u);
  EXPECT_EQ(done.back(), of.back());
  EXPECT_GT(of.back(), all);  // and the other files
}

TEST(Resume, ASignalWhileWeightsAreLoadedEndsItAndNothingIsWritten) {
  testing::TempFolder temp;
  run(tiny_run({"train.max_steps=5"}), temp.path());
  StopFlag stop = 0;
  std::string said;
  Hears stopper([&](const Loading&) { stop = SIGINT; }, [&](const Note& e) { said = e.text; },
                [](const Started&) { ADD_FAILURE() << "went on"; });
  device::CpuDevice device(2);
  TrainOptions options = one_step_more(temp.path(), stopper);
  options.stop = &stop;
  EXPECT_EQ(train(options, device, real_files()).outcome, Outcome::stopped);
  EXPECT_TRUE(says(said, {"signal 2", "nothing was written"}));
  EXPECT_FALSE(real_files().exists(temp.path() / "checkpoints/step_00000006"));
  EXPECT_EQ(run(options.config, temp.path(), true).result.outcome, Outcome::finished);
}

// What happens to a folder, or to the clock, while a run is at its step 7. The run looks after every step.
struct Meddler final : Observer {
  std::function<void()> meddle;
  testing::Recorder seen;
  void on(const Event& event) override {
    seen.on(event);
    hear(event, [&](const Stepped& e) {
      if (e.step == 7) meddle();
    });
  }
};

TrainOptions meddled_with(Meddler& meddler, const Path& folder) {
  TrainOptions options = options_for(tiny_run({"train.max_steps=12", "checkpoint.every=5"}), folder, {&meddler});
  options.between_looks = 0;
  return options;
}

// A save may put files there meanwhile.
void remove_under_way(const Path& folder) {
  std::error_code busy;
  do std::filesystem::remove_all(folder, busy);
  while (std::filesystem::exists(folder));
}

TEST(RunFolder, ThatIsDeletedUnderTheRunIsToldMadeAnewAndSavedTo) {
  testing::TempFolder temp;
  const Path folder = temp.path() / "run";
  Meddler meddler;
  meddler.meddle = [&] { remove_under_way(folder); };
  TrainOptions options = meddled_with(meddler, folder);
  device::CpuDevice device(2);
  EXPECT_EQ(train(options, device, real_files()).outcome, Outcome::finished);
  EXPECT_TRUE(any_has(meddler.seen.warnings, "was deleted or moved under the run"));
  // A save that was under way meanwhile may have gone with the folder, and is told.
  std::vector<std::int64_t> saves = meddler.seen.saves;
  for (const std::int64_t step : {5, 8, 10})
    if (any_has(meddler.seen.warnings, fmt::format("the checkpoint of step {} was not written", step)))
      saves.push_back(step);
  std::ranges::sort(saves);
  EXPECT_EQ(saves, (std::vector<std::int64_t>{5, 8, 10, 12}));
  options.config.train.max_steps = 13;
  EXPECT_EQ(run(options.config, folder, true).seen.steps.size(), 1u);
}

// Also by the save that comes next, before the run has looked: what is saved can be resumed.
TEST(RunFolder, ThatIsDeletedBeforeASaveIsMadeAnewByIt) {
  testing::TempFolder temp;
  const Path folder = temp.path() / "run";
  Meddler meddler;
  meddler.meddle = [&] { remove_under_way(folder); };
  TrainOptions options = meddled_with(meddler, folder);
  options.config.checkpoint.every = 1;
  device::CpuDevice device(2);
  EXPECT_EQ(train(options, device, real_files()).outcome, Outcome::finished);
  EXPECT_TRUE(any_has(meddler.seen.warnings, "was deleted or moved under the run"));
  EXPECT_TRUE(real_files().exists(folder / "config.toml"));
  EXPECT_TRUE(real_files().exists(folder / "tokenizer/tokenizer.json"));
  options.config.train.max_steps = 13;
  EXPECT_EQ(run(options.config, folder, true).seen.steps.size(), 1u);
}

TEST(RunFolder, AStrayFolderBesideTheTokenizerIsNobodysConcern) {
  testing::TempFolder temp;
  real_files().create_folders(temp / "tokenizer/.ipynb_checkpoints");
  real_files().replace(temp / "tokenizer/old.model", "of another tokenizer");
  keep_tokenizer(real_files(), temp.path(), {{"tokenizer.json", "{}"}});
  EXPECT_EQ(real_files().read(temp / "tokenizer/tokenizer.json"), "{}");
  EXPECT_FALSE(real_files().exists(temp / "tokenizer/old.model"));
}

TEST(RunFolder, WhoseLockIsDeletedIsLockedAgain) {
  testing::TempFolder temp;
  Meddler meddler;
  meddler.meddle = [&] { real_files().remove_all(temp / ".lock"); };
  bool locked = false;
  Hears trying([&](const Stepped& e) {
    if (e.step == 9) locked = io::FileLock(temp / ".lock", io::FileLock::IfBusy::leave).busy();
  });
  TrainOptions options = meddled_with(meddler, temp.path());
  options.observers.push_back(&trying);
  device::CpuDevice device(2);
  EXPECT_EQ(train(options, device, real_files()).outcome, Outcome::finished);
  ASSERT_EQ(meddler.seen.warnings.size(), 1u);
  EXPECT_TRUE(says(meddler.seen.warnings[0], {"it is locked again"}));
  EXPECT_TRUE(locked);
  EXPECT_EQ(meddler.seen.saves, (std::vector<std::int64_t>{5, 10, 12}));
}

TEST(RunFolder, ThatAnotherProcessHasTakenEndsTheRun) {
  testing::TempFolder temp;
  std::optional<io::FileLock> another;
  Meddler meddler;
  meddler.meddle = [&] {
    real_files().remove_all(temp / ".lock");
    another.emplace(temp / ".lock", io::FileLock::IfBusy::leave);
  };
  device::CpuDevice device(2);
  const std::string message = error_of([&] { train(meddled_with(meddler, temp.path()), device, real_files()); });
  EXPECT_TRUE(says(message, {"was deleted under the run", "another process is training into this folder"}));
}

TEST(RunFolder, AClockThatJumpsIsTold) {
  static double ahead;
  ahead = 0;
  testing::TempFolder temp;
  Meddler meddler;
  meddler.meddle = [] { ahead = -3600; };
  TrainOptions options = meddled_with(meddler, temp.path());
  options.wall_clock = [] { return unix_seconds() + ahead; };
  device::CpuDevice device(2);
  EXPECT_EQ(train(options, device, real_files()).outcome, Outcome::finished);
  ASSERT_EQ(meddler.seen.warnings.size(), 1u);
  EXPECT_TRUE(meddler.seen.warnings[0].starts_with("the machine's clock jumped by -3600 s"))
      << meddler.seen.warnings[0];
}

TEST(Resume, AFullDiskAtAnyWriteLeavesARunThatResumesToTheSameBits) {
  testing::TempFolder temp;
  const config::Config c = tiny_run({"train.max_steps=2", "checkpoint.every=1", "train.eval_every=0"});
  run(c, temp.path() / "whole");
  const std::string expected = tensors(temp.path() / "whole", 2);
  testing::FailingFiles counting;
  run(c, temp.path() / "counted", false, counting);
  const std::int64_t changes = counting.changes();
  ASSERT_GT(changes, 20);
  int told = 0;                                    // where it was a checkpoint that did not fit
  for (std::int64_t i = 0; i < changes; i += 3) {  // all of them take three times as long
    const Path folder = temp.path() / "failing";
    real_files().remove_all(folder);
    testing::FailingFiles failing;
    failing.fail_at(i, testing::Failure::full_disk);
    const std::string message = error_of([&] { run(c, folder, false, failing); });
    if (message.find("KiB and ") != message.npos && message.find("delete what is not needed there") != message.npos)
      ++told;
    if (failing.failed()) {
      EXPECT_NE(message.find("failing"), std::string::npos) << "change " << i << ": " << message;  // names the file
    }
    testing::FailingFiles without_syncs;
    const Ran resumed = run(c, folder, true, without_syncs);
    EXPECT_EQ(resumed.result.steps, 2);
    ASSERT_EQ(tensors(folder, 2), expected) << "full disk at change " << i;
  }
  EXPECT_GT(told, 3);
}

config::Config saving_run(std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.begin(), {"train.max_steps=12", "checkpoint.every=4", "checkpoint.keep=9",
                                       "train.eval_every=0", "log.sinks=[]"});
  return tiny_run(overrides);
}

bool is_weights(const Path& path) { return path.filename() == "model.safetensors"; }

// The disk takes until two more steps were told: nothing but a thread beside the steps can wait for that.
TEST(Saving, GoesOnBesideTheSteps) {
  testing::TempFolder temp;
  std::atomic<int> steps = 0;
  std::vector<Saved> saves;
  Hears seen([&](const Stepped&) { ++steps; }, [&](const Saved& e) { saves.push_back(e); });
  testing::FailingFiles files;
  std::atomic<bool> waits = true;
  files.before_change = [&](const Path& path) {
    if (!is_weights(path) || !waits.exchange(false)) return;
    for (int i = 0; i < 2000 && steps < 6; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_GE(steps, 6) << "training stood still";
  };
  device::CpuDevice device(2);
  EXPECT_EQ(train(options_for(saving_run(), temp.path() / "slow", {&seen}), device, files).outcome, Outcome::finished);
  ASSERT_EQ(saves.size(), 3u);
  EXPECT_EQ(saves[0].step, 4);
  EXPECT_LT(saves[0].held, saves[0].seconds);

  // The same bits as those of a disk that was never slow.
  run(saving_run(), temp.path() / "fast");
  for (const std::int64_t step : {4, 8, 12})
    EXPECT_EQ(tensors(temp.path() / "slow", step), tensors(temp.path() / "fast", step)) << step;
}

TEST(Saving, IsTheSameWhereverTheSnapshotLies) {
  testing::TempFolder temp;
  run(saving_run(), temp.path() / "shared");
  const std::int64_t needed = memory_needed(saving_run(), device::Kind::cpu);
  for (const char* where : {"device", "host", "nowhere"}) {
    testing::LateDevice device(2);
    const Path folder = temp.path() / where;
    if (std::string(where) != "device") device.room = needed;         // and no byte for the copy
    if (std::string(where) == "nowhere") device.most_on_host = 4096;  // enough for results
    std::vector<std::int64_t> held;
    Hears seen([&](const Stepped&) {
      if (held.empty()) device.most_under_way = 0;  // windows that the drawn weights went through
      held.push_back(device.own_bytes());
    });
    const Ran ran = run_on(device, options_for({}, {}, {&seen}), saving_run(), folder);
    EXPECT_EQ(ran.result.outcome, Outcome::finished);
    EXPECT_EQ(any_has(ran.seen.warnings, "training stands still while checkpoints are written"),
              std::string(where) == "nowhere");
    EXPECT_EQ(held.front() > needed, std::string(where) == "device") << "it is there from the start";
    EXPECT_EQ(held.front(), held.back());
    EXPECT_EQ(device.most_under_way > 0, std::string(where) != "host") << "the host's memory needs no windows";
    for (const std::int64_t step : {4, 8, 12})
      EXPECT_EQ(tensors(folder, step), tensors(temp.path() / "shared", step)) << where << ", step " << step;
  }
}

TEST(Saving, WaitsForTheSaveBeforeAndSaysSo) {
  testing::TempFolder temp;
  std::atomic<int> steps = 0;
  Hears seen([&](const Stepped&) { ++steps; });
  testing::FailingFiles files;
  std::atomic<bool> slow = true;
  files.before_change = [&](const Path& path) {  // until training has begun to wait, and then some
    if (!is_weights(path) || !slow.exchange(false)) return;
    for (int i = 0; i < 2000 && steps < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  };
  device::CpuDevice device(2);
  const Ran ran = run_on(device, options_for({}, {}, {&seen}), saving_run({"checkpoint.every=1", "train.max_steps=4"}),
                         temp.path() / "a", false, files);
  EXPECT_EQ(ran.seen.saves, (std::vector<std::int64_t>{1, 2, 3, 4}));
  ASSERT_FALSE(ran.seen.slow_disks.empty());
  EXPECT_TRUE(ran.seen.slow_disks[0].starts_with("the checkpoint of step 1 was still being written"));
}

// The second of three checkpoints meets a full disk, on which there is room again later.
TEST(Saving, ThatFailsIsToldAndTriedAgainAtTheNext) {
  testing::TempFolder temp;
  testing::FailingFiles files;
  std::atomic<int> saves = 0;
  files.before_change = [&](const Path& path) {
    if (path.string().ends_with("step_00000008.partial") && saves++ == 0) files.fail_at(1, testing::Failure::once);
  };
  const Ran ran = run(saving_run(), temp.path() / "a", false, files);
  EXPECT_EQ(ran.result.outcome, Outcome::finished);
  EXPECT_EQ(ran.seen.steps.size(), 12u);
  EXPECT_EQ(ran.seen.saves, (std::vector<std::int64_t>{4, 12}));
  EXPECT_TRUE(any_has(ran.seen.warnings, "the checkpoint of step 8 was not written: "));
  EXPECT_TRUE(any_has(ran.seen.warnings, "Training goes on"));
}

// From step 8 on the disk is full: the run is told so by its last checkpoint, or by that of step 8 where that was asked
// for, which training learns of when the next one is due at the latest.
TEST(Saving, ThatFailsAtTheEndOrWhereAskedEndsTheRun) {
  for (const bool stop : {false, true}) {
    testing::TempFolder temp;
    testing::FailingFiles files;
    std::atomic<int> saves = 0;
    files.before_change = [&](const Path& path) {
      if (path.string().ends_with("step_00000008.partial") && saves++ == 0)
        files.fail_at(1, testing::Failure::full_disk);
    };
    Recorder seen;
    const TrainOptions options = options_for(
        saving_run({"train.max_steps=16", stop ? "checkpoint.on_error=stop" : "checkpoint.on_error=continue"}),
        temp.path() / "a", {&seen});
    device::CpuDevice device(2);
    const std::string message = error_of([&] { train(options, device, files); });
    EXPECT_TRUE(says(message, {"delete what is not needed there"}));
    EXPECT_EQ(seen.saves, std::vector<std::int64_t>{4});
    EXPECT_EQ(seen.steps.size() < 16, stop) << seen.steps.size();
    const Ran resumed = run(options.config, options.folder, true);
    EXPECT_EQ(resumed.result.steps, 16);
    run(saving_run({"train.max_steps=16"}), temp.path() / "whole");
    EXPECT_EQ(tensors(options.folder, 16), tensors(temp.path() / "whole", 16));
  }
}

// A signal comes while a save is under way: that one ends whole, and the state of the stop is saved after it.
TEST(Saving, AStopWaitsForTheSaveUnderWayAndMakesTheLast) {
  testing::TempFolder temp;
  StopFlag stop = 0;
  testing::FailingFiles files;
  files.before_change = [&](const Path& path) {
    if (!is_weights(path) || stop != 0) return;
    stop = SIGTERM;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  };
  device::CpuDevice device(2);
  const Ran ran = run_on(device, options_for({}, {}, {}, &stop), saving_run(), temp.path() / "a", false, files);
  EXPECT_EQ(ran.result.outcome, Outcome::stopped);
  ASSERT_GE(ran.seen.saves.size(), 1u);
  EXPECT_EQ(ran.seen.saves.front(), 4);
  EXPECT_EQ(ran.seen.saves.back(), ran.result.steps);
  const Ran resumed = run(saving_run(), temp.path() / "a", true);
  run(saving_run(), temp.path() / "whole");
  EXPECT_EQ(tensors(temp.path() / "a", 12), tensors(temp.path() / "whole", 12));
}

}  // namespace
}  // namespace redline::train

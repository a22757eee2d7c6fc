// A mapped file that is cut short while it is read: one sentence that names it, exit status 2, and a run that
// goes on once it is back.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <future>
#include <thread>

#include "cli/program.h"
#include "cli/signals.h"
#include "io/checkpoint_folder.h"

namespace redline::cli {
namespace {

constexpr std::uint64_t kBytes = 1 << 20;

class LostFile : public ProgramTest {
 protected:
  LostFile() {
    ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
    write("some data.bin", std::string(kBytes, 'a'));
  }
  const Path path_ = folder_ / "some data.bin";
};

int last_byte(std::span<const std::byte> bytes) {
  const volatile std::byte* last = &bytes.back();
  return static_cast<int>(*last);
}

TEST_F(LostFile, IsNamedWhicheverThreadReads) {
  const auto lose = [&](bool in_a_thread) {
    tell_of_lost_files();
    const MappedFile before(path_), file(path_), after(path_);
    real_files().truncate(path_, kBytes / 2);
    if (in_a_thread) std::thread([&] { last_byte(file.bytes()); }).join();
    std::exit(last_byte(file.bytes()));
  };
  const std::string sentence =
      "^redline: error: .*/some data.bin: cannot read: it became shorter meanwhile; bring it "
      "back whole; a run goes on from its last checkpoint with --resume\n$";
  for (const bool in_a_thread : {false, true})
    EXPECT_EXIT(lose(in_a_thread), ::testing::ExitedWithCode(kBadInput), sentence) << in_a_thread;
}

TEST_F(LostFile, ItsNameSteersNoTerminal) {
  const Path steering = folder_ / "a\x1b[2J";
  std::filesystem::copy(path_, steering);
  const auto lose = [&] {
    tell_of_lost_files();
    const MappedFile file(steering);
    real_files().truncate(steering, kBytes / 2);
    std::exit(last_byte(file.bytes()));
  };
  EXPECT_EXIT(lose(), ::testing::ExitedWithCode(kBadInput), R"(^redline: error: .*/a\\x1b\[2J: cannot read: )");
}

TEST_F(LostFile, OtherCausesDoWhatTheyDoWithoutUs) {
  const auto sent = [] {
    tell_of_lost_files();
    std::raise(SIGBUS);
  };
  EXPECT_EXIT(sent(), ::testing::KilledBySignal(SIGBUS), "^$");
  const auto not_mapped_by_us = [&] {
    tell_of_lost_files();
    const int fd = ::open(path_.c_str(), O_RDONLY);
    void* private_pages = ::mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE, fd, 0);
    real_files().truncate(path_, 0);
    std::exit(last_byte({static_cast<const std::byte*>(private_pages), kBytes}));
  };
  EXPECT_EXIT(not_mapped_by_us(), ::testing::KilledBySignal(SIGBUS), "^$");
}

TEST_F(LostFile, ARunGoesOnWhenItIsBack) {
  std::string ids;  // of nanoGPT's kind: documents of 200 tokens in uint16
  for (int i = 0; i < 200'000; ++i) {
    const int id = i % 200 == 0 ? 256 : i * 7919 % 256;
    ids += {static_cast<char>(id & 255), static_cast<char>(id >> 8)};
  }
  write("train.bin", ids);
  write("eval.bin", ids.substr(0, 40'000));
  const Words words = words_of(
      "train model.layers=1 model.hidden=16 model.heads=1 model.head_dim=16 model.ffn=16 model.vocab=300 "
      "train.batch_size=8 train.seq_len=512 train.accumulate=1 train.eval_every=0 train.eval_batches=1 "
      "checkpoint.every=1 data.train=train.bin data.eval=eval.bin data.tokenizer=bytes data.workers=0 --out run "
      "--device cpu");
  const auto train = [&](const Words& more) { return run(words + more); };
  auto running = std::async(std::launch::async, [&] { return train({"train.max_steps=100000"}); });
  while (!exists("run/checkpoints/step_00000002") &&
         running.wait_for(std::chrono::milliseconds(2)) == std::future_status::timeout) {
  }
  real_files().truncate(folder_ / "train.bin", 0);
  const Ran ran = running.get();
  EXPECT_EQ(ran.status, kBadInput) << ran.err;
  EXPECT_TRUE(says(ran.err, "train.bin: cannot read: it became shorter"));
  const auto saved = io::newest_whole_checkpoint(real_files(), folder_ / "run/checkpoints", [](const auto&) {});
  ASSERT_TRUE(saved);
  write("train.bin", ids);
  const Ran resumed = train({fmt::format("train.max_steps={}", saved->step + 2), "--resume"});
  EXPECT_EQ(resumed.status, kDone) << resumed.err;
  EXPECT_TRUE(says(resumed.out, fmt::format("resuming after step {} ", saved->step)));
}

}  // namespace
}  // namespace redline::cli

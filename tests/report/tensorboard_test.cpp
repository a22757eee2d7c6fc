// Event files are framed and encoded as TensorBoard's readers expect. tests/interop holds them against the real one.
#include "report/tensorboard.h"

#include <gtest/gtest.h>

#include <cstring>

#include "report/small_run.h"
#include "testing/failing_files.h"
#include "testing/temp_folder.h"

namespace redline::report {
namespace {

using tensorboard::crc32c;

// Messages of a file; every check sum is looked at.
std::vector<std::string> messages(const std::string& bytes) {
  const auto at = [&]<class T>(std::size_t place, T) {
    T value;
    std::memcpy(&value, bytes.data() + place, sizeof value);
    return value;
  };
  const auto masked = [](std::uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u; };
  std::vector<std::string> out;
  for (std::size_t place = 0; place < bytes.size();) {
    const auto size = at(place, std::uint64_t{});
    EXPECT_EQ(at(place + 8, std::uint32_t{}), masked(crc32c(bytes.substr(place, 8))));
    out.push_back(bytes.substr(place + 12, size));
    EXPECT_EQ(at(place + 12 + size, std::uint32_t{}), masked(crc32c(out.back())));
    place += 16 + size;
  }
  return out;
}

bool holds(const std::string& message, std::string_view part) { return message.find(part) != message.npos; }

TEST(Crc32c, IsThatOfTheStandard) {  // RFC 3720, B.4, and the check value of the catalogue
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  EXPECT_EQ(crc32c(""), 0u);
}

TEST(TensorboardEvents, AScalarIsTheseBytes) {
  const tensorboard::Scalar scalar{"a", 1.0};
  const std::string message = tensorboard::scalars_event(0.0, 300, {&scalar, 1});
  const std::string expected = std::string("\x09\0\0\0\0\0\0\0\0", 9) +  // wall_time
                               "\x10\xAC\x02" +                          // step 300
                               "\x2A\x0A" + "\x0A\x08" +
                               "\x0A\x01"
                               "a" +                                // summary, value, tag
                               std::string("\x15\0\0\x80\x3F", 5);  // simple_value 1.0f
  EXPECT_EQ(message, expected);
}

std::vector<std::string> event_files(const Path& folder) {
  std::vector<std::string> names;
  for (const std::string& name : real_files().list(folder))
    if (name.starts_with("events.out.tfevents.")) names.push_back(name);
  return names;
}

TEST(TensorboardFile, ASessionIsAFileThatComesAfterTheOnesBefore) {
  const testing::TempFolder folder;
  for (const std::int64_t first : {0, 4, 4}) {  // within one second
    TensorboardFile file(real_files(), folder.path());
    file.on(train::Started{SmallRun(1000, first).header});
    file.on(train::Stepped{small_step(first + 1)});
    file.on(train::Finished{""});
  }
  const std::vector<std::string> names = event_files(folder.path());
  ASSERT_EQ(names.size(), 3u);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::vector<std::string> all = messages(real_files().read(folder / names[i]));
    ASSERT_EQ(all.size(), 6u) << names[i];
    EXPECT_TRUE(holds(all[0], "brain.Event:2"));
    EXPECT_TRUE(holds(all[1], std::string("\x3A\x02\x08\x01", 4)));  // session_log { status: START }
    EXPECT_TRUE(holds(all[1], i == 0 ? std::string("\x10\0", 2) : std::string("\x10\x05", 2)))
        << "what was written from this step on is void";
    EXPECT_TRUE(holds(all[3], "batch_size = ")) << "the configuration";
    EXPECT_TRUE(holds(all[4], "train/loss"));
    EXPECT_TRUE(holds(all[5], "speed/step_ms_spread"));
  }
}

TEST(TensorboardFile, ARunWithNothingLeftToDoWritesNothing) {
  const testing::TempFolder folder;
  TensorboardFile file(real_files(), folder.path());
  file.on(train::Started{SmallRun(1000, 1000).header});
  file.on(train::Finished{"all done already"});
  EXPECT_TRUE(event_files(folder.path()).empty());
}

TEST(TensorboardFile, SamplesAreTextsOfATagAPrompt) {
  const testing::TempFolder folder;
  TensorboardFile file(real_files(), folder.path());
  file.on(train::Started{SmallRun(1000, 0).header});
  file.on(train::Sampled{7, {{"Once", " upon\n``` a \xFFtime"}, {"", "alone"}}});
  const std::vector<std::string> all = messages(real_files().read(folder / event_files(folder.path())[0]));
  ASSERT_EQ(all.size(), 6u);
  EXPECT_TRUE(holds(all[4], "samples/1"));
  EXPECT_TRUE(holds(all[4], "```\nOnce\n```\n\n````\n upon\n``` a \xEF\xBF\xBDtime\n````\n"));
  EXPECT_TRUE(holds(all[5], "samples/2"));
}

// Half a record would end what a reader sees: a step that comes again follows whole ones, once.
TEST(TensorboardFile, AStepThatFailedMayBeToldAgain) {
  const testing::TempFolder folder;
  testing::FailingFiles files;
  TensorboardFile file(files, folder.path());
  file.on(train::Started{SmallRun(1000, 0).header});
  for (std::int64_t step = 1; step <= 100; ++step) {
    files.fail_at(0, testing::Failure::once);
    EXPECT_THROW(file.on(train::Stepped{small_step(step)}), MachineError);
    file.on(train::Stepped{small_step(step)});
  }
  const std::vector<std::string> all = messages(real_files().read(folder / event_files(folder.path())[0]));
  EXPECT_EQ(all.size(), 4u + 100 + 1);
  EXPECT_TRUE(holds(all.back(), "speed/step_ms_spread"));
}

TEST(TensorboardFile, AWriteThatFailsIsTold) {
  const testing::TempFolder folder;
  testing::FailingFiles files;
  TensorboardFile file(files, folder.path());
  file.on(train::Started{SmallRun(1000, 0).header});
  files.fail_at(0, testing::Failure::full_disk);
  EXPECT_THROW(file.on(train::Stepped{small_step(1)}), MachineError);
}

}  // namespace
}  // namespace redline::report

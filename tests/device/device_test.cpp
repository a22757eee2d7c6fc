// The CPU device's memory is aligned, counted and freed; a device that cannot train here says why.
#include "device/device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/host_pages.h"
#include "testing/device_contract.h"
#include "testing/says.h"
#include "testing/temp_folder.h"
#include "testing/transfer_windows.h"

namespace redline::device {
namespace {

TEST(CpuDevice, SpansAreTimedWhereTheWorkEnds) {
  CpuDevice cpu(2);
  testing::expect_spans_by_the_devices_clock(cpu);
}

TEST(CpuDevice, WhatGoesThroughWindowsArrives) {
  CpuDevice cpu(1);
  testing::LateDevice late(1);
  for (CpuDevice* device : {&cpu, static_cast<CpuDevice*>(&late)}) {
    testing::expect_uploads_arrive(*device);
    testing::expect_downloads_arrive(*device);
  }
  EXPECT_EQ(late.under_way, 0);
}

TEST(CpuDevice, CopiesBesideTheWorkKeepTheirPlace) {
  CpuDevice cpu(2);
  testing::LateDevice late(2);
  for (CpuDevice* device : {&cpu, static_cast<CpuDevice*>(&late)}) {
    testing::expect_lane_keeps_its_place(*device);
  }
  testing::expect_host_memory_or_nothing(cpu);
}

// What a container allows its processes less what they have taken, but for files that give way, in the files of both
// kinds of containers; where none sets a limit there is nothing.
TEST(ContainerMemory, IsWhatIsLeftOfItsLimit) {
  const testing::TempFolder folder;
  EXPECT_FALSE(container_memory(folder.path()));
  const auto write = [&](const char* name, const std::string& text) {
    std::filesystem::create_directories((folder.path() / name).parent_path());
    std::ofstream(folder.path() / name) << text;
  };
  write("memory/memory.limit_in_bytes", "9000\n");
  write("memory/memory.usage_in_bytes", "8000\n");
  write("memory/memory.stat", "inactive_file 1\ntotal_inactive_file 2500\n");
  EXPECT_EQ(container_memory(folder.path())->left, 9000 - (8000 - 2500));
  write("memory.max", "max\n");
  EXPECT_EQ(container_memory(folder.path())->limit, 9000);
  write("memory.max", "5000\n");
  EXPECT_EQ(container_memory(folder.path())->left, 5000) << "nothing is said of what was taken";
  write("memory.current", "4000\n");
  write("memory.stat", "anon 7\ninactive_file 100\nactive_file 50\n");
  EXPECT_EQ(container_memory(folder.path())->limit, 5000);
  EXPECT_EQ(container_memory(folder.path())->left, 5000 - (4000 - 100));
  write("memory.current", "6000\n");
  EXPECT_EQ(container_memory(folder.path())->left, 0);
}

// Pages are there after all threads touched them, whatever their number, and they are zeros.
TEST(HostPages, AreThereOnceTheyWereTouched) {
  constexpr std::int64_t kBytes = (std::int64_t{33} << 20) + 3, kPage = 4096;
  for (const int threads : {1, 3}) {
    const HostPages pages = map_pages(kBytes);
    ASSERT_TRUE(pages);
    const std::int64_t mapped = pages.get_deleter().bytes;
    EXPECT_EQ(mapped, std::int64_t{34} << 20);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pages.get()) % kHugePage, 0u);
    std::vector<unsigned char> there(static_cast<std::size_t>(mapped / kPage));
    const auto resident = [&] {
      EXPECT_EQ(::mincore(pages.get(), static_cast<std::size_t>(mapped), there.data()), 0);
      return std::ranges::count_if(there, [](unsigned char c) { return (c & 1) != 0; });
    };
    EXPECT_EQ(resident(), 0);
    ThreadPool pool(threads);
    touch(pages, pool);
    EXPECT_EQ(resident(), mapped / kPage);
    EXPECT_TRUE(testing::all_are({pages.get(), static_cast<std::size_t>(mapped)}, 0));
  }
  EXPECT_FALSE(map_pages(std::int64_t{1} << 55));
}

TEST(CpuDevice, BuffersAreAlignedCountedAndFreed) {
  CpuDevice cpu(1);
  EXPECT_EQ(cpu.allocated_bytes(), 0);
  {
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::int64_t total = 0;
    for (const std::int64_t bytes : {0, 1, 255, 256, 257, 1'000'003}) {
      buffers.push_back(cpu.allocate(bytes));
      total += bytes;
      EXPECT_EQ(buffers.back()->bytes(), bytes);
      EXPECT_NE(buffers.back()->data(), nullptr);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffers.back()->data()) % 256, 0u);
      EXPECT_EQ(cpu.allocated_bytes(), total);
    }
  }
  EXPECT_EQ(cpu.allocated_bytes(), 0);
}

TEST(CpuDevice, ABufferThatSaysSoIsZero) {
  CpuDevice cpu(1);
  for (int i = 0; i < 3; ++i) {  // the second may be given what the first has dirtied
    const auto buffer = cpu.allocate((std::int64_t{9} << 20) + 1);
    ASSERT_TRUE(buffer->is_zero());
    EXPECT_TRUE(
        std::all_of(buffer->data(), buffer->data() + buffer->bytes(), [](std::byte b) { return b == std::byte{0}; }));
    cpu.fill(buffer->data(), 0xAB, buffer->bytes());
  }
  EXPECT_FALSE(cpu.allocate(1000)->is_zero());
}

TEST(CpuDevice, MemoryThatIsNotThereIsAMachineError) {
  CpuDevice cpu(1);
  EXPECT_THROW(cpu.allocate(std::int64_t{1} << 59), MachineError);
  EXPECT_THROW(cpu.allocate(-1), MachineError);
  EXPECT_EQ(cpu.allocated_bytes(), 0);
}

TEST(CpuDevice, CopiesAndFills) {
  CpuDevice cpu(1);
  const auto buffer = cpu.allocate(8);
  const std::array<std::uint8_t, 4> in = {1, 2, 3, 4};
  cpu.fill(buffer->data(), 0xAB, 8);
  cpu.copy_in(buffer->data() + 2, in.data(), 4);
  cpu.copy_in(buffer->data(), nullptr, 0);
  cpu.wait();
  std::array<std::uint8_t, 8> out{};
  cpu.copy_out(out.data(), buffer->data(), 8);
  EXPECT_EQ(out, (std::array<std::uint8_t, 8>{0xAB, 0xAB, 1, 2, 3, 4, 0xAB, 0xAB}));
}

TEST(CpuDevice, SaysWhatItIs) {
  CpuDevice cpu(2);
  EXPECT_EQ(cpu.kind(), Kind::cpu);
  EXPECT_TRUE(cpu.name().starts_with("CPU (2 threads, ")) << cpu.name();
  EXPECT_EQ(cpu.pool().threads(), 2);
  EXPECT_GT(cpu.memory_bytes(), std::int64_t{1} << 26);
}

// Neither what others have of the machine nor what this device has given away.
TEST(CpuDevice, WhatIsInUseIsNotAvailable) {
  CpuDevice cpu(1);
  const std::int64_t before = cpu.available_bytes(), taken = before / 4;
  EXPECT_GT(before, 0);
  EXPECT_LE(before, cpu.memory_bytes());
  const std::unique_ptr<Buffer> buffer = cpu.allocate(taken);
  EXPECT_LE(cpu.available_bytes(), cpu.memory_bytes() - taken);
}

TEST(OpenDevice, CpuAlwaysWorks) { EXPECT_EQ(open_device("cpu")->kind(), Kind::cpu); }

TEST(OpenDevice, AutoNeverFails) {
  const auto device = open_device("auto");
  ASSERT_NE(device, nullptr);
  EXPECT_TRUE(device->kind() == Kind::cpu || cuda_status().problem.empty());
}

TEST(OpenDevice, CudaThatCannotTrainSaysWhyAndWhatToUse) {
  const CudaStatus status = cuda_status();
  if (status.problem.empty()) GTEST_SKIP() << "a card can train here";
  EXPECT_TRUE(testing::says(testing::error_of([] { open_device("cuda"); }), {"--device cuda", status.problem}));
}

TEST(OpenDevice, AnUnknownNameIsAUserError) {
  EXPECT_TRUE(testing::says(testing::error_of([] { open_device("tpu"); }), {"--device tpu"}));
  EXPECT_TRUE(testing::says(testing::error_of([] { open_device(""); }), {"cpu, cuda or auto"}));
}

TEST(CudaStatus, IsAnAnswerAndNeverAnError) {
  const CudaStatus status = cuda_status();
  EXPECT_TRUE(status.built || status.cards.empty());
  EXPECT_TRUE(!status.cards.empty() || !status.problem.empty());
  for (const CudaCard& card : status.cards) {
    EXPECT_FALSE(card.name.empty());
    EXPECT_GT(card.memory_bytes, 0);
  }
}

TEST(HasCodeFor, AnArchitecture) {
  EXPECT_TRUE(has_code_for("90a", 9, 0));
  EXPECT_FALSE(has_code_for("90a", 8, 0));
  EXPECT_FALSE(has_code_for("90a", 10, 0));  // no PTX of 90a runs on another card
  EXPECT_TRUE(has_code_for("80", 8, 9));
  EXPECT_TRUE(has_code_for("80", 12, 0));
  EXPECT_FALSE(has_code_for("86", 8, 0));
  EXPECT_TRUE(has_code_for("80-real", 8, 6));
  EXPECT_FALSE(has_code_for("80-real", 9, 0));
  EXPECT_TRUE(has_code_for("90a 80", 8, 0));
  EXPECT_TRUE(has_code_for("native", 8, 6));
  EXPECT_TRUE(has_code_for("all-major", 8, 6));
  EXPECT_FALSE(has_code_for("", 9, 0));
}

}  // namespace
}  // namespace redline::device

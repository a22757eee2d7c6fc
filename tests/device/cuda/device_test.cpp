// A card's memory is aligned, counted and freed; copies keep their order, those of a lane beside the work, and the
// host's arrays are its own again at once, whatever their size.
#include "device/cuda/device.h"

#include <cstring>
#include <vector>

#include "base/random.h"
#include "testing/device_contract.h"
#include "testing/on_card.h"
#include "testing/transfer_windows.h"

namespace redline::device {
namespace {

using Card = testing::OnCard<>;

TEST_F(Card, BuffersAreAlignedCountedAndFreed) {
  EXPECT_EQ(card().allocated_bytes(), 0);
  {
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::int64_t total = 0;
    for (const std::int64_t bytes : {0, 1, 255, 256, 257, 1'000'003}) {
      buffers.push_back(card().allocate(bytes));
      total += bytes;
      EXPECT_EQ(buffers.back()->bytes(), bytes);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffers.back()->data()) % 256, 0u);
      EXPECT_EQ(card().allocated_bytes(), total);
    }
  }
  EXPECT_EQ(card().allocated_bytes(), 0);
}

TEST_F(Card, SpansAreTimedByTheCard) { testing::expect_spans_by_the_devices_clock(card()); }

TEST_F(Card, WhatGoesThroughWindowsArrives) {
  testing::expect_uploads_arrive(card());
  testing::expect_downloads_arrive(card());
}

TEST_F(Card, CopiesOfALaneKeepTheirPlace) { testing::expect_lane_keeps_its_place(card()); }

// From whole and odd addresses, of indices beyond 32 bits, in whole fours and not.
TEST_F(Card, DrawsTheNumbersOfTheHost) {
  CpuDevice host(2);
  constexpr std::int64_t kMost = 1'000'003;
  const auto memory = card().allocate((kMost + 2) * 4);
  for (const DType type : {DType::f32, DType::bf16})
    for (const std::int64_t n : {std::int64_t{1}, std::int64_t{6}, std::int64_t{1024}, kMost})
      for (const std::int64_t skipped : {0, 1}) {
        const auto element = static_cast<std::int64_t>(size_of(type)), bytes = n * element;
        std::vector<std::byte> want(static_cast<std::size_t>(bytes)), ours(want.size());
        for (const float std : {0.02f, 0.0f}) {
          const Normals from{Random(5, 77), (std::uint64_t{1} << 32) - 100, std == 0 ? 1.0f : 0.25f, std};
          std::byte* const place = memory->data() + skipped * element;
          card().fill(memory->data(), 7, memory->bytes());
          card().draw(from, {place, type, {n}});
          card().copy_out(ours.data(), place, bytes);
          host.draw(from, {want.data(), type, {n}});
          EXPECT_TRUE(ours == want) << redline::name_of(type) << ' ' << n << ' ' << skipped << ' ' << std;
          std::byte behind{};
          card().copy_out(&behind, place + bytes, 1);
          EXPECT_EQ(behind, std::byte{7});
        }
      }
}

TEST_F(Card, PinsMemoryOfTheHostOrSaysThatThereIsNone) { testing::expect_host_memory_or_nothing(card()); }

// Neither waits for the other: a copy is there while work that was given before the copy began still runs.
TEST_F(Card, CopiesOfALaneGoOnBesideTheWork) {
  const auto memory = card().allocate(testing::kLaneBytes), other = card().allocate(std::int64_t{1} << 30);
  const auto host = card().try_allocate_host(testing::kLaneBytes);
  ASSERT_TRUE(host);
  const auto lane = card().make_lane();
  card().fill(memory->data(), 5, testing::kLaneBytes);
  lane->follow();
  for (int i = 0; i < 200; ++i) card().fill(other->data(), 1, other->bytes());  // a quarter of a ms each, or longer
  lane->copy(host->data(), memory->data(), testing::kLaneBytes);
  lane->mark(0);
  lane->wait(0);
  EXPECT_EQ(cudaStreamQuery(card().launch().stream), cudaErrorNotReady);
  EXPECT_TRUE(testing::all_are({host->data(), static_cast<std::size_t>(testing::kLaneBytes)}, 5));
  card().wait();
}

TEST_F(Card, MemoryThatIsNotThereIsAMachineErrorAndHarmsNothing) {
  EXPECT_THROW(card().allocate(std::int64_t{1} << 50), MachineError);
  EXPECT_EQ(card().allocated_bytes(), 0);
  EXPECT_EQ(card().allocate(64)->bytes(), 64);
  card().wait();
}

TEST_F(Card, IsWhatOpenDeviceGives) {
  for (const char* which : {"cuda", "auto"}) {
    const auto device = open_device(which);
    EXPECT_EQ(device->kind(), Kind::cuda) << which;
    EXPECT_EQ(device->name(), cuda_status().cards.front().name);
    EXPECT_GT(device->memory_bytes(), 0);
  }
}

// Far more than the ring of pinned memory holds, in pieces of all sizes, from one host array that is overwritten at
// once.
TEST_F(Card, UploadsOfAnySizeArriveInOrder) {
  constexpr std::int64_t kBytes = 40 << 20, kLargest = 3 << 20;
  const Random random(3, 1);
  const auto buffer = card().allocate(kBytes);
  std::vector<std::uint8_t> piece(static_cast<std::size_t>(kLargest)), expected(static_cast<std::size_t>(kBytes));
  card().fill(buffer->data(), 0, kBytes);
  for (std::uint64_t i = 0; i < 300; ++i) {
    const auto words = random.words(i);
    const auto size = static_cast<std::size_t>(words[0] % (i % 7 == 0 ? kLargest : 100'000) + 1);
    const std::size_t at = words[1] % (expected.size() - size);
    std::memset(piece.data(), static_cast<int>(i % 251 + 1), size);
    std::memcpy(expected.data() + at, piece.data(), size);
    card().copy_in(buffer->data() + at, piece.data(), static_cast<std::int64_t>(size));
  }
  std::vector<std::uint8_t> out(expected.size());
  card().copy_out(out.data(), buffer->data(), kBytes);
  EXPECT_TRUE(out == expected);
}

}  // namespace
}  // namespace redline::device

// A snapshot holds the state of the moment at which it was taken, wherever it lies.
#include <gtest/gtest.h>

#include "model/state_files.h"
#include "model/tiny.h"
#include "testing/transfer_windows.h"

namespace redline::model {
namespace {

using testing::all_bytes;

LoweringOptions options() {
  LoweringOptions o;
  o.batch = {1, 4, 1};
  return o;
}

void fill(Engine& engine, int byte) {
  for (const Tensor& array : engine.state()) std::fill_n(array.as<std::uint8_t>(), array.bytes(), byte);
}

struct Place {
  bool on_device, on_host;
  Snapshot::Where where;
};

class SnapshotIn : public ::testing::TestWithParam<Place> {};

TEST_P(SnapshotIn, IsTheStateAsItWasThoughUpdatesFollow) {
  testing::LateDevice device(2);
  Engine engine(testing::tiny_model("llama", true), options(), device);
  device.has_room = GetParam().on_device;
  device.host_has_room = GetParam().on_host;
  Snapshot snapshot(engine);
  ASSERT_EQ(snapshot.where(), GetParam().where);
  for (const int byte : {1, 2}) {  // the second time it takes the place of the first
    fill(engine, byte);
    snapshot.take();
    snapshot.hold_update();
    if (snapshot.where() != Snapshot::Where::nowhere) fill(engine, 9);  // the update
    const std::vector<std::byte> read =
        all_bytes(engine, [&](const auto& tensors, const TakeBytes& take) { snapshot.read(tensors, take); });
    const std::vector<std::byte> live = all_bytes(
        engine, [&](const auto& tensors, const TakeBytes& take) { read_state(tensors, engine.state(), device, take); });
    EXPECT_EQ(read.size(), live.size());
    EXPECT_TRUE(std::ranges::all_of(read, [&](std::byte b) { return b == static_cast<std::byte>(byte); }));
  }
}

INSTANTIATE_TEST_SUITE_P(Places, SnapshotIn,
                         ::testing::Values(Place{true, true, Snapshot::Where::device},
                                           Place{false, true, Snapshot::Where::host},
                                           Place{false, false, Snapshot::Where::nowhere}));

// The copy is under way until somebody waits for it: an update that did not would be seen in it.
TEST(Snapshot, OfACardInTheHostsMemoryIsCopiedBesideTheWork) {
  testing::LateDevice device(2);
  Engine engine(testing::tiny_model("llama", true), options(), device);
  device.has_room = false;
  Snapshot snapshot(engine);
  fill(engine, 1);
  snapshot.take();
  fill(engine, 9);
  const std::vector<std::byte> read =
      all_bytes(engine, [&](const auto& tensors, const TakeBytes& take) { snapshot.read(tensors, take); });
  EXPECT_TRUE(std::ranges::all_of(read, [](std::byte b) { return b == std::byte{9}; }));
}

TEST(Snapshot, IsOneCopyInMemoryThatIsTheHosts) {
  device::CpuDevice device(2);
  Engine engine(testing::tiny_model("llama", true), options(), device);
  const std::int64_t before = device.allocated_bytes();
  Snapshot snapshot(engine);
  EXPECT_EQ(snapshot.where(), Snapshot::Where::host);
  EXPECT_EQ(snapshot.bytes(), snapshot_bytes(engine.lowered().state));
  EXPECT_EQ(device.allocated_bytes(), before + snapshot.bytes());
  EXPECT_GE(snapshot.bytes(), state_bytes(engine.lowered().state));
}

}  // namespace
}  // namespace redline::model

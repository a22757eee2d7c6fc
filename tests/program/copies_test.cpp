// Values in the host's memory, and the copies that bring them to the device and back: each memory has its own arena,
// copies run beside other nodes, and the checker sees a node that would compute with what lies elsewhere.
#include "program/copies.h"

#include <gtest/gtest.h>

#include "testing/check_plan.h"
#include "testing/memory.h"
#include "testing/says.h"
#include "testing/transfer_windows.h"

namespace redline::program {
namespace {

constexpr std::int64_t kElements = 1000;

TEST(Copies, EachMemoryHasItsOwnArena) {
  const Streamed s(kElements);
  EXPECT_EQ(check_plan(s.set), std::vector<std::string>{});
  const std::int64_t one = aligned(kElements * 4);
  EXPECT_EQ(s.set.memory.host.total, one);
  EXPECT_EQ(s.set.memory.host.by_role[static_cast<int>(Role::moment)], one);
  EXPECT_EQ(s.set.memory.device.persistent, one) << "the input alone";
  EXPECT_EQ(s.set.memory.device.by_role[static_cast<int>(Role::moment)], 0);
  EXPECT_EQ(s.set.memory.device.total, 4 * one) << "the input, what came, the sum and the work beside it";
  device::CpuDevice device(1);
  const auto executor = make_executor(s.set, device);
  EXPECT_EQ(executor->arena_bytes(), s.set.memory.device.total);
}

TEST(Copies, StateOnTheHostIsUpdatedThroughTheDevice) {
  device::CpuDevice device(2);
  EXPECT_EQ(Streamed(kElements).after(7, device), std::vector<float>(kElements, 7.0f));
}

TEST(Copies, LanesFollowTheDirection) {
  const Streamed s(kElements);
  std::vector<Lane> lanes;
  for (const Node& node : s.set.programs[0].nodes)
    if (node.when != When::now) lanes.push_back(node.lane);
  EXPECT_EQ(lanes, (std::vector{Lane::to_device, Lane::to_device, Lane::to_host, Lane::to_host}));
}

TEST(Copies, OneThatIsUnderWayFromProgramToProgramIsOfTheMoment) {
  device::CpuDevice device(2);
  for (const Memory memory : {Memory::host, Memory::device})
    EXPECT_EQ(Kept(memory).rounds(3, device), (std::vector<float>{0, 2, 2, 4, 4, 6}));
}

TEST(Copies, TheMemoryOfSnapshotsStandsBehindTheRestAndIsTouched) {
  const Kept kept(Memory::host);
  EXPECT_EQ(check_plan(kept.set), std::vector<std::string>{});
  EXPECT_EQ(kept.set.memory.host.total, 0);
  EXPECT_EQ(kept.set.memory.host.snapshot, 4 * Kept::kElements);
  EXPECT_EQ(Kept(Memory::device).set.memory.device.total, kept.set.memory.device.total);
  device::CpuDevice device(1);
  const std::int64_t before = testing::status_bytes("VmRSS:");
  const auto executor = make_executor(kept.set, device);
  EXPECT_EQ(executor->arena_bytes(), kept.set.memory.device.total);
  EXPECT_EQ(device.allocated_bytes(), kept.set.memory.device.total + 4 * Kept::kElements);
  if (before > 0) {
    EXPECT_GE(testing::status_bytes("VmRSS:") - before, 4 * Kept::kElements * 9 / 10);
  }
}

TEST(Copies, TheMemoryOfSnapshotsMayComeLate) {
  const Kept kept(Memory::host);
  const std::int64_t arena = kept.set.memory.device.total, snapshot = 4 * Kept::kElements;
  testing::LateDevice device(2);
  {
    const auto executor = make_executor(kept.set, device, {.late_snapshots = true});
    EXPECT_EQ(device.host_bytes, 0);
    EXPECT_EQ(device.allocated_bytes(), arena);
    EXPECT_TRUE(testing::says(testing::error_of<MachineError>([&] { executor->run("copy"); }),
                              {"copy", "before has_snapshots()"}));
    EXPECT_TRUE(testing::says(testing::error_of<MachineError>([&] { executor->tensor(kept.copy); }),
                              {"copy", "has no memory"}));
    executor->begin_snapshots();
    executor->begin_snapshots();  // they are made once
    EXPECT_TRUE(executor->has_snapshots());
    EXPECT_TRUE(executor->has_snapshots());
    EXPECT_EQ(device.host_bytes, snapshot);
    EXPECT_NO_THROW(executor->run("copy"));
    make_executor(kept.set, device, {.late_snapshots = true})->begin_snapshots();  // one that goes meanwhile
  }
  EXPECT_EQ(device.held_bytes, 0);
  EXPECT_EQ(device.allocated_bytes(), 0);
  for (const Memory memory : {Memory::host, Memory::device})
    EXPECT_EQ(Kept(memory).rounds(3, device, {.late_snapshots = true}), (std::vector<float>{0, 2, 2, 4, 4, 6}));
}

TEST(Copies, ProgramsRunWhereTheHostHasNoRoomForLateSnapshots) {
  const Kept kept(Memory::host);
  testing::LateDevice device(2);
  device.most_on_host = 4 * Kept::kElements - 1;
  EXPECT_THROW(make_executor(kept.set, device), MachineError);
  const auto executor = make_executor(kept.set, device, {.late_snapshots = true});
  EXPECT_FALSE(executor->has_snapshots());
  EXPECT_FALSE(executor->has_snapshots());
  EXPECT_THROW(executor->run("copy"), MachineError);
  EXPECT_NO_THROW(executor->run("change"));
}

TEST(Copies, AViewLiesWhereItsOwnerDoes) {
  ProgramSet set;
  Writer w(set);
  const ValueId whole = w.declare("whole", {64}, DType::f32, Role::moment, Memory::host);
  EXPECT_EQ(set.at(w.view(whole, "half", {32}, 128)).memory, Memory::host);
}

TEST(Copies, ANodeThatComputesWithTheHostsMemoryIsAFault) {
  ProgramSet set;
  Writer w(set);
  const ValueId far = w.declare("far", {kElements}, DType::f32, Role::moment);
  const ValueId out = w.declare("out", {kElements}, DType::f32, Role::output);
  w.begin("step", {});
  w.append(ops::Add<ValueId>{far, far, out}, Phase::update, "sum");
  set.at(far).memory = Memory::host;
  w.end();
  plan_memory(set);
  device::CpuDevice device(1);
  EXPECT_THROW(make_executor(set, device), MachineError);
  const std::vector<std::string> faults = check_plan(set);
  ASSERT_EQ(faults.size(), 2u);
  EXPECT_TRUE(testing::says(faults[0], {"sum", "far", "host"})) << faults[0];
}

}  // namespace
}  // namespace redline::program

// Whatever the solver says fits trains to the same bits as the run would without limits, and takes the bytes that it
// said; it moves nothing where everything fits, and changes no type.
#include "perf/fit.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "base/random.h"
#include "data/batch.h"
#include "model/engine.h"
#include "model/state_files.h"
#include "perf/batch_size.h"
#include "perf/machines.h"
#include "perf/plan.h"
#include "testing/check_plan.h"
#include "testing/says.h"

namespace redline::perf {
namespace {

using testing::says;

constexpr std::int64_t kRoomy = std::int64_t{1} << 40;

Machine machine_with_host() {
  Machine m = cpu_machine();
  m.host_rate = 1e10;
  return m;
}

// A small model of some family, optimizer and precision.
config::Config random_config(std::uint64_t key) {
  const Random random(11, key);
  auto one_of = [&, at = std::uint64_t{0}](std::vector<std::string> words) mutable {
    return words[random.below(at++, words.size())];
  };
  const bool muon = one_of({"adamw", "muon"}) == "muon";
  config::Config c = config_of(
      "quick", {"model.family=" + one_of({"llama", "qwen3", "olmo2"}), "model.layers=" + one_of({"2", "3", "5"}),
                "model.hidden=" + one_of({"32", "48"}), "model.heads=2", "model.kv_heads=1", "model.head_dim=16",
                "model.ffn=" + one_of({"64", "112"}), "model.vocab=96", "model.tied=" + one_of({"true", "false"}),
                "train.batch_size=" + one_of({"1", "4"}), "train.seq_len=32", "train.accumulate=" + one_of({"1", "2"}),
                "data.max_segments=4", fmt::format("optim.name={}", muon ? "muon" : "adamw"),
                fmt::format("optim.muon_beta2={}", muon ? one_of({"0", "0.9"}) : "0"),
                "optim.moments=" + one_of(muon ? std::vector<std::string>{"fp32", "bf16"}
                                               : std::vector<std::string>{"fp32", "bf16", "8bit"}),
                "train.average=" + one_of({"none", "ema"}), "precision.matmul=" + one_of({"bf16", "fp8"}),
                "kernels.logits_rows=32"});
  if (c.train.average == "none") c.precision.masters = one_of({"fp32", "bf16"});
  return c;
}

struct Trained {
  std::vector<std::byte> state;
  double loss = 0;
  std::int64_t arena = 0;
};
Trained train_two_steps(const config::Config& config) {
  device::CpuDevice device(2);
  model::Engine engine(config.model, model::lowering_options(config, device::Kind::cpu), device);
  EXPECT_EQ(program::check_plan(engine.programs()), std::vector<std::string>{});
  engine.initialise(1);
  const data::BatchShape shape = model::batch_shape(config);
  for (std::int64_t step = 0; step < 2; ++step) {
    double pairs = 0;
    for (std::int64_t micro = 0; micro < config.train.accumulate; ++micro) {
      const Random random(5, static_cast<std::uint64_t>(10 * step + micro));
      data::Batch batch(shape);
      batch.clear();
      for (const std::size_t length : {std::size_t{9}, std::size_t{21}}) {
        std::vector<std::int32_t> tokens(length);
        for (std::size_t i = 0; i < length; ++i) tokens[i] = static_cast<std::int32_t>(random.below(i, 96));
        EXPECT_TRUE(batch.append(tokens));
      }
      engine.upload(batch);
      engine.set_step(static_cast<std::uint64_t>(step), 1e-2, 0, 0);
      engine.executor().poison_transients();
      engine.micro_step(micro == 0, micro + 1 == config.train.accumulate);
      pairs += static_cast<double>(batch.pairs);
    }
    engine.set_step(static_cast<std::uint64_t>(step), 1e-2, pairs, 0);
    engine.executor().poison_transients();
    engine.update();
    engine.post_result();
    EXPECT_EQ(engine.take_result().update.finite, 1.0f);
  }
  Trained t{{}, engine.evaluate(), engine.executor().arena_bytes()};
  const optim::StateTable& table = engine.lowered().state;
  for (const std::string& file : model::state_files(table))
    model::read_state(model::state_tensors(table, engine.layout(), file), engine.state(), device,
                      [&](std::span<const std::byte> b) { t.state.insert(t.state.end(), b.begin(), b.end()); });
  return t;
}

// A host that has no room for all moments holds those of some layers, and others are computed again beside.
TEST(Fit, AsManyMomentsMoveAsTheHostHolds) {
  const config::Config c =
      config_of("llama-1.36b", {"precision.matmul=bf16", "optim.name=adamw", "train.batch_size=8"});
  const Room room{std::int64_t{24} << 30, std::int64_t{4} << 30};
  const Fit fit = find_fit(c, machine_named("h200"), room);
  ASSERT_FALSE(fit.ways.empty()) << in_words(fit, c);
  EXPECT_TRUE(room.holds(fit.ways[0].device, fit.ways[0].host));
  EXPECT_GT(fit.ways[0].placement.moment_layers, 0);
  EXPECT_FALSE(fit.ways[0].placement.recompute.empty());
}

// What fits nowhere as its rows are long may fit with shorter ones, as bytes move; what was asked to be computed again
// and need not be makes a way faster.
TEST(Fit, ShorterRowsAndFasterWaysAreTold) {
  const Machine machine = machine_named("rtx-4090");
  const config::Config rows = config_of(
      "llama-1.36b", {"train.seq_len=65536", "train.batch_size=1", "train.accumulate=3", "memory.limit=6GiB"});
  const std::string told = changes_that_fit(rows, machine, room_on(rows, machine));
  EXPECT_EQ(told, "train.seq_len=32768 train.accumulate=6 would fit");
  config::Config shorter = rows;
  shorter.train.seq_len = 32768;
  shorter.train.accumulate = 6;
  EXPECT_TRUE(find_fit(shorter, machine).found());

  const config::Config again = config_of("llama-1.36b", {"train.recompute=block", "memory.limit=31GiB"});
  const Fit fit = find_fit(again, machine_named("h100"));
  ASSERT_FALSE(fit.ways.empty());
  ASSERT_LT(fit.ways[0].seconds, 0.999 * fit.asked.seconds) << "a case in which this shows nothing";
  EXPECT_TRUE(says(in_words(fit, again), {"% faster by the plan"})) << in_words(fit, again);
}

// Where all is one memory, copies that are made anew are less of it, wherever the rest lies.
TEST(Fit, WithoutCopiesARunMayFitWhereItsStateDoesNot) {
  config::Config c = config_of("llama-1.36b", {"model.layers=4", "precision.matmul=fp8", "train.batch_size=1"});
  const std::int64_t persistent =
      model::lower(c.model, model::lowering_options(c, device::Kind::cpu)).set.memory.device.persistent;
  Room room{persistent - 1, persistent - 1};
  room.together = persistent - 1;
  const Fit fit = find_fit(c, machine_with_host(), room);
  ASSERT_FALSE(fit.ways.empty()) << in_words(fit, c);
  EXPECT_TRUE(fit.ways[0].placement.copies);
}

TEST(Fit, WhateverFitsTrainsToTheSameBitsInThePlansBytes) {
  int moved = 0, again = 0, layers_moved = 0, some_moments = 0;
  for (std::uint64_t key = 0; key < 12; ++key) {
    const config::Config config = random_config(key);
    const Machine machine = machine_with_host();
    const Fit whole = find_fit(config, machine, {kRoomy, kRoomy});
    ASSERT_TRUE(whole.fits);
    EXPECT_TRUE(whole.ways.empty()) << "nothing moves where everything fits";
    const Trained want = train_two_steps(config);
    EXPECT_EQ(want.arena, whole.asked.device);
    for (const double share : {0.95, 0.55 + 0.035 * static_cast<double>(key), 0.3}) {
      const Room room{static_cast<std::int64_t>(share * static_cast<double>(want.arena)), kRoomy};
      const Fit fit = find_fit(config, machine, room);
      EXPECT_FALSE(fit.fits);
      for (std::size_t i = 1; i < fit.ways.size(); ++i) EXPECT_LE(fit.ways[i - 1].seconds, fit.ways[i].seconds);
      for (const FitWay& way : fit.ways) {
        EXPECT_TRUE(room.holds(way.device, way.host));
        EXPECT_EQ(std::ranges::count(fit.ways, way.placement, &FitWay::placement), 1) << in_words(fit, config);
      }
      if (fit.ways.empty()) continue;
      config::Config placed = config;
      placed.memory.placement = fit.ways[0].placement;
      EXPECT_EQ(config::differing_keys(placed, config), std::vector<std::string>{});
      const Trained got = train_two_steps(placed);
      EXPECT_EQ(got.arena, fit.ways[0].device);
      EXPECT_EQ(got.loss, want.loss) << key << " " << share;
      EXPECT_EQ(got.state, want.state) << key << " " << share << " " << in_words(fit, config);
      moved += placed.memory.placement.on_host();
      again += !placed.memory.placement.recompute.empty();
      some_moments += placed.memory.placement.moment_layers > 0;
      layers_moved += placed.memory.placement.gradients || placed.memory.placement.weights;
    }
  }
  EXPECT_GT(moved, 3) << "limits that are met without the host show nothing";
  EXPECT_GT(again, 1);
  EXPECT_GT(layers_moved, 3);
  EXPECT_GT(some_moments, 3);
}

TEST(Fit, TheHostsMemoryBoundsWhatMoves) {
  const config::Config config = config_of("quick", {"train.batch_size=1", "train.seq_len=64", "precision.matmul=fp8"});
  const Machine machine = machine_with_host();
  const Fit asked = find_fit(config, machine, {kRoomy, kRoomy});
  const Fit free = find_fit(config, machine, {asked.asked.device * 7 / 10, kRoomy});
  ASSERT_FALSE(free.ways.empty());
  ASSERT_GT(free.ways[0].host, 0);
  for (const FitWay& way : find_fit(config, machine, {free.room.device, free.ways[0].host - 1}).ways)
    EXPECT_LT(way.host, free.ways[0].host);
  EXPECT_TRUE(find_fit(config, machine, {free.room.device, 0}).ways.empty());
  const Room one_memory{.device = kRoomy, .host = kRoomy, .together = asked.asked.device - 1};
  for (const FitWay& way : find_fit(config, machine, one_memory).ways)
    EXPECT_LT(way.device + way.host, asked.asked.device);
}

// Eight layers of Llama-3.1-8B's shape on a card that lacks a few hundred MiB for them: a few layers are enough.
TEST(Fit, AFewLayersAreEnoughForALittle) {
  const config::Config config = config_of(
      "llama-1.36b",
      {"model.layers=8", "model.hidden=4096", "model.heads=32", "model.kv_heads=8", "model.head_dim=128",
       "model.ffn=14336", "model.vocab=128256", "model.tied=false", "train.seq_len=8192", "train.batch_size=1",
       "train.accumulate=8", "precision.matmul=fp8", "optim.moments=8bit", "optim.name=adamw", "train.recompute=none"});
  const Machine h200 = machine_named("h200");
  const Plan asked = make_plan(config, h200);
  ASSERT_TRUE(asked.fits);
  const Fit fit = find_fit(config, h200, {asked.memory.arena - (std::int64_t{600} << 20), kRoomy});
  ASSERT_FALSE(fit.ways.empty());
  EXPECT_LT(fit.ways[0].seconds, 1.06 * fit.asked.seconds);
  EXPECT_LE(fit.ways[0].placement.recompute_layers, 3);
  EXPECT_TRUE(says(in_words(fit, config), {"GiB", "slower", "next best"})) << in_words(fit, config);
  Fit slow = fit;  // hundreds of percent say less
  slow.ways[0].seconds = 3.5 * fit.asked.seconds;
  EXPECT_TRUE(says(in_words(slow, config), {"3.5 times as long by the plan (next best: "})) << in_words(slow, config);
  config::Config placed = config;
  placed.memory.placement = fit.ways[0].placement;
  const Plan plan = make_plan(placed, h200);
  EXPECT_EQ(plan.memory.arena, fit.ways[0].device);
  EXPECT_NEAR(plan.expected.step_seconds, fit.ways[0].seconds, 1e-9);
  for (const FitWay& way : fit.ways) {  // one less would not fit
    placed.memory.placement = way.placement;
    if (--placed.memory.placement.recompute_layers < 1) continue;
    EXPECT_GT(make_plan(placed, h200).memory.arena, fit.room.device) << in_words(way.placement, config);
  }
}

// What training reads in eight bits alone costs nothing to leave out, so that goes first.
TEST(Fit, CopiesThatTrainingDoesNotReadGoFirst) {
  const auto config = [](const std::string& average) {
    return config_of("llama-1.36b", {"model.layers=8", "train.seq_len=8192", "train.batch_size=1", "train.accumulate=8",
                                     "precision.matmul=fp8", "train.average=" + average});
  };
  const Machine h200 = machine_named("h200");
  const auto fit_in = [&](const config::Config& c) {
    return find_fit(c, h200, {make_plan(c, h200).memory.arena - (std::int64_t{500} << 20), kRoomy});
  };
  const Fit fit = fit_in(config("none"));
  ASSERT_FALSE(fit.ways.empty());
  EXPECT_EQ(fit.ways[0].placement, config::Placement{.copies = true});
  EXPECT_EQ(fit.ways[0].host, 0);
  EXPECT_NEAR(fit.ways[0].seconds / fit.asked.seconds, 1, 1e-3);
  EXPECT_TRUE(says(in_words(fit, config("none")), {"lose their copies in bf16, which evaluations make anew"}));
  for (const FitWay& way : fit_in(config("ema")).ways) EXPECT_FALSE(way.placement.copies);
  // So batches that fit without them count as such, with or without them.
  Machine small = h200;
  small.memory = make_plan(config("none"), h200).memory.total() - (std::int64_t{500} << 20);
  const Choice choice = choose(config("none"), small);
  ASSERT_FALSE(choice.best.empty());
  EXPECT_EQ(choice.best[0].setting, (Setting{1, 8, "none"})) << "nothing is computed again";
  EXPECT_LE(choice.best[0].memory.total(), small.memory);
  EXPECT_FALSE(make_plan(config("none"), small).fits);
}

// Moments of as few layers as are enough lie in the host's memory: what leaves the device has to come back in every
// step. A host without room for all moments has room for these.
TEST(Fit, MomentsOfAFewLayersAreEnoughForALittle) {
  const config::Config config =
      config_of("llama-1.36b", {"model.layers=8", "train.seq_len=8192", "train.batch_size=1", "train.accumulate=32",
                                "precision.matmul=bf16", "optim.name=adamw", "train.recompute=none"});
  const Machine h200 = machine_named("h200");
  const Room room{make_plan(config, h200).memory.arena - (std::int64_t{1300} << 20), kRoomy};
  const Fit fit = find_fit(config, h200, room);
  ASSERT_FALSE(fit.ways.empty());
  config::Placement few = fit.ways[0].placement;
  EXPECT_TRUE(few.moments && !few.masters && few.recompute.empty());
  EXPECT_GT(few.moment_layers, 1);
  EXPECT_LT(few.moment_layers, 8);
  EXPECT_TRUE(says(in_words(few, config), {"moments of the last", "layers lie in the host's memory"}));
  EXPECT_EQ(find_fit(config, h200, {room.device, fit.ways[0].host}).ways[0].placement, few);
  for (const FitWay& way : find_fit(config, h200, {room.device, fit.ways[0].host - 1}).ways)
    EXPECT_LT(way.host, fit.ways[0].host);
  config::Config placed = config;
  placed.memory.placement = few;
  placed.memory.placement.moment_layers = 0;
  const Plan all = make_plan(placed, h200);
  EXPECT_LT(fit.ways[0].seconds, all.expected.step_seconds);
  placed.memory.placement.moment_layers = few.moment_layers - 1;
  EXPECT_GT(make_plan(placed, h200).memory.arena, room.device);
}

// What layers keep lies in the host's memory there: more layers need more of it, and the fewest that are enough decide.
TEST(Fit, AHostsSmallRoomIsAskedForAsFewLayersAsAreEnough) {
  const config::Config config =
      config_of("llama-1.36b", {"model.layers=8", "train.seq_len=8192", "train.batch_size=1", "train.accumulate=8",
                                "precision.matmul=fp8", "optim.name=adamw", "optim.moments=8bit"});
  const Machine h200 = machine_named("h200");
  const Room room{make_plan(config, h200).memory.arena - (std::int64_t{600} << 20), kRoomy};
  const Fit roomy = find_fit(config, h200, room);
  const auto moves = [](const FitWay& way) { return way.placement.residuals && !way.placement.state_on_host(); };
  const auto way = std::ranges::find_if(roomy.ways, moves);
  ASSERT_NE(way, roomy.ways.end());
  ASSERT_LT(way->placement.recompute_layers, 6);
  for (const std::int64_t less : {0, 1}) {
    const Fit small = find_fit(config, h200, {room.device, way->host - less});
    EXPECT_EQ(std::ranges::count(small.ways, way->placement, &FitWay::placement), 1 - less);
  }
}

TEST(Fit, SaysHowMuchOfTheHostsMemoryWouldDo) {
  const config::Config config = config_of("quick", {"train.batch_size=2", "train.seq_len=64", "precision.matmul=fp8"});
  const Machine machine = machine_with_host();
  const std::int64_t asked = find_fit(config, machine, {kRoomy, kRoomy}).asked.device;
  std::set<std::int64_t> rows;
  for (std::int64_t device = asked; device > asked / 16; device = device * 3 / 4) {
    const Room none{device, 0};
    if (find_fit(config, machine, none).found()) continue;
    const std::optional<HostNeed> need = host_needed(config, machine, none);
    if (!need) {
      EXPECT_FALSE(find_fit(config, machine, {device, kRoomy}).found());
      EXPECT_FALSE(cut_that_moves(config, machine, {device, kRoomy}));
      continue;
    }
    EXPECT_TRUE(find_fit(with_setting(config, need->setting), machine, {device, need->bytes}).found());
    EXPECT_TRUE(says(in_words(*need, config, none), {"of the host's memory", "would fit (0.00 KiB are free)"}));
    rows.insert(need->setting.batch_size);
  }
  EXPECT_FALSE(rows.empty());
  config::Config limited = config;
  limited.memory.host_limit = "2MiB";
  const Room room = room_on(limited, machine);
  EXPECT_TRUE(says(in_words(HostNeed{setting_of(config), 3'000'000}, limited, room),
                   {"with 2.87 MiB of the host's memory it would fit (memory.host_limit is 2MiB)"}));
  limited.memory.fit = "none";
  EXPECT_FALSE(host_needed(limited, machine, {asked / 2, 0}));
}

TEST(Fit, ACardThatItsContextFillsHasNoRoom) {
  const config::Config config = config_of("quick");
  Machine small = machine_named("rtx-4090");
  small.memory = std::int64_t{512} << 20;
  EXPECT_EQ(room_on(config, small).device, 0);
  const Fit fit = find_fit(config, small);
  EXPECT_FALSE(fit.found());
  EXPECT_TRUE(says(in_words(fit, config), {"the driver's context alone takes all"})) << in_words(fit, config);
  const Choice choice = choose_or_relax(config, small);
  EXPECT_TRUE(says(why(choice, small), {"context alone takes 600.00 MiB", "more memory"})) << why(choice, small);
}

// A plan for this machine has what is free of the host's memory, as a run has; one for another has what it takes.
TEST(Fit, TheHostsFreeMemoryBoundsPlansForThisMachine) {
  device::CpuDevice device(1);
  Machine here = machine_of(device);
  EXPECT_GT(here.host_memory, 0);
  EXPECT_LE(here.host_memory, device.memory_bytes());
  here.host_memory = 1000;
  EXPECT_EQ(room_on(config_of("quick"), here).host, 1000);
  EXPECT_EQ(room_on(config_of("quick", {"memory.host_limit=0.5KiB"}), here).host, 512);
  EXPECT_EQ(room_on(config_of("quick"), machine_named("h200")).host, std::numeric_limits<std::int64_t>::max());
}

TEST(Fit, LimitsAreOfTheConfiguration) {
  const config::Config config = config_of("quick", {"memory.limit=3MiB", "memory.host_limit=1.5GiB"});
  const Room room = room_on(config, machine_named("h200"));
  EXPECT_EQ(room.device, std::int64_t{3} << 20);
  EXPECT_EQ(room.host, std::int64_t{3} << 29);
  EXPECT_FALSE(make_plan(config, machine_named("h200")).fits);
  EXPECT_TRUE(make_plan(config_of("quick", {}), machine_named("h200")).fits);
  device::CpuDevice device(1);
  EXPECT_EQ(room_on(config, device, 1).device, std::int64_t{3} << 20);
}

TEST(Fit, RanksShareWhatTheirMachineHasAndPlaceForTheLeastOfThem) {
  device::CpuDevice device(1);
  const config::Config config = config_of("quick");
  const Room alone = room_on(config, device, 1), shared = room_on(config, device, 1000);
  EXPECT_LT(100 * shared.device, alone.device);
  EXPECT_LT(100 * shared.host, alone.host);
  EXPECT_LT(100 * shared.together, alone.together);
  const Room least = least_of(std::vector<Room>{{.device = 30, .host = 50}, {.device = 40, .host = 20}});
  EXPECT_EQ(least.device, 30);
  EXPECT_EQ(least.host, 20);
  EXPECT_EQ(least.together, 0);
}

TEST(Fit, NoneMovesNothingAndSaysWhatAutoWould) {
  config::Config config = config_of("quick", {"memory.limit=16MiB", "memory.fit=none"});
  device::CpuDevice device(1);
  EXPECT_EQ(place_to_fit(config, device, room_on(config, device, 1)), "");
  EXPECT_EQ(config.memory.placement, config::Placement{});
}

// Rank 0 decides for all of them, among which another one may have larger matrices.
TEST(Fit, OnRanksItIsAboutTheOneThatNeedsMost) {
  config::Config config =
      config_of("quick", {"optim.name=muon", "train.batch_size=1", "train.seq_len=32", "model.layers=5",
                          "model.hidden=128", "model.heads=4", "model.head_dim=32", "model.ffn=256"});
  const dist::Sharing first{.rank = 0, .ranks = 4, .mode = Mode::fsdp};
  const auto arena = [&](int rank) {
    model::LoweringOptions o = model::lowering_options(config, device::Kind::cpu);
    o.sharing = first;
    o.sharing.rank = rank;
    return model::lower(config.model, o).set.memory.device.total;
  };
  const std::int64_t of_first = arena(0), most = std::max({of_first, arena(1), arena(2), arena(3)});
  ASSERT_LT(of_first + 4096, most);
  device::CpuDevice device(1);
  config.memory.limit = fmt::format("{}KiB", (of_first + most) / 2048);
  EXPECT_TRUE(says(place_to_fit(config, device, room_on(config, device, 1), first), {"memory.fit = auto"}));
  EXPECT_NE(config.memory.placement, config::Placement{});
  for (int rank = 0; rank < 4; ++rank) EXPECT_LE(arena(rank), (of_first + most) / 2048 * 1024) << rank;
  config.memory.limit = fmt::format("{}KiB", most / 1024 + 1);
  EXPECT_EQ(place_to_fit(config, device, room_on(config, device, 1), first), "");
}

// Shards are uneven that end where matrices do, or have moments of several types; and so is what an update, or a layer
// that comes from the host, takes beside them.
TEST(Fit, WhatFitsOnRanksFitsOnEachOfThem) {
  int layers_moved = 0, uneven = 0;
  for (std::uint64_t key = 0; key < 6; ++key) {
    config::Config config = random_config(key);
    config.precision.masters = "fp32";
    if (key == 0) config.optim.name = "adamw", config.optim.moments = "8bit";
    const int ranks = 2 + static_cast<int>(key % 3);
    for (const Mode mode : {Mode::zero1, Mode::fsdp}) {
      const dist::Sharing sharing{.ranks = ranks, .mode = mode};
      const Machine machine = machine_with_host();
      const std::int64_t asked = find_fit(config, machine, {kRoomy, kRoomy}, sharing).asked.device;
      EXPECT_EQ(train::memory_needed(config, device::Kind::cpu, sharing), asked);
      for (const double share : {0.999, 0.6, 0.4}) {
        const Room room{static_cast<std::int64_t>(share * static_cast<double>(asked)), kRoomy};
        const Fit fit = find_fit(config, machine, room, sharing);
        EXPECT_FALSE(fit.fits);
        EXPECT_EQ(fit.room.device, room.device);
        EXPECT_EQ(fit.asked.device, asked) << "told as what the run needs";
        if (fit.ways.empty()) continue;
        config::Config placed = config;
        placed.memory.placement = fit.ways[0].placement;
        std::int64_t least = kRoomy, most = 0, most_on_host = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          model::LoweringOptions o = model::lowering_options(placed, device::Kind::cpu);
          o.sharing = sharing;
          o.sharing.rank = rank;
          const program::MemoryPlan memory = model::lower(placed.model, o).set.memory;
          least = std::min(least, memory.device.total);
          most = std::max(most, memory.device.total);
          most_on_host = std::max(most_on_host, memory.host.beyond_results());
        }
        EXPECT_LE(most, room.device) << key << " " << share << " " << in_words(fit, config);
        EXPECT_EQ(most, fit.ways[0].device) << key << " " << share << " " << in_words(fit, config);
        EXPECT_EQ(most_on_host, fit.ways[0].host) << key << " " << share << " " << in_words(fit, config);
        EXPECT_EQ(train::memory_needed(placed, device::Kind::cpu, sharing), most);
        layers_moved += placed.memory.placement.gradients || placed.memory.placement.weights;
        uneven += least < most;
      }
    }
  }
  EXPECT_GT(layers_moved, 3);
  EXPECT_GT(uneven, 10);
}

TEST(Fit, AnAutomaticBatchThatFitsNowhereMovesBytes) {
  const config::Config config =
      config_of("quick", {"train.batch_size=auto", "train.accumulate=1", "train.seq_len=64", "model.layers=2",
                          "model.hidden=64", "model.heads=2", "model.head_dim=32", "model.ffn=96", "model.vocab=512",
                          "optim.name=adamw", "optim.moments=8bit", "kernels.logits_rows=16"});
  config::Config least = with_setting(config, {1, setting_of(config).rows(), "block"});
  const Fit asked = find_fit(least, machine_with_host(), {kRoomy, kRoomy});
  config::Config limited = config;
  limited.memory.limit = fmt::format("{}KiB", asked.asked.device / 1024 - 64);
  device::CpuDevice device(1);
  limited.memory.fit = "none";
  EXPECT_THROW(find_batch_size(limited, device, {.measure = false}), UserError);
  limited.memory.fit = "auto";
  const AutoBatch found = find_batch_size(limited, device, {.measure = false});
  EXPECT_EQ(setting_of(found.config).rows(), setting_of(config).rows());
  config::Config placed = found.config;
  EXPECT_TRUE(says(place_to_fit(placed, device, room_on(placed, device, 1)), {"memory.fit = auto", "host's memory"}));
  EXPECT_TRUE(placed.memory.placement.on_host());
}

TEST(Fit, CoarserTypesAreToldAndNotTaken) {
  const config::Config config = config_of("quick", {"train.batch_size=1", "train.seq_len=64", "optim.name=adamw"});
  const Machine machine = machine_with_host();
  const Fit asked = find_fit(config, machine, {kRoomy, kRoomy});
  EXPECT_TRUE(gains_of_types(asked, config, machine).empty());
  const Fit fit = find_fit(config, machine, {asked.asked.device * 9 / 10, kRoomy});
  const std::vector<std::string> gains = gains_of_types(fit, config, machine);
  ASSERT_EQ(gains.size(), 3u);
  EXPECT_TRUE(says(gains[1], {"optim.moments=8bit", "MiB less", "faster"})) << gains[1];
  EXPECT_TRUE(says(gains[2], {"precision.gradients=bf16", "MiB less"})) << gains[2];
}

// Where none of them is enough alone, all of them at once may be.
TEST(Fit, AllCoarserTypesAtOnceAreToldWhereTheyFit) {
  const config::Config config = config_of("quick", {"train.batch_size=1", "train.seq_len=64", "optim.name=adamw",
                                                    "memory.fit=none", "train.recompute=auto"});
  const Machine machine = machine_with_host();
  config::Config coarse = config;
  coarse.optim.moments = "8bit";
  coarse.precision.gradients = "bf16";
  const Fit fit = find_fit(config, machine, {find_fit(coarse, machine, {kRoomy, 0}).asked.device, 0});
  EXPECT_FALSE(fit.found());
  const std::vector<std::string> gains = gains_of_types(fit, config, machine);
  ASSERT_EQ(gains.size(), 1u);
  EXPECT_TRUE(says(gains[0], {"optim.moments=8bit precision.gradients=bf16: ", "MiB less, and it fits"})) << gains[0];
}

// Products in bf16 have copies of the masters, which is what masters in bf16 are then.
TEST(Fit, MastersInBf16AreToldWhereProductsReadCopies) {
  const Machine h200 = machine_named("h200");
  config::Config config = config_of("quick", {"train.batch_size=1", "train.seq_len=64", "optim.name=adamw"});
  const auto gains = [&] {
    const Fit asked = find_fit(config, h200, {kRoomy, kRoomy});
    return gains_of_types(find_fit(config, h200, {asked.asked.device * 9 / 10, kRoomy}), config, h200);
  };
  const std::vector<std::string> told = gains();
  ASSERT_EQ(told.size(), 4u);
  EXPECT_TRUE(says(told[3], {"precision.masters=bf16", "MiB less"})) << told[3];
  config.train.average = "ema";
  EXPECT_EQ(gains().size(), 3u);
}

// What is known of a run's bytes from before, for another room, machine or run, changes no answer.
TEST(FindFit, SaysTheSameAgainAndAfterOthers) {
  const auto in_text = [](const Fit& fit) {
    std::string text = fmt::format("{} {}\n", fit.fits, fit.asked.device);
    for (const FitWay& w : fit.ways)
      text += fmt::format("{}{}{}{} {}{}{} {} {}: {} {} {}\n", w.placement.moments, w.placement.moment_layers,
                          w.placement.masters, w.placement.averages, w.placement.gradients, w.placement.weights,
                          w.placement.residuals, w.placement.recompute, w.placement.recompute_layers, w.device, w.host,
                          w.seconds);
    return text;
  };
  const config::Config one = random_config(3), other = random_config(4);
  const Machine machine = machine_with_host();
  Machine slow = machine;
  slow.host_rate = 1e8;
  const Room roomy{.device = kRoomy, .host = kRoomy};
  const std::int64_t needs = find_fit(one, machine, roomy).asked.device;
  std::map<std::string, std::string> said;
  for (int round = 0; round < 2; ++round)
    for (const double share : {0.9, 0.6, 0.75}) {
      const Room room{.device = static_cast<std::int64_t>(share * static_cast<double>(needs)), .host = kRoomy};
      for (const auto& [name, config, on] :
           {std::tuple{"one", &one, &machine}, {"one, slow", &one, &slow}, {"other", &other, &machine}}) {
        const std::string text = in_text(find_fit(*config, *on, room));
        const auto [it, fresh] = said.try_emplace(fmt::format("{} {}", name, share), text);
        EXPECT_EQ(text, it->second) << it->first;
      }
    }
  EXPECT_NE(said["one 0.75"], said["one, slow 0.75"]);
}

}  // namespace
}  // namespace redline::perf

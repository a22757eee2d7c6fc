// What does not fit is told what would: the advice names settings that really need no more than there is.
#include "train/memory_advice.h"

#include <gtest/gtest.h>

#include <set>

#include "config/load.h"
#include "testing/says.h"
#include "train/on_ranks.h"

namespace redline::train {
namespace {

using testing::says;

// Where nothing may move to the host's memory, unless a test says otherwise.
config::Config config_with(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), "memory.fit=none");
  return config::load({.file = "", .preset = "gqa-180m", .overrides = std::move(overrides)});
}

// Puts each way of the advice over the settings, as somebody would who reads it. Returns how many there are.
int fit_as_advised(std::string advice, const std::vector<std::string>& asked, std::int64_t available) {
  constexpr std::string_view kEnd = " would fit";
  if (!advice.ends_with(kEnd)) return 0;
  advice.resize(advice.size() - kEnd.size());
  int ways = 0;
  for (std::size_t at = 0; at < advice.size(); ++ways) {
    const std::size_t end = std::min(advice.find(" or ", at), advice.size());
    std::string way = advice.substr(at, end - at);
    way = way.substr(0, way.find(" ("));
    std::vector<std::string> settings = asked;
    for (std::size_t from = 0; from < way.size();) {
      const std::size_t comma = std::min(way.find(", ", from), way.size());
      settings.push_back(way.substr(from, comma - from));
      from = comma + 2;
    }
    EXPECT_LE(memory_needed(config_with(settings), device::Kind::cpu), available) << way;
    at = end + 4;
  }
  return ways;
}

TEST(MemoryAdvice, NamesTheMilderRecomputeAndTheLargestBatchThatFit) {
  const config::Config c = config_with({"train.batch_size=12", "train.accumulate=2"});
  const std::int64_t all = memory_needed(c, device::Kind::cpu);
  const std::string advice = what_would_fit(c, device::Kind::cpu, all - 1);
  EXPECT_TRUE(says(advice, {"train.recompute = \"mlp\"", "train.batch_size = 6, train.accumulate = 4"}));
  EXPECT_LE(memory_needed(config_with({"train.batch_size=6", "train.accumulate=4"}), device::Kind::cpu), all - 1);

  const std::int64_t with_mlp =
      memory_needed(config_with({"train.batch_size=12", "train.recompute=mlp"}), device::Kind::cpu);
  EXPECT_LT(with_mlp, all);
  const std::string harder = what_would_fit(c, device::Kind::cpu, with_mlp - 1);
  EXPECT_TRUE(says(harder, {"train.recompute = \"block\""}));
}

TEST(MemoryAdvice, NamesTheBatchThatFitsWithRecomputeWhereNeitherDoesAlone) {
  const auto needed = [](std::int64_t rows, const char* recompute) {
    return memory_needed(
        config_with({fmt::format("train.batch_size={}", rows), fmt::format("train.accumulate={}", 24 / rows),
                     fmt::format("train.recompute={}", recompute)}),
        device::Kind::cpu);
  };
  const std::int64_t available = needed(1, "none") - 1;
  std::int64_t rows = 6;  // with the milder of the two
  while (rows > 0 && (12 % rows != 0 || needed(rows, "mlp") > available)) --rows;
  ASSERT_GE(rows, 1);
  const std::string advice =
      what_would_fit(config_with({"train.batch_size=12", "train.accumulate=2"}), device::Kind::cpu, available);
  EXPECT_TRUE(says(advice, {fmt::format("train.batch_size = {}, train.accumulate = {}", rows, 24 / rows),
                            "train.recompute = \"mlp\""}));
  EXPECT_EQ(fit_as_advised(advice, {"train.batch_size=12", "train.accumulate=2"}, available), 1);
}

// Moments are looked at before rows become shorter, and rows before the model becomes smaller; every piece of advice
// holds, down to where nothing helps.
TEST(MemoryAdvice, EveryPieceOfAdviceFits) {
  const std::vector<std::string> asked = {"optim.name=adamw", "train.batch_size=4", "train.accumulate=1"};
  const config::Config c = config_with(asked);
  const std::int64_t all = memory_needed(c, device::Kind::cpu);
  std::set<std::string> keys;
  const auto ask = [&](std::int64_t available) {
    const std::string advice = what_would_fit(c, device::Kind::cpu, available);
    const int ways = fit_as_advised(advice, asked, available);
    EXPECT_EQ(ways == 0, advice.find("make the model smaller") != advice.npos) << advice;
    for (const char* key : {"optim.moments", "train.seq_len", "train.recompute", "train.batch_size", "smaller"})
      if (advice.find(key) != advice.npos) keys.insert(key);
  };
  for (std::int64_t available = all - 1; available > all / 20; available = available * 3 / 4) ask(available);
  // Where nothing is left but shorter rows.
  ask(memory_needed(config_with({"optim.name=adamw", "optim.moments=8bit", "train.recompute=block",
                                 "train.batch_size=1", "train.accumulate=4"}),
                    device::Kind::cpu) -
      1);
  EXPECT_EQ(keys.size(), 5u) << fmt::format("{}", fmt::join(keys, ", "));
}

TEST(MemoryAdvice, RelaxedConfigurationsAreAcceptedAndKeepTheTokensOfAStep) {
  const auto tokens = [](const config::Config& c) { return c.train.batch_size * c.train.accumulate * c.train.seq_len; };
  for (const char* name : {"adamw", "muon"}) {
    const config::Config c = config_with({fmt::format("optim.name={}", name)});
    const std::vector<config::Config> ways = relaxations(c);
    EXPECT_GE(ways.size(), 4u) << name;
    for (config::Config way : ways) {
      EXPECT_NO_THROW(config::resolve(way)) << changes_in_words(c, way);
      EXPECT_EQ(tokens(way), tokens(c)) << changes_in_words(c, way);
      EXPECT_LT(memory_needed(way, device::Kind::cuda), memory_needed(c, device::Kind::cuda))
          << changes_in_words(c, way);
    }
    EXPECT_EQ(changed_keys(c, ways[0]), std::vector<std::string>{"optim.moments=bf16"});
  }
}

// Ranks that share rows have as many tokens each: 130 are none of four.
TEST(MemoryAdvice, RowsThatRanksShareAreHalvedAsFarAsTheyCan) {
  for (const auto& [tokens, least] : {std::pair{2080, 520}, {1040, 260}, {260, 260}}) {
    const config::Config c = config_with(
        {fmt::format("train.seq_len={}", tokens), "parallel.sequence=4", "optim.name=adamw", "train.batch_size=1"});
    std::int64_t shortest = tokens;
    for (const config::Config& way : relaxations(c)) {
      EXPECT_EQ(refusal(way, dist::Mode::fsdp), "") << changes_in_words(c, way);
      shortest = std::min(shortest, way.train.seq_len);
    }
    EXPECT_LE(shortest, least);
    const dist::Sharing sharing{.ranks = 4, .mode = dist::Mode::fsdp, .sequence = 4};
    EXPECT_TRUE(says(what_would_fit(c, device::Kind::cpu, 1 << 20, sharing), {"more ranks"}));
  }
}

// On several ranks the advice is of a rank's share, and that more can be shared comes first.
TEST(MemoryAdvice, OnRanksItIsOfTheirShares) {
  const config::Config c = config_with({"optim.name=adamw", "train.batch_size=1", "train.accumulate=1"});
  const dist::Sharing ddp{.rank = 1, .ranks = 4, .mode = dist::Mode::ddp}, fsdp{1, 4, dist::Mode::fsdp};
  const std::int64_t whole = memory_needed(c, device::Kind::cpu, ddp),
                     shared = memory_needed(c, device::Kind::cpu, fsdp);
  ASSERT_LT(shared, whole);
  EXPECT_TRUE(says(what_would_fit(c, device::Kind::cpu, shared, ddp), {"parallel.mode = \"fsdp\""}));
  const std::string none = what_would_fit(c, device::Kind::cpu, 1 << 20, fsdp);
  EXPECT_TRUE(says(none, {"more ranks"}));
  EXPECT_EQ(none.find("--gpus"), none.npos) << none;
}

// A cut of the step that fits with bytes in the host's memory comes before coarser moments and shorter rows.
TEST(MemoryAdvice, NamesTheCutThatFitsWithBytesMoved) {
  const std::vector<std::string> asked = {"model.layers=4", "optim.name=adamw", "optim.moments=8bit",
                                          "train.batch_size=4", "train.accumulate=2"};
  std::vector<std::string> least = asked;
  least.insert(least.end(), {"train.batch_size=1", "train.accumulate=8", "train.recompute=block"});
  const std::int64_t available = memory_needed(config_with(least), device::Kind::cpu) * 3 / 4;
  std::vector<std::string> moves = asked;
  moves.emplace_back("memory.fit=auto");
  const std::string advice = what_would_fit(config_with(moves), device::Kind::cpu, available);
  EXPECT_TRUE(says(advice, {"train.batch_size = 1, train.accumulate = 8 (", "of the host's memory or more) would fit"}))
      << advice;
  const std::size_t end = advice.find(" of the host's memory or more"), begin = advice.rfind("(with ", end) + 6;
  std::vector<std::string> taken = moves;  // to the word
  taken.insert(taken.end(),
               {"train.batch_size=1", "train.accumulate=8", "memory.host_limit=" + advice.substr(begin, end - begin)});
  const std::string enough = what_would_fit(config_with(taken), device::Kind::cpu, available);
  EXPECT_EQ(enough.find("memory.host_limit is"), enough.npos) << enough;
  const std::string still = what_would_fit(config_with(asked), device::Kind::cpu, available);
  EXPECT_EQ(still.find("of the host's memory"), still.npos) << still;
  moves.emplace_back("memory.host_limit=1MiB");
  const std::string bounded = what_would_fit(config_with(moves), device::Kind::cpu, available);
  EXPECT_TRUE(says(bounded, {"with ", "would fit (memory.host_limit is 1MiB)"})) << bounded;
}

// Where the host's memory is what is missing, the advice says how much would do, whatever the rows of a micro-batch, or
// which types let the run fit into what there is.
TEST(MemoryAdvice, SaysHowMuchOfTheHostsMemoryWouldDo) {
  for (const char* rows : {"1", "4"}) {
    const std::vector<std::string> asked = {
        "model.layers=4",     "optim.name=adamw",      fmt::format("train.batch_size={}", rows),
        "train.accumulate=2", "train.recompute=block", "memory.fit=auto"};
    const auto with = [&](const std::string& limit) {
      std::vector<std::string> words = asked;
      words.push_back("memory.host_limit=" + limit);
      return config_with(words);
    };
    const config::Config bounded = with("1KiB");
    config::Config least = config_with({"model.layers=4", "optim.name=adamw", "optim.moments=8bit",
                                        "train.recompute=block", "train.batch_size=1", "train.seq_len=128"});
    const std::int64_t available = memory_needed(least, device::Kind::cpu) * 3 / 4;
    const std::string advice = what_would_fit(bounded, device::Kind::cpu, available);
    EXPECT_TRUE(says(advice, {"of the host's memory", "would fit (memory.host_limit is 1KiB)"})) << advice;
    const std::size_t end = advice.find(" of the host's memory"), begin = advice.rfind("with ", end) + 5;
    std::string amount = advice.substr(begin, end - begin);
    const std::string enough = what_would_fit(with(amount), device::Kind::cpu, available);
    EXPECT_EQ(enough.find("memory.host_limit is"), enough.npos) << amount << ": " << enough;
    // A hundred times as many ranks share what is free: none of them has more of it than that.
    const std::string many = what_would_fit(config_with(asked), device::Kind::cuda, available / 2, {}, 1 << 24);
    EXPECT_TRUE(says(many, {"of the host's memory", "KiB are free)"})) << many;
  }
}

// Where a quarter of the moments is what is too much, that quarter is enough of the host's memory.
TEST(MemoryAdvice, AsksForNoMoreOfTheHostThanSomeMomentsTake) {
  const std::vector<std::string> asked = {"model.layers=16",    "model.vocab=1024",  "optim.name=adamw",
                                          "train.batch_size=1", "memory.fit=auto",   "train.recompute=block",
                                          "optim.moments=8bit", "train.seq_len=128", "memory.host_limit=1KiB"};
  const config::Config c = config_with(asked);
  config::Config none = c;
  none.memory.placement.moments = true;
  const std::int64_t all = memory_needed(c, device::Kind::cpu), moments = all - memory_needed(none, device::Kind::cpu);
  const std::string advice = what_would_fit(c, device::Kind::cpu, all - moments / 4);
  const std::size_t at = advice.find("with ") + 5;
  const std::int64_t told = config::bytes_of_amount(advice.substr(at, advice.find(" of the host", at) - at));
  EXPECT_GT(told, moments / 5) << advice;
  EXPECT_LT(told, moments / 2) << advice;
}

TEST(MemoryAdvice, CoarserTypesAtOnceFitIntoASmallHost) {
  const std::vector<std::string> asked = {"model.layers=4",    "optim.name=adamw", "train.batch_size=1",
                                          "train.seq_len=128", "memory.fit=auto",  "precision.matmul=fp8"};
  config::Config coarse = config_with(asked);
  ASSERT_EQ(coarser_types(coarse, device::Kind::cpu).size(), 5u);
  coarse = coarser_types(coarse, device::Kind::cpu).back();
  coarse.train.recompute = "block";
  std::vector<std::string> bounded = asked;
  bounded.emplace_back("memory.host_limit=1KiB");
  const std::string advice =
      what_would_fit(config_with(bounded), device::Kind::cpu, memory_needed(coarse, device::Kind::cpu) * 21 / 20);
  EXPECT_TRUE(says(advice, {"optim.moments = \"8bit\", precision.gradients = \"bf16\", precision.masters = \"bf16\"",
                            "would fit; with "}))
      << advice;
  EXPECT_EQ(coarser_types(coarse, device::Kind::cpu).size(), 0u) << "nothing is left";
  EXPECT_EQ(coarser_types(config_with(asked), device::Kind::cpu, {0, 2, dist::Mode::fsdp}).size(), 2u);
}

// Types need no bytes to move: memory.fit = none is told of them, too, where nothing milder is enough.
TEST(MemoryAdvice, CoarserTypesAreNamedWhereNothingMoves) {
  const std::vector<std::string> asked = {"model.layers=4",    "optim.name=adamw", "train.batch_size=1",
                                          "train.seq_len=128", "memory.fit=none",  "precision.matmul=fp8"};
  config::Config coarse = coarser_types(config_with(asked), device::Kind::cpu).back();
  coarse.train.recompute = "block";
  const std::int64_t available = memory_needed(coarse, device::Kind::cpu);
  const std::string advice = what_would_fit(config_with(asked), device::Kind::cpu, available);
  EXPECT_TRUE(says(advice, {"precision.gradients = \"bf16\", precision.masters = \"bf16\""})) << advice;
  EXPECT_EQ(fit_as_advised(advice, asked, available), 1) << advice;
}

// What even one row needs is what it needs with all in the host's memory that can lie there.
TEST(MemoryAdvice, TheLeastIsWithAllThatMoves) {
  const std::vector<std::string> words = {"model.layers=4", "optim.name=muon", "train.average=ema",
                                          "train.batch_size=1", "train.seq_len=128"};
  std::vector<std::string> moves = words;
  moves.emplace_back("memory.fit=auto");
  const auto least = [&](const std::vector<std::string>& asked) {
    const std::string advice = what_would_fit(config_with(asked), device::Kind::cpu, 1 << 20);
    EXPECT_TRUE(says(advice, {"even one row of 128 tokens", "make the model smaller"})) << advice;
    const std::size_t at = advice.find(" needs ") + 7;
    return config::bytes_of_amount(advice.substr(at, advice.find(':', at) - at));
  };
  EXPECT_LT(least(moves), least(words) * 3 / 4);
  const std::int64_t enough = least(moves) * 101 / 100;
  EXPECT_EQ(what_would_fit(config_with(moves), device::Kind::cpu, enough).find("even one row"), std::string::npos);
}

// Two layers of weights on their way are more than a rank's half of four: all that can move takes more than without.
TEST(MemoryAdvice, TheLeastOfARankIsThatOfNoWayToMoveItsShards) {
  const config::Config asked = config_with({"model.layers=4", "optim.name=muon", "memory.fit=auto",
                                            "train.batch_size=1", "train.seq_len=128", "train.recompute=block"});
  const dist::Sharing sharing{.ranks = 2, .mode = dist::Mode::fsdp};
  const auto needed = [&](const config::Placement& placement) {
    config::Config c = asked;
    c.memory.placement = placement;
    return memory_needed(c, device::Kind::cuda, sharing);
  };
  const std::vector<config::Placement> lean = leanest(asked, device::Kind::cuda, sharing);
  ASSERT_EQ(lean.size(), 2u);
  ASSERT_LT(needed(lean[1]), needed(lean[0])) << "a model with which this shows nothing";
  const std::string advice = what_would_fit(asked, device::Kind::cuda, 1 << 20, sharing);
  const std::size_t at = advice.find(" needs ") + 7;
  const std::int64_t least = config::bytes_of_amount(advice.substr(at, advice.find(':', at) - at));
  ASSERT_GT(least, 0) << advice;
  for (const config::Placement& placement : placements(asked, device::Kind::cuda, sharing))
    EXPECT_GE(needed(placement) * 1.001, least) << advice;
  const std::string enough = what_would_fit(asked, device::Kind::cuda, needed(lean[1]) * 101 / 100, sharing);
  EXPECT_EQ(enough.find("even one row"), std::string::npos) << enough;
}

TEST(MemoryAdvice, AnAmountIsToldInAUnitOfWhichThereIsAWholeOne) {
  EXPECT_EQ(memory_in_words(std::int64_t{1000} << 20), "1000.00 MiB");
  EXPECT_EQ(memory_in_words(1024), "1.00 KiB");
  EXPECT_EQ(memory_in_words(100'000), "97.66 KiB");
  EXPECT_EQ(enough_in_words((std::int64_t{24} << 30) + 1), "24.01 GiB") << "an amount that is no less";
  EXPECT_EQ(memory_in_words(6'000'000), "5.72 MiB");
  EXPECT_EQ(memory_in_words(std::int64_t{24} << 30), "24.00 GiB");
  const config::Config c =
      config_with({"model.layers=1", "model.hidden=32", "model.heads=2", "model.kv_heads=1", "model.head_dim=16",
                   "model.ffn=48", "model.vocab=64", "train.batch_size=4", "train.seq_len=64"});
  const std::string advice = what_would_fit(c, device::Kind::cpu, memory_needed(c, device::Kind::cpu) - 1);
  EXPECT_EQ(advice.find("(0.0"), advice.npos) << advice;
  EXPECT_TRUE(says(advice, {"KiB)"})) << advice;
}

TEST(MemoryAdvice, SaysWhenNothingWouldHelp) {
  const std::string advice = what_would_fit(config_with({}), device::Kind::cpu, 1 << 20);
  EXPECT_TRUE(says(advice, {"one row of 128 tokens", "--gpus", "model"}));
}

}  // namespace
}  // namespace redline::train

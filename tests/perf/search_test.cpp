// The turns of a search: the time is shared out, what cannot be tried is a row with its reason, and a signal ends it.
#include "perf/search.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "perf/machines.h"
#include "train/tiny_run.h"

namespace redline::perf {
namespace {

struct Turns {
  std::vector<double> seconds;        // that the bench was given
  std::vector<std::string> progress;  // "b 2/4"
};

Search search_of(Turns& turns, SearchOptions options) {
  Bench bench = bench_of(device::Kind::cuda, [](const config::Config&) { return 1000.0; });
  bench.measure = [&turns, measure = bench.measure](const config::Config& config, double seconds) {
    turns.seconds.push_back(seconds);
    return measure(config, seconds);
  };
  options.progress = [&turns](const std::string& name, std::size_t number, std::size_t of) {
    turns.progress.push_back(fmt::format("{} {}/{}", name, number, of));
  };
  return Search(options, bench, [](const KeyValues& keys) { return testing::tiny_run(keys); });
}

Trial tried(Search& search, const char* name, const KeyValues& keys = {}) {
  Trial row;
  row.name = name;
  search.measure(row, keys);
  return row;
}

TEST(Search, ACandidateGetsHalfOfItsShareOfWhatIsLeft) {
  Turns turns;
  Search search = search_of(turns, {.seconds = 1000});
  search.expect(4, 0.5, 2);
  tried(search, "a");
  search.leave_out();
  tried(search, "b");
  search.expect(2);
  tried(search, "c");
  ASSERT_EQ(turns.seconds.size(), 3u);
  EXPECT_NEAR(turns.seconds[0], 500.0 / 4 / 2, 1) << "of half the time";
  EXPECT_NEAR(turns.seconds[1], 500.0 / 2 / 2, 1) << "one was left out";
  EXPECT_NEAR(turns.seconds[2], 1000.0 / 2 / 2, 1);
  EXPECT_EQ(turns.progress, (std::vector<std::string>{"a 1/6", "b 2/5", "c 3/4"}));
}

TEST(Search, TimeThatIsSpentLeavesEachALittle) {
  Turns turns;
  Search spent = search_of(turns, {.seconds = 0}), fixed = search_of(turns, {.seconds = 0, .each = 3});
  tried(spent, "a");
  tried(fixed, "b");
  EXPECT_GT(turns.seconds.at(0), 0);
  EXPECT_LT(turns.seconds.at(0), 1);
  EXPECT_EQ(turns.seconds.at(1), 3) << "whatever is left";
}

TEST(Search, KeysThatCannotBeLoadedAreARowWithTheReason) {
  Turns turns;
  Search search = search_of(turns, {});
  const Trial row = tried(search, "a", {"train.batch_size=none"});
  EXPECT_EQ(row.state, TrialState::failed);
  EXPECT_NE(row.reason.find("train.batch_size"), row.reason.npos) << row.reason;
  EXPECT_TRUE(turns.seconds.empty());
  EXPECT_EQ(tried(search, "b", {"train.batch_size=4"}).state, TrialState::measured);
}

TEST(Search, KnowsWhichKeysChangeTheWork) {
  Turns turns;
  const Search search = search_of(turns, {});
  EXPECT_TRUE(search.has_effect({}, {"kernels.graphs=off"}));
  EXPECT_FALSE(search.has_effect({"kernels.graphs=off"}, {"kernels.graphs=off"}));
  EXPECT_FALSE(search.has_effect({}, {"log.every=7"}));
  EXPECT_TRUE(search.has_effect({}, {"no.key=1"})) << "the measurement says what is wrong";
}

TEST(Search, ASignalEndsItBeforeTheNext) {
  StopFlag stop = 0;
  Turns turns;
  Search search = search_of(turns, {.stop = &stop});
  tried(search, "a");
  stop = 2;
  EXPECT_THROW(tried(search, "b"), Interrupted);
  EXPECT_EQ(turns.progress.size(), 1u);
}

}  // namespace
}  // namespace redline::perf

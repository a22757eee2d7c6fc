// Links and the time of a collective on them: what must be true of any, and of the table.
#include "perf/network.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace redline::perf {
namespace {

Fabric h100s() { return fabric_of(card_called("h100"), network_called("ndr"), 8, 8); }

TEST(Network, ACollectiveTakesItsBytesAndItsHops) {
  const Fabric f = h100s();
  const double bytes = 1e9;
  EXPECT_NEAR(collective_seconds(f, Collective::gather_shards, bytes, 8), 7.0 / 8 * bytes / 370e9 + 7 * 3.4e-6 + 8.4e-6,
              1e-9);
  EXPECT_NEAR(collective_seconds(f, Collective::all_reduce, bytes, 8),
              2 * (7.0 / 8 * bytes / 370e9 + 7 * 3.4e-6) + 8.4e-6, 1e-9);
  // 64 ranks are 8 nodes: 7 of 63 hops leave one, and the slower link counts.
  EXPECT_NEAR(collective_seconds(f, Collective::reduce_shards, bytes, 64),
              63.0 / 64 * bytes / 368e9 + 56 * 3.4e-6 + 7 * 14e-6 + 8.4e-6, 1e-9);
  EXPECT_EQ(collective_seconds(f, Collective::all_reduce, bytes, 1), 0);
}

TEST(Network, FewNetworkCardsAreSlower) {
  const Fabric few = fabric_of(card_called("h100"), network_called("ndr"), 8, 2);
  EXPECT_GT(collective_seconds(few, Collective::gather_shards, 1e9, 16),
            3.5 * collective_seconds(h100s(), Collective::gather_shards, 1e9, 16));
  EXPECT_EQ(collective_seconds(few, Collective::gather_shards, 1e9, 8),
            collective_seconds(h100s(), Collective::gather_shards, 1e9, 8))
      << "one node needs none";
  // Nodes of one card have nothing but the network.
  const Fabric single = fabric_of(card_called("h100"), network_called("ndr"), 1, 1);
  EXPECT_NEAR(collective_seconds(single, Collective::gather_shards, 1e9, 4), 0.75e9 / 46e9 + 3 * 14e-6 + 8.4e-6, 1e-9);
}

TEST(Network, ATreeSavesHopsWhereArraysAreSmall) {
  Fabric f = h100s();
  const double tree = collective_seconds(f, Collective::all_reduce, 8192, 1024);
  f.has_trees = false;
  const double ring = collective_seconds(f, Collective::all_reduce, 8192, 1024);
  EXPECT_LT(tree, 1e-3);
  EXPECT_GT(ring, 5e-3);
}

TEST(Network, EveryCardHasALinkAndEveryFigureASource) {
  for (const Card& card : cards()) {
    const Fabric f = fabric_of(card, network_called("nvlink"), 8, 8);
    EXPECT_GT(f.inside.bus_bandwidth, 1e9) << card.id;
    EXPECT_EQ(f.between.bus_bandwidth, 0) << card.id;
  }
  for (const CardLink& link : card_links()) EXPECT_FALSE(link.source.empty()) << link.name;
  for (const Network& network : networks()) {
    EXPECT_FALSE(network.source.empty()) << network.id;
    EXPECT_EQ(&network_called(network.id), &network);
  }
  EXPECT_THROW(network_called("infiniband"), UserError);
}

TEST(Network, TimedCollectivesGiveTheirBandwidthAndBase) {
  Fabric truth;
  truth.ranks_per_node = 4;
  truth.inside = {2.5e9, 0};
  truth.base = 3e-4;
  std::vector<TimedCollective> timed;
  for (const double bytes : {1e4, 1e6, 1e8})
    for (const Collective c : {Collective::all_reduce, Collective::gather_shards})
      for (const int ranks : {2, 4}) timed.push_back({c, bytes, ranks, collective_seconds(truth, c, bytes, ranks)});
  const Fabric found = fabric_of("two cores", timed);
  EXPECT_NEAR(found.inside.bus_bandwidth / 2.5e9, 1, 1e-6);
  EXPECT_NEAR(found.base / 3e-4, 1, 1e-6);
  EXPECT_EQ(found.ranks_per_node, 4);
  EXPECT_THROW(fabric_of("one size", std::span(timed).first(1)), MachineError);
}

}  // namespace
}  // namespace redline::perf

// The table of cards, and links with the time of a collective on them: what must be true of any, and of the table.
#include "perf/cards.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace redline::perf {
namespace {

TEST(Cards, AreFoundByTheDriversNames) {
  const auto id = [](const char* name) { return find_card(name) ? find_card(name)->id : std::string_view("none"); };
  const std::pair<const char*, const char*> names[] = {
      {"NVIDIA H200", "h200"},
      {"NVIDIA H200 NVL", "h200-nvl"},
      {"NVIDIA H100 80GB HBM3", "h100"},
      {"NVIDIA H100 PCIe", "h100-pcie"},
      {"NVIDIA H100 NVL", "h100-nvl"},
      {"NVIDIA A100-SXM4-40GB", "a100-40"},
      {"A100-SXM4-80GB", "a100-80"},
      {"NVIDIA A100-PCIE-40GB", "a100-40-pcie"},
      {"NVIDIA A100 80GB PCIe", "a100-80-pcie"},
      {"NVIDIA RTX A6000", "a6000"},
      {"NVIDIA L4", "l4"},
      {"NVIDIA L40S", "l40s"},
      {"NVIDIA GeForce RTX 3090", "rtx-3090"},
      {"NVIDIA GeForce RTX 4090", "rtx-4090"},
      {"NVIDIA GeForce RTX 5090", "rtx-5090"},
      {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"},
      {"NVIDIA GH200 480GB", "gh200"},
      {"NVIDIA B200", "b200"},
      {"NVIDIA GB200", "gb200"}};
  for (const auto& [name, card] : names) EXPECT_EQ(id(name), card) << name;
  for (const char* unknown :
       {"NVIDIA A1000", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 5090 D", "NVIDIA L40", "NVIDIA RTX 6000 Ada Generation", "NVIDIA GH200 144G HBM3e",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA H100 MIG 1g.10gb", ""})
    EXPECT_EQ(id(unknown), "none") << unknown;
}

TEST(Cards, StateDenseRates) {
  for (const Card& c : cards()) {
    EXPECT_EQ(&card_called(c.id), &c);
    EXPECT_GE(c.tflops.bf16, c.tflops.tf32) << c.id;
    EXPECT_GE(c.tflops.tf32, c.tflops.fp32) << c.id;
    EXPECT_TRUE(c.tflops.fp8 == 0 || std::abs(c.tflops.fp8 / c.tflops.bf16 - 2) < 0.05) << c.id;
    EXPECT_GT(c.memory_gib, 0) << c.id;
  }
  EXPECT_EQ(card_called("H200").tflops.bf16, 989.5);
  EXPECT_EQ(card_called("a100-80").tflops.bf16, 312);
  EXPECT_EQ(card_called("b200").tflops.bf16, 2250);
  EXPECT_THROW(card_called("h20"), UserError);
}

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

// The tables of links, and the time of a collective on them.
//
// Seconds of a hop and of a beginning are those of NCCL's own model (ring and tree with its simple protocol: NVLink 3.4
// and 4.0, PCIe 5.7, a network 14, a beginning 8.4 microseconds). Bandwidths are what others measured with nccl-tests,
// or half or twice of it where a datasheet says so. None of them was seen by us.
#include "perf/network.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "config/load.h"

namespace redline::perf {
namespace {

// clang-format off
constexpr Network kNetworks[] = {
    {kNoNetwork, "none: one node", 0, 0, "for runs on one node, or one rack that NVLink connects"},
    {"ndr", "NDR InfiniBand, 400 Gb/s", 46, 14, "nccl-tests of others: 46 to 48 GB/s a network card"},
    {"hdr", "HDR InfiniBand, 200 Gb/s", 23, 14, "half of NDR"},
    {"xdr", "XDR InfiniBand, 800 Gb/s", 92, 14, "twice NDR, which nobody has shown us"},
    {"roce", "RoCE, 400 Gb/s", 45, 14, "NDR less the headers of Ethernet: estimated"},
    {"roce-200", "RoCE, 200 Gb/s", 22.5, 14, "half of RoCE at 400 Gb/s"},
    {"ethernet", "TCP over Ethernet, 100 Gb/s", 10, 50, "estimated: 80% of the line, and the host's time a hop"},
};

const CardLink kCardLinks[] = {
    {{"h100", "h200"}, "NVLink 4", 370, 3.4, "nccl-tests of others, ring; 480 with NVLS, which is not counted on"},
    {{"a100-40", "a100-80"}, "NVLink 3", 235, 3.4, "the most that NCCL expects; others measure 230 to 250"},
    {{"b200", "gb200"}, "NVLink 5", 740, 3.4, "twice NVLink 4, as the datasheets say"},
    {{"h100-pcie", "h100-nvl", "h200-nvl"}, "PCIe 5", 40, 5.7, "others measure 35 to 45; bridges join 2 or 4 cards"},
    {{"a100-40-pcie", "a100-80-pcie", "a6000", "l4", "l40s", "rtx-4090"}, "PCIe 4", 20, 5.7, "half of PCIe 5"},
};
// clang-format on

constexpr double kBase = 8.4e-6, kTreeHop = 4.0e-6;
constexpr double kTreeShare = 0.92;  // of a ring's bandwidth: what NCCL expects

double ring_seconds(const Fabric& f, double turns, double bytes, int ranks) {
  const int nodes = f.nodes(ranks);
  double bandwidth = f.inside.bus_bandwidth;
  if (nodes == ranks && ranks > 1)
    bandwidth = f.between.bus_bandwidth;
  else if (nodes > 1)
    bandwidth = std::min(bandwidth, f.between.bus_bandwidth);
  const double hops = (ranks - nodes) * f.inside.hop + (nodes - 1) * f.between.hop;
  return f.base + turns * (bytes * (ranks - 1) / ranks / bandwidth + hops);
}

// Ranks of a node in a chain, nodes in a tree; up and down.
double tree_seconds(const Fabric& f, double bytes, int ranks) {
  const int nodes = f.nodes(ranks), inside = std::min(ranks, f.ranks_per_node);
  const double bandwidth = kTreeShare * std::min(f.inside.bus_bandwidth, f.between.bus_bandwidth);
  const double hops = (inside - 1) * kTreeHop + std::log2(nodes) * f.between.hop;
  return f.base + 2 * (bytes / bandwidth + hops);
}

}  // namespace

std::string_view name_of(Collective collective) {
  constexpr std::string_view kNames[] = {"all_reduce", "reduce_shards", "gather_shards"};
  return kNames[static_cast<int>(collective)];
}

double collective_seconds(const Fabric& f, Collective collective, double bytes, int ranks) {
  if (ranks <= 1) return 0;
  const bool twice = collective == Collective::all_reduce;
  const double ring = ring_seconds(f, twice ? 2 : 1, bytes, ranks);
  if (!twice || !f.has_trees || f.nodes(ranks) == 1) return ring;
  return std::min(ring, tree_seconds(f, bytes, ranks));
}

std::span<const Network> networks() { return kNetworks; }
std::span<const CardLink> card_links() { return kCardLinks; }

const Network& network_called(std::string_view id) {
  std::vector<std::string> ids;
  for (const Network& network : kNetworks) {
    if (network.id == id) return network;
    ids.emplace_back(network.id);
  }
  const std::string guess = config::nearest(std::string(id), ids);
  fail_user("--network {}: no such network is known; {}the networks are {}", id,
            guess.empty() ? "" : fmt::format("did you mean '{}'? ", guess), fmt::join(ids, ", "));
}

Fabric fabric_of(const Card& card, const Network& network, int cards_per_node, int network_cards) {
  const auto link = std::ranges::find_if(
      kCardLinks, [&](const CardLink& l) { return std::ranges::find(l.cards, card.id) != l.cards.end(); });
  REDLINE_CHECK(link != std::end(kCardLinks), "kCardLinks in perf/network.cpp lacks {}", card.id);
  Fabric f;
  const bool alone = network.id == kNoNetwork;
  f.name = alone ? std::string(link->name) : fmt::format("{}; {}", link->name, network.name);
  f.ranks_per_node = cards_per_node;
  f.inside = {1e9 * link->gbytes, 1e-6 * link->hop_us};
  f.between = {1e9 * network.gbytes * network_cards, 1e-6 * network.hop_us};
  f.base = kBase;
  f.has_trees = true;
  return f;
}

Fabric fabric_of(std::string name, std::span<const TimedCollective> timed) {
  // seconds = base + moved * inverse, each equation divided by its seconds.
  double aa = 0, ab = 0, bb = 0, ay = 0, by = 0;
  int most = 1;
  for (const TimedCollective& t : timed) {
    REDLINE_CHECK(t.ranks > 1 && t.seconds > 0, "a collective of {} ranks in {} s is no measurement", t.ranks,
                  t.seconds);
    const double turns = t.collective == Collective::all_reduce ? 2 : 1;
    const double moved = turns * t.bytes * (t.ranks - 1) / t.ranks, weight = 1 / t.seconds;
    aa += weight * weight;
    ab += weight * weight * moved;
    bb += weight * weight * moved * moved;
    ay += weight;
    by += weight * moved;
    most = std::max(most, t.ranks);
  }
  const double determinant = aa * bb - ab * ab;
  REDLINE_CHECK(determinant > 1e-12 * aa * bb, "collectives of one size do not tell bandwidth from latency");
  const double inverse = (aa * by - ab * ay) / determinant, base = (bb * ay - ab * by) / determinant;
  REDLINE_CHECK(inverse > 0, "larger collectives were not slower");
  Fabric f;
  f.name = std::move(name);
  f.ranks_per_node = most;
  f.inside = {1 / inverse, 0};
  f.base = std::max(base, 0.0);
  return f;
}

}  // namespace redline::perf

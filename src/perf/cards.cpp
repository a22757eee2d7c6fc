// The tables of cards, of the links inside a node and of the networks between nodes, and the time of a collective on
// them.
#include "perf/cards.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/error.h"
#include "config/load.h"

namespace redline::perf {
namespace {

// Sources: NVIDIA's datasheets "A100 Tensor Core GPU" (2021), "RTX A6000" (2021), "L4" and "L40S Tensor Core GPU"
// (2023), "H100 Tensor Core GPU" (2024), "H200 Tensor Core GPU" (2024), "HGX B200" and "GB200 NVL72" (2025; of one
// GPU), "GH200 Grace Hopper Superchip" (2024), and the whitepapers "NVIDIA Ampere GA102 GPU Architecture" (2021) for
// the RTX 3090, "NVIDIA Ada GPU Architecture" (2023) for the RTX 4090, "NVIDIA RTX Blackwell GPU Architecture" (2025)
// for the RTX 5090 and "NVIDIA RTX Blackwell PRO GPU Architecture" (2025) for the RTX PRO 6000. Where a datasheet gives
// a rate with sparsity alone, half of it stands here. GeForce cards run 16-bit and 8-bit products with fp32 sums at
// half the rate that is advertised; training needs those sums. Memory is what cudaMemGetInfo calls total.
//
// The link with the host is PCIe 5 (55 of 64 GB/s, measured on an H200 with pinned memory; 45 each way where both are
// busy), PCIe 4 (25 of 32, as others measure), or the NVLink-C2C of a GH200 and a GB200 (350 of 450,
// as others measure).
//
// The first row that fits a name counts.
// clang-format off
const Card kCards[] = {
    // id, name, words, excluded, {bf16, fp16, tf32, fp32, fp8, fp4}, GiB, GB/s, GB/s of the host
    {"a100-40", "A100 40 GB SXM", {"A100", "SXM4", "40GB"}, {}, {312, 312, 156, 19.5, 0, 0}, 39.4, 1555},
    {"a100-40-pcie", "A100 40 GB PCIe", {"A100", "PCIE", "40GB"}, {}, {312, 312, 156, 19.5, 0, 0}, 39.4, 1555},
    {"a100-80", "A100 80 GB SXM", {"A100", "SXM4", "80GB"}, {}, {312, 312, 156, 19.5, 0, 0}, 79.1, 2039},
    {"a100-80-pcie", "A100 80 GB PCIe", {"A100", "PCIE", "80GB"}, {}, {312, 312, 156, 19.5, 0, 0}, 79.1, 1935},
    {"a6000", "RTX A6000", {"RTX", "A6000"}, {}, {154.8, 154.8, 77.4, 38.7, 0, 0}, 47.4, 768},
    {"l4", "L4", {"L4"}, {}, {121, 121, 60.5, 30.3, 242.5, 0}, 22.0, 300},
    {"l40s", "L40S", {"L40S"}, {}, {362, 362, 183, 91.6, 733, 0}, 44.4, 864},
    {"rtx-4090", "GeForce RTX 4090", {"RTX", "4090"}, {"LAPTOP", "D"},
     {165.2, 165.2, 82.6, 82.6, 330.3, 0}, 23.5, 1008},
    {"rtx-3090", "GeForce RTX 3090", {"RTX", "3090"}, {"TI"}, {71, 71, 35.6, 35.6, 0, 0}, 23.7, 936},
    {"rtx-5090", "GeForce RTX 5090", {"RTX", "5090"}, {"LAPTOP", "D"},
     {209.5, 209.5, 104.8, 104.8, 419, 1676}, 31.4, 1792, 55},
    {"rtx-pro-6000", "RTX PRO 6000", {"RTX", "PRO", "6000", "BLACKWELL"}, {"MAX"},
     {503.8, 503.8, 251.9, 126, 1007.6, 2015.2}, 95.0, 1792, 55},
    {"h100-nvl", "H100 NVL", {"H100", "NVL"}, {}, {835.5, 835.5, 417.5, 60, 1671, 0}, 93.1, 3900, 55},
    {"h100-pcie", "H100 PCIe", {"H100", "PCIE"}, {}, {756, 756, 378, 51, 1513, 0}, 79.1, 2000, 55},
    {"h100", "H100 SXM", {"H100", "HBM3"}, {}, {989.5, 989.5, 494.5, 67, 1979, 0}, 79.1, 3350, 55},
    {"h200-nvl", "H200 NVL", {"H200", "NVL"}, {}, {835.5, 835.5, 417.5, 60, 1671, 0}, 139.8, 4800, 55},
    {"h200", "H200 SXM", {"H200"}, {"GH200"}, {989.5, 989.5, 494.5, 67, 1979, 0}, 139.8, 4800, 55},
    {"gh200", "GH200 96 GB", {"GH200"}, {"144G"}, {989.5, 989.5, 494.5, 67, 1979, 0}, 94.5, 4000, 350},
    {"gb200", "GB200, one GPU", {"GB200"}, {}, {2500, 2500, 1250, 80, 5000, 10000}, 184.0, 8000, 350},
    {"b200", "B200", {"B200"}, {}, {2250, 2250, 1125, 75, 4500, 9000}, 178.3, 7700, 55},
};
// clang-format on

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t end = std::min(name.find_first_of(" -", at), name.size());
    words.push_back(upper(name.substr(at, end - at)));
    at = end + 1;
  }
  return words;
}

}  // namespace

std::span<const Card> cards() { return kCards; }

const Card* find_card(std::string_view driver_name) {
  const std::vector<std::string> name = words_of(driver_name);
  const auto holds = [&](std::string_view word) { return std::ranges::find(name, word) != name.end(); };
  if (holds("MIG")) return nullptr;  // a slice of a card has a slice of its rate
  for (const Card& card : kCards)
    if (std::ranges::all_of(card.words, holds) && std::ranges::none_of(card.excluded, holds)) return &card;
  return nullptr;
}

const Card& card_called(std::string_view id) {
  std::vector<std::string> ids;
  for (const Card& card : kCards) {
    if (upper(card.id) == upper(id)) return card;
    ids.emplace_back(card.id);
  }
  std::vector<std::string> kinds;  // "a100" is several
  for (const std::string& known : ids)
    if (upper(known).starts_with(upper(id) + "-")) kinds.push_back(known);
  if (!kinds.empty()) fail_user("--card {}: which one? There are {}", id, fmt::join(kinds, ", "));
  ids.emplace_back("cpu");
  fail_user("--card {}: no such card is known; {}", id, config::names_known(id, "cards", ids));
}

namespace {

// Seconds of a hop and of a beginning are those of NCCL's own model (ring and tree with its simple protocol: NVLink 3.4
// and 4.0, PCIe 5.7, a network 14, a beginning 8.4 microseconds). Bandwidths are what others measured with nccl-tests,
// or half or twice of it where a datasheet says so. None of them was seen by us.
// clang-format off
constexpr Network kNetworks[] = {
    {kNoNetwork, "none: one node", 0, 0, "for runs on one node, or one rack that NVLink connects"},
    {"ndr", "NDR InfiniBand, 400 Gb/s", 46, 14, "nccl-tests of others: 46 to 48 GB/s a network card"},
    {"hdr", "HDR InfiniBand, 200 Gb/s", 23, 14, "half of NDR"},
    {"xdr", "XDR InfiniBand, 800 Gb/s", 92, 14, "twice NDR, which was not measured"},
    {"roce", "RoCE, 400 Gb/s", 45, 14, "NDR less the headers of Ethernet: estimated"},
    {"roce-200", "RoCE, 200 Gb/s", 22.5, 14, "half of RoCE at 400 Gb/s"},
    {"ethernet", "TCP over Ethernet, 100 Gb/s", 10, 50, "estimated: 80% of the line, and the host's time a hop"},
};

const CardLink kCardLinks[] = {
    {{"h100", "h200", "gh200"},
     "NVLink 4", 370, 3.4, "nccl-tests of others, ring; 480 with NVLS, which is not counted on"},
    {{"a100-40", "a100-80"}, "NVLink 3", 235, 3.4, "the most that NCCL expects; others measure 230 to 250"},
    {{"b200", "gb200"}, "NVLink 5", 740, 3.4, "twice NVLink 4, as the datasheets say"},
    {{"h100-pcie", "h100-nvl", "h200-nvl", "rtx-5090", "rtx-pro-6000"},
     "PCIe 5", 40, 5.7, "others measure 35 to 45; bridges join 2 or 4 cards"},
    {{"a100-40-pcie", "a100-80-pcie", "a6000", "l4", "l40s", "rtx-3090", "rtx-4090"},
     "PCIe 4", 20, 5.7, "half of PCIe 5"},
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
  constexpr std::string_view kNames[] = {"all_reduce", "reduce_shards", "gather_shards", "all_to_all"};
  return kNames[static_cast<int>(collective)];
}

Fabric Fabric::every(int apart) const {
  Fabric f = *this;
  f.ranks_per_node = std::max(1, ranks_per_node / apart);
  f.between.bus_bandwidth /= std::min(apart, ranks_per_node);  // so many share a node's network cards
  return f;
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
  fail_user("--network {}: no such network is known; {}", id, config::names_known(id, "networks", ids));
}

Fabric fabric_of(const Card& card, const Network& network, int cards_per_node, int network_cards) {
  const auto link = std::ranges::find_if(
      kCardLinks, [&](const CardLink& l) { return std::ranges::find(l.cards, card.id) != l.cards.end(); });
  REDLINE_CHECK(link != std::end(kCardLinks), "kCardLinks in perf/cards.cpp lacks {}", card.id);
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

// What connects the ranks of a run, and how long a collective takes there: a table of links between cards and between
// machines, or what was measured. Nothing here sends anything.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "perf/cards.h"

namespace redline::perf {

// Bus bandwidth is what nccl-tests call so: bytes a second that each rank sends, and receives, while a ring of any
// number of ranks is full.
struct Link {
  double bus_bandwidth = 0;
  double hop = 0;  // seconds from one rank to the next, as a ring passes them
};

struct Fabric {
  std::string name;        // "NVLink, NDR InfiniBand"
  int ranks_per_node = 8;  // that `inside` connects
  Link inside;
  Link between;            // nodes: all network cards of a node together
  double base = 0;         // seconds of any collective before the first hop
  bool has_trees = false;  // an all-reduce may go up and down a tree of nodes instead of twice around the ring
  // Whether ranks compute while bytes travel. Where processors move them and no core is to spare, they do not.
  bool beside_compute = true;

  int nodes(int ranks) const { return (ranks + ranks_per_node - 1) / ranks_per_node; }
};

enum class Collective { all_reduce, reduce_shards, gather_shards };
std::string_view name_of(Collective collective);

// Of an array of so many bytes, the same on every rank.
double collective_seconds(const Fabric& fabric, Collective collective, double bytes, int ranks);

// One kind of network between nodes.
struct Network {
  std::string_view id;    // as --network takes it: "ndr"
  std::string_view name;  // as people write it
  double gbytes = 0;      // GB/s of bus bandwidth a network card
  double hop_us = 0;
  std::string_view source;
};
std::span<const Network> networks();
const Network& network_called(std::string_view id);       // an unknown one is a UserError with all others
inline constexpr std::string_view kNoNetwork = "nvlink";  // one node: there is nothing between

// Between the cards of one node.
struct CardLink {
  std::vector<std::string_view> cards;  // ids of the table of cards
  std::string_view name;
  double gbytes = 0;
  double hop_us = 0;
  std::string_view source;
};
std::span<const CardLink> card_links();

// So many cards a node, with so many network cards.
Fabric fabric_of(const Card& card, const Network& network, int cards_per_node, int network_cards);

// From collectives that were timed on one machine: bandwidth and base by least squares of relative errors; hops are
// part of the base. Needs two sizes.
struct TimedCollective {
  Collective collective = Collective::all_reduce;
  double bytes = 0;
  int ranks = 0;
  double seconds = 0;
};
Fabric fabric_of(std::string name, std::span<const TimedCollective> timed);

}  // namespace redline::perf

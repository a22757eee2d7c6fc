// The tables of cards and of the links between them, from datasheets and measurements of others: dense products,
// memory, bandwidth, and the time that a collective takes. MFU and plans use them; nothing here sends anything.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace redline::perf {

// TFLOP/s of dense products with fp32 sums. Figures with sparsity are never used. 0: the card has no such products.
struct ProductRates {
  double bf16 = 0, fp16 = 0, tf32 = 0, fp32 = 0, fp8 = 0, fp4 = 0;
};

struct Card {
  std::string_view id;                     // as --card takes it: "a100-80"
  std::string_view name;                   // as people write it
  std::vector<std::string_view> words;     // all of them stand in the driver's name, in any case
  std::vector<std::string_view> excluded;  // and none of these
  ProductRates tflops;
  double memory_gib = 0;    // as CUDA reports it: a few percent less than the name says
  double gbytes = 0;        // GB/s of its memory
  double host_gbytes = 25;  // GB/s between the host's pinned memory and the card, one way at a time
};

std::span<const Card> cards();
inline constexpr std::string_view kMeasuredCard = "h200";  // the only one that redline has run on

// Finds a card by its driver's name. Null: no row fits for certain.
const Card* find_card(std::string_view driver_name);

// Finds a card by its --card name. An unknown name is a UserError that lists the nearest and all others.
const Card& card_called(std::string_view id);

// Bus bandwidth as nccl-tests define it: the bytes a second that each rank sends, and receives, while a ring of any
// number of ranks is full.
struct Link {
  double bus_bandwidth = 0;
  double hop = 0;  // seconds from one rank to the next, as a ring passes them
};

struct Fabric {
  std::string name;        // "NVLink, NDR InfiniBand"
  int ranks_per_node = 8;  // connected by `inside`
  Link inside;
  Link between;            // between nodes: all network cards of a node together
  double base = 0;         // seconds of any collective before the first hop
  bool has_trees = false;  // an all-reduce may go up and down a tree of nodes instead of twice around the ring
  // Whether ranks compute while bytes travel. Where processors move them and no core is to spare, they do not.
  bool beside_compute = true;

  int nodes(int ranks) const { return (ranks + ranks_per_node - 1) / ranks_per_node; }
  // As every `apart`-th rank sees it, while those between them do the same.
  Fabric every(int apart) const;
};

enum class Collective { all_reduce, reduce_shards, gather_shards, all_to_all };
std::string_view name_of(Collective collective);

// Seconds of a collective over an array of so many bytes, the same on every rank.
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
const Network& network_called(std::string_view id);       // an unknown name is a UserError that lists all
inline constexpr std::string_view kNoNetwork = "nvlink";  // one node alone
inline constexpr std::string_view kUsualNetwork = "ndr";  // taken for granted where nothing says what is there

// The link between the cards of one node.
struct CardLink {
  std::vector<std::string_view> cards;  // ids of the table of cards
  std::string_view name;
  double gbytes = 0;
  double hop_us = 0;
  std::string_view source;
};
std::span<const CardLink> card_links();

// The fabric of nodes with so many cards and network cards each.
Fabric fabric_of(const Card& card, const Network& network, int cards_per_node, int network_cards);

// A fabric from collectives timed on one machine. Bandwidth and base come from least squares of relative errors; hops
// are part of the base. At least two sizes are needed.
struct TimedCollective {
  Collective collective = Collective::all_reduce;
  double bytes = 0;
  int ranks = 0;
  double seconds = 0;
};
Fabric fabric_of(std::string name, std::span<const TimedCollective> timed);

}  // namespace redline::perf

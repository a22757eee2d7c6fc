// The table of cards.
//
// Sources: NVIDIA's datasheets "A100 Tensor Core GPU" (2021), "RTX A6000" (2021), "L4" and "L40S Tensor Core GPU"
// (2023), "H100 Tensor Core GPU" (2024), "H200 Tensor Core GPU" (2024), "HGX B200" and "GB200 NVL72" (2025; of one
// GPU), and the whitepaper "NVIDIA Ada GPU Architecture" (2023) for the RTX 4090. Where a datasheet gives a rate with
// sparsity alone, half of it stands here. GeForce cards run 16-bit and 8-bit products with fp32 sums at half the rate
// that is advertised; training needs those sums. Memory is what cudaMemGetInfo calls total.
#include "perf/cards.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "config/load.h"

namespace redline::perf {
namespace {

// clang-format off
// The first that fits counts.
const Card kCards[] = {
    // id, name, words, excluded, {bf16, fp16, tf32, fp32, fp8, fp4}, GiB, GB/s
    {"a100-40", "A100 40 GB SXM", {"A100", "SXM4", "40GB"}, {}, {312, 312, 156, 19.5, 0, 0}, 39.4, 1555},
    {"a100-40-pcie", "A100 40 GB PCIe", {"A100", "PCIE", "40GB"}, {}, {312, 312, 156, 19.5, 0, 0}, 39.4, 1555},
    {"a100-80", "A100 80 GB SXM", {"A100", "SXM4", "80GB"}, {}, {312, 312, 156, 19.5, 0, 0}, 79.1, 2039},
    {"a100-80-pcie", "A100 80 GB PCIe", {"A100", "PCIE", "80GB"}, {}, {312, 312, 156, 19.5, 0, 0}, 79.1, 1935},
    {"a6000", "RTX A6000", {"RTX", "A6000"}, {}, {154.8, 154.8, 77.4, 38.7, 0, 0}, 47.4, 768},
    {"l4", "L4", {"L4"}, {}, {121, 121, 60.5, 30.3, 242.5, 0}, 22.0, 300},
    {"l40s", "L40S", {"L40S"}, {}, {362, 362, 183, 91.6, 733, 0}, 44.4, 864},
    {"rtx-4090", "GeForce RTX 4090", {"RTX", "4090"}, {"LAPTOP", "D"}, {165.2, 165.2, 82.6, 82.6, 330.3, 0}, 23.5, 1008},
    {"h100-nvl", "H100 NVL", {"H100", "NVL"}, {}, {835.5, 835.5, 417.5, 60, 1671, 0}, 93.1, 3900},
    {"h100-pcie", "H100 PCIe", {"H100", "PCIE"}, {}, {756, 756, 378, 51, 1513, 0}, 79.1, 2000},
    {"h100", "H100 SXM", {"H100", "HBM3"}, {}, {989.5, 989.5, 494.5, 67, 1979, 0}, 79.1, 3350},
    {"h200-nvl", "H200 NVL", {"H200", "NVL"}, {}, {835.5, 835.5, 417.5, 60, 1671, 0}, 139.8, 4800},
    {"h200", "H200 SXM", {"H200"}, {"GH200"}, {989.5, 989.5, 494.5, 67, 1979, 0}, 139.8, 4800},
    {"gb200", "GB200, one GPU", {"GB200"}, {}, {2500, 2500, 1250, 80, 5000, 10000}, 184.0, 8000},
    {"b200", "B200", {"B200"}, {}, {2250, 2250, 1125, 75, 4500, 9000}, 178.3, 7700},
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
  const std::string guess = config::nearest(std::string(id), ids);
  fail_user("--card {}: no such card is known; {}the cards are {}", id,
            guess.empty() ? "" : fmt::format("did you mean '{}'? ", guess), fmt::join(ids, ", "));
}

}  // namespace redline::perf

// What the datasheets of cards promise: dense bf16 products with fp32 sums, without sparsity.
#include <algorithm>
#include <vector>

#include "perf/peak.h"

namespace redline::perf {
namespace {

struct Card {
  std::vector<std::string_view> words;  // all of them stand in the name
  double tflops;                        // 0: none is known
};

// The first that fits counts. NVL cards differ from the others of their name, and no figure of theirs is certain.
const Card kCards[] = {
    {{"H200", "NVL"}, 0},      {{"H200"}, 989.5}, {{"H100", "NVL"}, 0}, {{"H100", "PCIe"}, 756},
    {{"H100", "HBM3"}, 989.5}, {{"A100"}, 312},   {{"B200"}, 2250},
};

std::vector<std::string_view> words_of(std::string_view name) {
  std::vector<std::string_view> words;
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t end = std::min(name.find_first_of(" -", at), name.size());
    words.push_back(name.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

}  // namespace

std::optional<double> datasheet_flops(std::string_view card) {
  const std::vector<std::string_view> name = words_of(card);
  for (const Card& known : kCards) {
    const bool fits = std::ranges::all_of(
        known.words, [&](std::string_view word) { return std::ranges::find(name, word) != name.end(); });
    if (fits) return known.tflops > 0 ? std::optional(known.tflops * 1e12) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace redline::perf

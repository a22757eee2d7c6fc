// What the datasheets of cards promise: dense products, memory, bandwidth. The one table that MFU is held against and
// that a run is planned with.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace redline::perf {

// TFLOP/s of dense products, never the figure with sparsity; fp32 sums wherever the card has both. 0: the card has
// none.
struct ProductRates {
  double bf16 = 0, fp16 = 0, tf32 = 0, fp32 = 0, fp8 = 0, fp4 = 0;
};

struct Card {
  std::string_view id;                     // as --card takes it: "a100-80"
  std::string_view name;                   // as people write it
  std::vector<std::string_view> words;     // all of them stand in the driver's name, in any case
  std::vector<std::string_view> excluded;  // and none of these
  ProductRates tflops;
  double memory_gib = 0;  // that CUDA shows a program: a few percent less than what is printed on the box
  double gbytes = 0;      // GB/s of its memory
};

std::span<const Card> cards();

// By the name that the driver gives a card; null when none of the table is meant for certain.
const Card* find_card(std::string_view driver_name);

// By the name of --card. An unknown one is a UserError with the nearest and all others.
const Card& card_called(std::string_view id);

}  // namespace redline::perf

// The table of cards, from their datasheets: dense products, memory, bandwidth. MFU and plans use it.
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
  double memory_gib = 0;  // as CUDA reports it: a few percent less than the name says
  double gbytes = 0;      // GB/s of its memory
};

std::span<const Card> cards();

// Finds a card by its driver's name. Null: no row fits for certain.
const Card* find_card(std::string_view driver_name);

// Finds a card by its --card name. An unknown name is a UserError that lists the nearest and all others.
const Card& card_called(std::string_view id);

}  // namespace redline::perf

// Generates text: chooses tokens one after another and gives them back to the model, several texts at a time. A command
// on a checkpoint and a trainer between steps both use it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/choose_token.h"
#include "model/decoding.h"

namespace redline::model {

struct GenerateOptions {
  std::int64_t tokens = 200;  // at most, of each text
  ChoiceOptions choice;
  std::uint64_t seed = 0;                      // text i draws from stream i, whatever the other texts
  std::vector<std::int32_t> stop_tokens = {};  // where a text ends; they are not part of it
};

struct Continuation {
  std::vector<std::int32_t> tokens;  // without the prompt and without the stop token
  bool ended = false;                // by a stop token, or by the listener
};

struct GenerateFigures {
  std::int64_t prompt_tokens = 0;  // read
  std::int64_t steps = 0;          // runs of the decode program
  std::int64_t decoded = 0;        // tokens from these runs
  double prefill_seconds = 0, decode_seconds = 0;
  double decode_bytes = 0;  // moved by the steps, at least
};

struct Generated {
  std::vector<Continuation> texts;  // by prompt
  GenerateFigures figures;
};

// Continues every prompt. A text that has filled its positions goes on from its newer half, since the model has never
// seen a later position. `heard(i, token)` gets every token of text i as it comes; false ends that text.
Generated generate(Decoding& decoding, std::span<const std::vector<std::int32_t>> prompts,
                   const GenerateOptions& options, const std::function<bool(std::size_t i, std::int32_t token)>& heard);

}  // namespace redline::model

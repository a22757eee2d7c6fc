// Ramps at the beginning of a run: micro-batches and document lengths of each step. They are pure functions of the
// settings and of the step, counted from 0, so there is nothing to save or resume.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"

namespace redline::config {

// Micro-batches of a step on each rank: train.accumulate, or on the way there from train.accumulate_from, rounded to
// the nearest.
std::int64_t micro_batches(const Train& train, std::int64_t step);
// The micro-batches of all steps before it.
std::int64_t micro_batches_before(const Train& train, std::int64_t step);
// The most steps, from the first on, with no more micro-batches than this; and the number of steps nearest to it.
std::int64_t steps_within(const Train& train, double micro_batches);
std::int64_t nearest_steps(const Train& train, double micro_batches);

// Tokens that a document of a step may have: train.seq_len, or on the way there from train.seq_len_from, rounded to
// multiples of 64, or of train.seq_len_from where it is no multiple of 64.
std::int64_t longest_document(const Train& train, std::int64_t step);

// "" or "; a step grows from 2 to 8 micro-batches over 100 steps", and the same of documents.
std::string ramps_in_words(const Train& train);

}  // namespace redline::config

// Random tokens, "random:VOCABULARY", for measuring speed. There is nothing to learn, every row is full, and no pattern
// helps the hardware.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "data/corpus.h"

namespace redline::data {

std::unique_ptr<DocumentSource> make_random_tokens(std::int64_t seed, std::int64_t vocabulary);

// The vocabulary of "random:VOCABULARY"; nothing for other names. A UserError when no number follows the colon.
std::optional<std::int64_t> random_vocabulary(const std::string& name, const std::string& key);

}  // namespace redline::data

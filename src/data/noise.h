// Random tokens, "random:VOCABULARY": nothing to learn, but every row is full and no pattern helps the hardware. For
// measuring speed.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "data/corpus.h"

namespace redline::data {

std::unique_ptr<DocumentSource> make_noise(std::int64_t seed, std::int64_t vocabulary);

// The vocabulary of "random:VOCABULARY"; nothing for other names. A UserError when what follows the colon is no number.
std::optional<std::int64_t> noise_vocabulary(const std::string& name, const std::string& key);

}  // namespace redline::data

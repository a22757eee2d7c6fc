// Corpora that are generated, the same on every machine: "ping", which has something to learn, and random tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "data/corpus.h"

namespace redline::data {

// "ping": logs of network measurements between the hosts of a small made-up world. It is data with something to learn
// (distances, counting, growing times) that needs no download.
constexpr std::int64_t kPingVocabulary = 267;  // 256 bytes and 11 special tokens
constexpr std::int64_t kPingLongestDocument = 1024;

// Documents for training or held-out ones: logs of the same world, which the seed makes. The parts share no document.
// documents = 0: endless.
std::unique_ptr<DocumentSource> make_ping(std::int64_t seed, std::int64_t documents, Part part);

// "random:VOCABULARY", for measuring speed. There is nothing to learn, rows of `row` tokens are full (0: not known),
// and no pattern helps the hardware.
std::unique_ptr<DocumentSource> make_random_tokens(std::int64_t seed, std::int64_t vocabulary, std::int64_t row = 0);

// The vocabulary of "random:VOCABULARY"; nothing for other names. A UserError when no number follows the colon.
std::optional<std::int64_t> random_vocabulary(const std::string& name, const std::string& key);

}  // namespace redline::data

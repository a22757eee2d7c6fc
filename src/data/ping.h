// The generated corpus "ping": logs of network measurements between the hosts of a small made-up world. It is data with
// something to learn (distances, counting, growing times) that needs no download and is the same on every machine.
#pragma once

#include <cstdint>
#include <memory>

#include "data/corpus.h"

namespace redline::data {

constexpr std::int64_t kPingVocabulary = 267;  // 256 bytes and 11 special tokens
constexpr std::int64_t kPingLongestDocument = 1024;

// Both parts are logs of the same world, which the seed makes. They share no document.
enum class PingPart { training, held_out };

// documents = 0: endless.
std::unique_ptr<DocumentSource> make_ping(std::int64_t seed, std::int64_t documents, PingPart part);

}  // namespace redline::data

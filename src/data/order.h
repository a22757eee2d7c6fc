// The order in which documents are read, as arithmetic: no list of documents, nothing to save but a position.
#pragma once

#include <cstdint>

namespace redline::data {

// The document at `position`, which counts on over epochs. An endless source (documents = 0) is read in index order, a
// finite one in another permutation of [0, documents) each epoch.
std::int64_t document_at(std::int64_t position, std::int64_t documents, std::uint64_t seed);

// The document at `position` < `documents` of a permutation of its own for each (seed, epoch, window).
std::int64_t shuffled_in_window(std::int64_t position, std::int64_t documents, std::uint64_t seed, std::int64_t epoch,
                                std::int64_t window);

}  // namespace redline::data

// Finds documents in tokens without an index: a document reaches up to and including an end token.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "data/shards/token_array.h"

namespace redline::data {

// One or two ids that close a document.
using EndTokens = std::array<std::int64_t, 2>;

struct FoundDocuments {
  std::vector<std::uint64_t> starts;  // of each document; it reaches to the next one's start, or the end
  std::int64_t largest_id = -1;       // of all ids; for a signed type, negative ones count as huge
};

// A run of end tokens closes one document, and one at the very beginning closes none: no document is empty. All cores
// take part. A search of more than two seconds says how far it is.
FoundDocuments find_documents(const TokenArray& ids, EndTokens ends, const std::string& name, ThreadPool& pool);

// The largest id alone.
std::int64_t largest_id(const TokenArray& ids, const std::string& name, ThreadPool& pool);

}  // namespace redline::data

// The documents of a packed batch, cut into the parts that attention's tasks are made of.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/tensor.h"

namespace redline::ops::cpu {

// Tokens [begin, end) of the document that starts at `document`.
struct DocumentPart {
  std::int64_t document, begin, end;
};
using DocumentParts = std::span<const DocumentPart>;

// The beginning of the tail. Unused entries of doc_offsets repeat the end.
inline std::int64_t documents_end(const Tensor& doc_offsets) { return doc_offsets.i32()[doc_offsets.elements() - 1]; }

// Every document that has tokens, in parts of at most `length` counted from its own start; the parts that see most keys
// come first, so that no thread is left with a long one at the end. Valid until the calling thread cuts again.
inline DocumentParts cut_documents(const Tensor& doc_offsets,
                                   std::int64_t length = std::numeric_limits<std::int32_t>::max()) {
  // Kept from call to call: a steady step allocates nothing.
  thread_local std::vector<DocumentPart> parts;
  parts.clear();
  const std::int32_t* offsets = doc_offsets.i32();
  const std::int64_t capacity = doc_offsets.elements() - 1;
  for (std::int64_t d = 0; d < capacity; ++d) {
    const std::int64_t document = offsets[d], end = offsets[d + 1];
    for (std::int64_t begin = document; begin < end; begin += length) {
      parts.push_back({document, begin, std::min(end, begin + length)});
    }
  }
  std::sort(parts.begin(), parts.end(), [](const DocumentPart& a, const DocumentPart& b) {
    const std::int64_t keys_a = a.end - a.document, keys_b = b.end - b.document;
    return keys_a != keys_b ? keys_a > keys_b : a.begin < b.begin;
  });
  return parts;
}

}  // namespace redline::ops::cpu

// What the batches of a configuration hold: padding, by the lengths of its own documents. They are packed as training
// would pack them; no token is kept, and no device is touched.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/config.h"

namespace redline::perf {

// A row of a batch in the mean. By default it is one document.
struct Filling {
  double documents = 1;    // of a row
  double length = 0;       // of equal documents with as many pairs of attention; 0: a row's
  double utilisation = 1;  // real tokens over token slots
};

// The documents of a micro-batch, all of one length.
struct Documents {
  double count = 0, length = 0;
};
Documents documents_of(std::int64_t rows, std::int64_t seq_len, const Filling& filling);

// A packing that pads, beside the one that would not.
struct Filled {
  std::string source;          // "ping (generated), 20000 documents"
  std::int64_t documents = 0;  // that were looked at
  Filling own, packed;         // as data.packing has it, and with data.packing = "pack"
  std::string problem;         // why data.train cannot tell; the rest says nothing then
};

// Nothing where data.packing fills its rows anyway. At most some 20,000 documents are read: of documents by index a
// sample, of text the first ones.
std::optional<Filled> filled(const config::Config& config);

}  // namespace redline::perf

// tokenizer.json from anybody, and a text to encode with it: the bytes up to the first NUL are the file, the rest is
// the text. A UserError is right; a crash, a hang or memory out of proportion is not.
#include <cstdlib>

#include "base/error.h"
#include "data/tokenizer/tokenizer.h"
#include "data/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace redline;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t end = std::min(input.find('\0'), input.size());
  const std::string_view text = input.substr(std::min(end + 1, input.size()));
  try {
    const auto tokenizer = data::bpe_tokenizer(input.substr(0, end), "fuzz.json");
    const std::vector<std::int32_t> ids = tokenizer->encode(text);
    for (const std::int32_t id : ids)
      if (id < 0 || id >= tokenizer->vocabulary()) std::abort();
    // The cache must not change what comes out.
    const auto encoder = tokenizer->encoder();
    std::vector<std::int32_t> again;
    encoder->append(text, again);
    again.clear();
    encoder->append(text, again);
    if (again != ids) std::abort();
    if (!data::is_utf8(tokenizer->decode(ids))) std::abort();
  } catch (const UserError&) {
  }
  return 0;
}

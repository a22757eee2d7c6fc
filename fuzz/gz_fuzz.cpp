// gzip files: members, padding, damage.
#include <zlib.h>

#include "decompress.h"

namespace redline::fuzz {

std::vector<std::string> seeds() {
  const auto packed = [](const std::string& text) {
    z_stream z{};
    deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
    std::string out(deflateBound(&z, text.size()) + 64, '\0');
    z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    z.avail_in = static_cast<uInt>(text.size());
    z.next_out = reinterpret_cast<Bytef*>(out.data());
    z.avail_out = static_cast<uInt>(out.size());
    deflate(&z, Z_FINISH);
    out.resize(z.total_out);
    deflateEnd(&z);
    return out;
  };
  std::string mixed;
  for (int i = 0; i < 3000; ++i) mixed += static_cast<char>(i * i / 7);
  return {packed("hello"),
          packed(""),
          packed("a") + packed("b"),
          packed("a") + std::string(20, '\0'),
          packed(mixed),
          packed(std::string(100'000, 'x'))};
}

}  // namespace redline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  redline::fuzz::decompress(data, size, "x.gz");
  return 0;
}

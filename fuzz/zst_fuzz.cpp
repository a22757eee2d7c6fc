// zstd files: frames, skippable frames, windows, damage.
#include <zstd.h>

#include "decompress.h"

namespace redline::fuzz {

std::vector<std::string> seeds() {
  const auto packed = [](const std::string& text, int level, bool checksum) {
    ZSTD_CCtx* context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level);
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, checksum);
    std::string out(ZSTD_compressBound(text.size()), '\0');
    out.resize(ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size()));
    ZSTD_freeCCtx(context);
    return out;
  };
  std::string mixed;
  for (int i = 0; i < 3000; ++i) mixed += static_cast<char>(i * i / 7);
  const std::string skippable("\x51\x2a\x4d\x18\4\0\0\0abcd", 12);
  return {packed("hello", 3, true),
          packed("", 3, false),
          packed("a", 3, true) + packed("b", 19, false),
          packed(mixed, 19, true),
          skippable + packed(mixed, 1, false),
          packed(std::string(300'000, 'x'), 3, true)};
}

}  // namespace redline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  redline::fuzz::decompress(data, size, "x.zst");
  return 0;
}

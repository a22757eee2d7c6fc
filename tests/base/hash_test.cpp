// Hashes are XXH3-64 as published, whole or in pieces: manifests of other machines depend on it.
#include "base/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace redline {
namespace {

TEST(Hash, IsXxh3) {
  EXPECT_EQ(hex64(hash64(std::string_view())), "2d06800538d394c2");  // the published hash of nothing
  EXPECT_EQ(hash64("abc"), hash64(std::as_bytes(std::span("abc", 3))));
  EXPECT_NE(hash64("abc"), hash64("abd"));
}

TEST(Hash, HexHasSixteenDigits) {
  EXPECT_EQ(hex64(0), "0000000000000000");
  EXPECT_EQ(hex64(0xABCDEF), "0000000000abcdef");
}

TEST(Hash, PiecesOfAnySizeGiveTheHashOfTheWhole) {
  std::vector<std::byte> bytes(10'007);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 % 251);
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, std::size_t{256}, std::size_t{4096}, bytes.size()}) {
    Hasher hasher;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      hasher.update(std::span(bytes).subspan(at, std::min(piece, bytes.size() - at)));
    }
    EXPECT_EQ(hasher.digest(), hash64(bytes)) << "pieces of " << piece;
  }
}

}  // namespace
}  // namespace redline

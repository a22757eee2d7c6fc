// SHA-256 (FIPS 180-4), HMAC (RFC 2104), and where a run's secret comes from. No library that the program links has a
// keyed hash, and a cryptographic one would be a dependency for these few lines; the tests hold them against the
// published vectors.
#include "dist/token.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "dist/connection.h"

namespace redline::dist {
namespace {

constexpr std::size_t kShaBlock = 64, kShortestToken = 32, kLongestToken = 1024;

constexpr std::uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

void add_block(std::array<std::uint32_t, 8>& hash, const unsigned char* block) {
  std::uint32_t w[64];
  for (std::size_t i = 0; i < 16; ++i)
    w[i] = std::uint32_t{block[4 * i]} << 24 | std::uint32_t{block[4 * i + 1]} << 16 |
           std::uint32_t{block[4 * i + 2]} << 8 | std::uint32_t{block[4 * i + 3]};
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = hash;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t one =
        h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
    const std::uint32_t two = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = std::exchange(g, std::exchange(f, std::exchange(e, d + one)));
    d = std::exchange(c, std::exchange(b, std::exchange(a, one + two)));
  }
  const std::array<std::uint32_t, 8> added = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) hash[i] += added[i];
}

std::string text_of_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

// As XDG says; where caches of this program are kept.
std::string cache_folder() {
  if (const std::string cache = text_of_variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/redline";
  if (const std::string home = text_of_variable("HOME"); !home.empty()) return home + "/.cache/redline";
  return "";
}

constexpr const char* kHowToSet =
    "set REDLINE_TOKEN to the same secret for all ranks (export REDLINE_TOKEN=$(openssl rand -hex 32); "
    "mpirun -x REDLINE_TOKEN)";

// The user's own key. Whoever comes first makes it: under another name, and linked to its own at once, so that no rank
// reads half of it and two that come together read the same.
std::string users_key(const std::string& folder) {
  const auto refuse = [&](const std::string& why) {
    fail_user("ranks cannot tell each other from strangers: {}; {}", why, kHowToSet);
  };
  if (folder.empty()) refuse("there is no HOME for a key of theirs");
  const std::string path = folder + "/ranks.key";
  const auto read = [&]() -> std::string {
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!file.open()) {
      if (errno == ENOENT) return "";
      refuse(fmt::format("{}: {}", path, std::strerror(errno)));
    }
    struct stat about {};
    char bytes[kShaBlock + 1];
    if (::fstat(file.number(), &about) != 0 || !S_ISREG(about.st_mode) || about.st_uid != ::geteuid() ||
        (about.st_mode & 077) != 0)
      refuse(fmt::format("{} is no file that its owner alone can read; remove it", path));
    const auto n = ::read(file.number(), bytes, sizeof bytes);
    if (n != static_cast<ssize_t>(kShaBlock)) refuse(fmt::format("{} does not hold a key; remove it", path));
    return std::string(bytes, kShaBlock);
  };
  if (std::string key = read(); !key.empty()) return key;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string fresh = new_token(), beside = fmt::format("{}.{}", path, new_token().substr(0, 8));
  {
    const Descriptor file(::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file.open()) refuse(fmt::format("{}: {}", beside, std::strerror(errno)));
    if (::write(file.number(), fresh.data(), fresh.size()) != static_cast<ssize_t>(fresh.size()))
      refuse(fmt::format("{}: {}", beside, std::strerror(errno)));
  }
  const bool linked = ::link(beside.c_str(), path.c_str()) == 0 || errno == EEXIST;
  const int why = errno;
  ::unlink(beside.c_str());
  if (!linked) refuse(fmt::format("{}: {}", path, std::strerror(why)));
  const std::string key = read();
  if (key.empty()) refuse(path + " went away");
  return key;
}

}  // namespace

std::string sha256(std::string_view bytes) {
  std::array<std::uint32_t, 8> hash = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::string last(bytes.substr(bytes.size() - bytes.size() % kShaBlock));
  last += '\x80';
  while (last.size() % kShaBlock != kShaBlock - 8) last += '\0';
  for (int shift = 56; shift >= 0; shift -= 8)
    last += static_cast<char>(8 * std::uint64_t{bytes.size()} >> shift & 0xFF);
  for (const std::string_view part : {bytes.substr(0, bytes.size() - bytes.size() % kShaBlock), std::string_view(last)})
    for (std::size_t at = 0; at < part.size(); at += kShaBlock)
      add_block(hash, reinterpret_cast<const unsigned char*>(part.data() + at));
  std::string out;
  for (const std::uint32_t word : hash)
    for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(word >> shift & 0xFF);
  return out;
}

std::string hmac_sha256(std::string_view key, std::string_view bytes) {
  std::string block = key.size() > kShaBlock ? sha256(key) : std::string(key);
  block.resize(kShaBlock, '\0');
  const auto with = [&](char mask) {
    std::string out = block;
    for (char& c : out) c = static_cast<char>(c ^ mask);
    return out;
  };
  return sha256(with('\x5c') + sha256(with('\x36') + std::string(bytes)));
}

bool same_secret(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  for (std::size_t got = 0; got < count;) {
    const auto n = ::getrandom(bytes.data() + got, count - got, 0);
    if (n > 0)
      got += static_cast<std::size_t>(n);
    else if (errno != EINTR)
      fail_machine("getrandom: {}", std::strerror(errno));
  }
  return bytes;
}

std::string new_token() {
  std::string token;
  for (const char c : random_bytes(kShaBlock / 2)) token += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return token;
}

std::string run_secret(const Place& place, int port, const std::string& folder) {
  std::string token = place.token;
  if (token.empty()) {
    if (!place.one_machine())
      fail_user("{} ranks on several machines need a token, by which they know each other; {}", place.ranks, kHowToSet);
    token = users_key(folder.empty() ? cache_folder() : folder);
  } else if (token.size() < kShortestToken || token.size() > kLongestToken) {
    fail_user("{} has {} characters; it must have {} to {}, and be random: openssl rand -hex 32", kTokenVariable,
              token.size(), kShortestToken, kLongestToken);
  }
  return hmac_sha256(token, fmt::format("redline ranks 2\n{}\n{}", port, place.job));
}

std::string proof(std::string_view secret, std::string_view from, std::string_view host_nonce,
                  std::string_view guest_nonce, std::string_view said) {
  // The first three have lengths that are known, so that no two ways of cutting mean the same bytes.
  return hmac_sha256(secret, fmt::format("{}\n{}{}{}", from, host_nonce, guest_nonce, said));
}

}  // namespace redline::dist

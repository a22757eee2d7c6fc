// The hash against published vectors, and where a run's secret comes from.
#include "dist/token.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>
#include <thread>

#include "base/error.h"
#include "base/files.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::dist {
namespace {

std::string hex(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

// FIPS 180-4's examples, and lengths about the edge of a block.
TEST(Token, TheHashIsSha256) {
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// RFC 4231, cases 1, 2, 3 and 6.
TEST(Token, TheKeyedHashIsHmacSha256) {
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\xaa'), std::string(50, '\xdd'))),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(hex(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Token, SecretsAreComparedWhole) {
  EXPECT_TRUE(same_secret("abc", "abc"));
  EXPECT_FALSE(same_secret("abc", "abd"));
  EXPECT_FALSE(same_secret("abc", "bbc"));
  EXPECT_FALSE(same_secret("abc", "ab"));
}

TEST(Token, IsNewEveryTime) {
  std::set<std::string> all;
  for (int i = 0; i < 100; ++i) all.insert(new_token());
  EXPECT_EQ(all.size(), 100u);
  EXPECT_EQ(all.begin()->size(), 64u);
}

class RunSecret : public ::testing::Test {
 protected:
  Place here(const std::string& token) const {
    Place place;
    place.ranks = place.local_ranks = 2;
    place.token = token;
    place.job = "job";
    return place;
  }
  std::string key() const { return (folder_ / "cache/ranks.key").string(); }
  std::string cache() const { return (folder_ / "cache").string(); }
  void refused(const Place& place, const std::vector<std::string>& parts) const {
    try {
      run_secret(place, place.port, cache());
      FAIL() << "no error";
    } catch (const UserError& e) {
      for (const std::string& part : parts) EXPECT_TRUE(testing::says(e.what(), part));
    }
  }
  testing::TempFolder folder_;
};

TEST_F(RunSecret, FollowsTokenAndJob) {
  const std::string a(32, 'a'), b(32, 'b');
  Place other = here(a);
  other.job = "another";
  EXPECT_EQ(run_secret(here(a)), run_secret(here(a)));
  EXPECT_NE(run_secret(here(a)), run_secret(here(b)));
  EXPECT_NE(run_secret(here(a)), run_secret(other));
  EXPECT_NE(run_secret(here(a), 1), run_secret(here(a), 2))
      << "a knock that is passed on to another port opens nothing";
  refused(here("too short"), {"REDLINE_TOKEN", "9 characters", "32"});
}

TEST_F(RunSecret, SeveralMachinesNeedAToken) {
  Place place = here("");
  place.local_ranks = 1;
  refused(place, {"several machines", "REDLINE_TOKEN=$(openssl rand -hex 32)", "mpirun -x"});
  place.token = std::string(32, 'a');
  EXPECT_EQ(run_secret(place).size(), 32u);
}

// Ranks that torchrun starts together, and none has made the key before.
TEST_F(RunSecret, OnOneMachineTheUsersKeyServes) {
  std::vector<std::string> all(8);
  std::vector<std::thread> threads;
  for (std::string& one : all) threads.emplace_back([&] { one = run_secret(here(""), 1, cache()); });
  for (std::thread& t : threads) t.join();
  for (const std::string& one : all) EXPECT_EQ(one, all[0]);
  EXPECT_EQ(real_files().list(folder_ / "cache"), std::vector<std::string>{"ranks.key"});
  struct stat about {};
  ASSERT_EQ(::stat(key().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777u, 0600u);
  EXPECT_NE(run_secret(here(std::string(32, 'a')), 1, cache()), all[0]);  // a token counts before it
}

TEST_F(RunSecret, AKeyThatOthersCanReadIsRefused) {
  run_secret(here(""), 1, cache());
  ::chmod(key().c_str(), 0644);
  refused(here(""), {"ranks.key", "its owner alone", "REDLINE_TOKEN"});
  ::unlink(key().c_str());
  ASSERT_EQ(::symlink("/etc/passwd", key().c_str()), 0);
  refused(here(""), {"ranks.key", "REDLINE_TOKEN"});
  ::unlink(key().c_str());
  real_files().replace(key(), "short");
  ::chmod(key().c_str(), 0600);
  refused(here(""), {"ranks.key", "does not hold a key"});
}

TEST_F(RunSecret, ProofsDifferByDirectionNonceAndWords) {
  const std::string secret(32, 's'), a(32, 'a'), b(32, 'b');
  const std::set<std::string> all = {proof(secret, "rank 0", a, b),    proof(secret, "rank", a, b),
                                     proof(secret, "rank", b, a),      proof(secret, "rank", a, b, "words"),
                                     proof(secret, "rank", a, b, "w"), proof(std::string(32, 't'), "rank", a, b)};
  EXPECT_EQ(all.size(), 6u);
}

}  // namespace
}  // namespace redline::dist

// A folder that this user may not use, for as long as a test wants it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace redline::testing {

// Only root can become somebody else, whom rights hold; anybody else forbids himself what he has.
class WithoutRights {
 public:
  explicit WithoutRights(const std::filesystem::path& folder,
                         std::filesystem::perms left = std::filesystem::perms::none)
      : folder_(folder) {
    std::filesystem::permissions(folder_, left);
    if (::geteuid() == 0) become(kNobody);
  }
  ~WithoutRights() {
    if (::getuid() == 0) become(0);
    std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
  }
  WithoutRights(const WithoutRights&) = delete;
  WithoutRights& operator=(const WithoutRights&) = delete;

 private:
  static void become(uid_t user) { EXPECT_EQ(::seteuid(user), 0); }
  static constexpr uid_t kNobody = 65534;
  std::filesystem::path folder_;
};

}  // namespace redline::testing

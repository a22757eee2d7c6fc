// What a device's mailbox must do, whatever the device.
#pragma once

#include <gtest/gtest.h>

#include "base/error.h"
#include "device/device.h"

namespace redline::testing {

// What is posted is what memory held when the work before it was done; letters are taken in the order of posting.
inline void expect_letters_in_order(device::Device& device) {
  using device::Mailbox;
  constexpr std::int64_t kBytes = sizeof(std::int64_t);
  const auto memory = device.allocate(3 * kBytes);
  const auto mailbox = device.make_mailbox(2 * kBytes);
  const Mailbox::Piece pieces[] = {{memory->data() + 2 * kBytes, kBytes}, {memory->data(), kBytes}};
  std::int64_t letter[2];
  for (std::int64_t round = 0; round < 5; ++round) {
    for (std::int64_t posted = 0; posted < Mailbox::kSlots; ++posted) {
      const std::int64_t now[] = {10 * round + posted, 2, -round};
      device.copy_in(memory->data(), now, sizeof now);
      mailbox->post(pieces);
    }
    EXPECT_THROW(mailbox->post(pieces), MachineError);
    for (std::int64_t posted = 0; posted < Mailbox::kSlots; ++posted) {
      mailbox->take(letter);
      EXPECT_EQ(letter[0], -round);
      EXPECT_EQ(letter[1], 10 * round + posted);
    }
  }
  EXPECT_THROW(mailbox->take(letter), MachineError);
}

}  // namespace redline::testing

// Work that is shared out and handed back in order: whatever the workers, the caller sees what one thread would have
// done, errors included.
#include "data/ordered_workers.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace redline::data {
namespace {

struct Item {
  std::int64_t value = 0, size = 0;
  std::int64_t bytes() const { return size; }
  void clear() { value = size = 0; }
};
using Workers = OrderedWorkers<Item>;

constexpr std::int64_t kItems = 200;

// Doubles the numbers from 0 on. `bad` fails, when it is taken or when it is made; -1: none does.
struct Numbers {
  std::int64_t next = 0, bad = -1;
  bool bad_to_take = false, keeps_part = false;
  std::atomic<std::int64_t> waiting_ns = 0;

  std::unique_ptr<Workers> with(std::int64_t workers, std::size_t items = 8, std::int64_t bytes = 300) {
    Workers::Work work;
    work.take = [this](Item& item) {
      if (next == kItems) return false;
      if (next == bad && bad_to_take) throw std::runtime_error("taken");
      item.value = next++;
      item.size = item.value % 13 == 0 ? 500 : 10;  // some alone are beyond the limit
      return true;
    };
    work.maker = [this] {
      return [this](Item& item) {
        if (item.value == bad) throw std::runtime_error("made");
        if (item.value % 5 == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
        item.value *= 2;
      };
    };
    work.keeps_part = [this](Item&) { return keeps_part; };
    return std::make_unique<Workers>(work, Workers::Limits{workers, items, bytes}, waiting_ns);
  }
};

std::vector<std::int64_t> all_of(Workers& workers) {
  std::vector<std::int64_t> values;
  std::unique_ptr<Item> item;
  while (workers.next(item) == Workers::Got::item) {
    values.push_back(item->value);
    workers.give_back(std::move(item));
  }
  return values;
}

std::vector<std::int64_t> doubled(std::int64_t count) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(2 * i);
  return values;
}

TEST(OrderedWorkers, ItemsComeInOrderWhateverTheWorkers) {
  for (const std::int64_t workers : {0, 1, 2, 5}) {
    Numbers numbers;
    const auto made = numbers.with(workers);
    for (const int again : {0, 1}) {
      EXPECT_EQ(all_of(*made), doubled(kItems)) << workers << " workers, turn " << again;
      EXPECT_EQ(made->held_bytes(), 0);
      made->restart();
      numbers.next = 0;
    }
    EXPECT_TRUE(made->over_limit());
  }
}

TEST(OrderedWorkers, AnErrorComesBehindAllBeforeItAndStays) {
  for (const std::int64_t workers : {0, 3})
    for (const bool to_take : {false, true}) {
      Numbers numbers;
      numbers.bad = 150;
      numbers.bad_to_take = to_take;
      const auto made = numbers.with(workers);
      std::unique_ptr<Item> item;
      for (std::int64_t i = 0; i < numbers.bad; ++i) {
        ASSERT_EQ(made->next(item), Workers::Got::item);
        ASSERT_EQ(item->value, 2 * i);
        made->give_back(std::move(item));
      }
      for (const int again : {0, 1}) EXPECT_THROW(made->next(item), std::runtime_error) << again;
    }
}

TEST(OrderedWorkers, APartOfAnItemComesBeforeItsError) {
  for (const std::int64_t workers : {0, 2}) {
    Numbers numbers;
    numbers.bad = 0;
    numbers.keeps_part = true;
    const auto made = numbers.with(workers);
    std::unique_ptr<Item> item;
    EXPECT_EQ(made->next(item), Workers::Got::item);
    EXPECT_EQ(item->value, 0);
    EXPECT_THROW(made->next(item), std::runtime_error);
  }
}

// Without anything given back no more is made than the limit has room for, and whoever asks for one more still gets it.
TEST(OrderedWorkers, LimitsHoldWhatIsMadeAhead) {
  Numbers numbers;
  const auto made = numbers.with(3, 8, 100);
  std::vector<std::unique_ptr<Item>> kept;
  for (int i = 0; i < 12; ++i) {
    ASSERT_EQ(made->next(kept.emplace_back()), Workers::Got::item);
    EXPECT_LE(made->ready(), 8);
  }
  made->stop();
  std::unique_ptr<Item> item;
  EXPECT_EQ(made->next(item), Workers::Got::end);
}

TEST(OrderedWorkers, WhoeverIsImpatientHearsThatNothingIsThereYet) {
  std::atomic<bool> go = false;
  std::atomic<std::int64_t> waiting_ns = 0;
  Workers::Work work;
  work.take = [&](Item&) {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return false;
  };
  work.maker = [] { return [](Item&) {}; };
  Workers workers(work, {1, 4, 100}, waiting_ns);
  std::unique_ptr<Item> item;
  EXPECT_EQ(workers.next(item, std::chrono::milliseconds(5)), Workers::Got::nothing_yet);
  go = true;
  EXPECT_EQ(workers.next(item), Workers::Got::end);
}

}  // namespace
}  // namespace redline::data

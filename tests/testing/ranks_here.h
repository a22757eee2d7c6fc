// Ranks as threads of this process: what io::Communicator asks for, in memory.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "io/communicator.h"

namespace redline::testing {

class RanksHere {
 public:
  explicit RanksHere(int ranks) : said_(static_cast<std::size_t>(ranks)) {}

  // Runs it on every rank at once; returns what each threw, as a sentence, nothing where all went well.
  std::vector<std::string> run(const std::function<void(io::Communicator&)>& action) {
    std::vector<std::string> errors(said_.size());
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < said_.size(); ++rank)
      threads.emplace_back([&, rank] {
        One one(*this, static_cast<int>(rank));
        try {
          action(one);
        } catch (const std::exception& e) {
          errors[rank] = e.what();
        }
      });
    for (std::thread& thread : threads) thread.join();
    return errors;
  }

  // One of them.
  class One final : public io::Communicator {
   public:
    One(RanksHere& all, int rank) : all_(all), rank_(rank) {}
    int rank() const override { return rank_; }
    int ranks() const override { return static_cast<int>(all_.said_.size()); }
    // Two of them a machine, as where several machines write a checkpoint.
    std::string host() const override { return "node" + std::to_string(rank_ / 2); }
    std::vector<std::string> gather(const std::string& mine) override {
      const std::vector<std::string> all = all_.exchange(rank_, mine);
      return rank_ == 0 ? all : std::vector<std::string>{};
    }
    std::string broadcast(const std::string& words) override { return all_.exchange(rank_, words).front(); }

   private:
    RanksHere& all_;
    int rank_;
  };

 private:
  // The last to come lets all go, with what everybody said.
  std::vector<std::string> exchange(int rank, const std::string& words) {
    std::unique_lock lock(mutex_);
    said_[static_cast<std::size_t>(rank)] = words;
    const int round = round_;
    if (++here_ == static_cast<int>(said_.size())) {
      told_ = said_;
      here_ = 0;
      ++round_;
      all_here_.notify_all();
    }
    all_here_.wait(lock, [&] { return round_ != round; });
    return told_;
  }

  std::mutex mutex_;
  std::condition_variable all_here_;
  std::vector<std::string> said_, told_;
  int here_ = 0, round_ = 0;
};

}  // namespace redline::testing

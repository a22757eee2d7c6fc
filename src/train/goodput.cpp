// Switching a part settles the one before it. Nothing here waits or writes.
#include "train/goodput.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <numeric>
#include <string>
#include <utility>

#include "train/observer.h"

namespace redline::train {
namespace {

constexpr double kBetweenRows = 10;  // seconds between two rows of the metrics with all parts
// A process that a script became (exec) is as old as the script. No program takes this long to load: one that is older
// began as something else.
constexpr double kLongestLoading = 60;
constexpr Part kRepeated[] = {Part::steps, Part::data, Part::ranks, Part::evaluation, Part::sampling};

const double kLoaded = steady_seconds();

double seconds_of(clockid_t clock) {
  std::timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Since the process was made, from field 22 of its stat: ticks since the machine was started. Nothing where the system
// does not tell.
std::optional<double> age_by_the_system() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t name_ends = text.rfind(')');  // the name may hold spaces
  if (name_ends == text.npos) return std::nullopt;
  std::size_t at = name_ends + 1;
  for (int field = 3; field < 22 && at != text.npos; ++field) at = text.find(' ', at + 1);
  const long ticks_a_second = ::sysconf(_SC_CLK_TCK);
  if (at == text.npos || ticks_a_second <= 0) return std::nullopt;
  const double began = std::strtod(text.c_str() + at, nullptr) / static_cast<double>(ticks_a_second);
  const double age = seconds_of(CLOCK_BOOTTIME) - began;
  return began > 0 && age >= 0 ? std::optional(age) : std::nullopt;
}

}  // namespace

void StartLaps::lap(std::string_view part, double now) {
  auto known = std::ranges::find(parts_, part, &Part::name);
  if (known == parts_.end()) known = parts_.insert(known, {part, 0});
  known->seconds += now - std::exchange(last_, now);
}

std::string StartLaps::in_words() const {
  constexpr double kFelt = 0.05;
  std::string text = fmt::format("ready in {:.1f} s", seconds());
  const char* before = ": ";
  for (const Part& part : parts_)
    if (part.seconds >= kFelt) text += fmt::format("{}{} {:.1f}", std::exchange(before, ", "), part.name, part.seconds);
  return text;
}

double process_began() {
  const double began = steady_seconds() - age_by_the_system().value_or(0);
  return began <= kLoaded && began >= kLoaded - kLongestLoading ? began : kLoaded;
}

double asleep_seconds() { return std::max(0.0, seconds_of(CLOCK_BOOTTIME) - seconds_of(CLOCK_MONOTONIC)); }

double Account::wall() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

double Account::share(Part part) const {
  const double all = wall();
  return all > 0 ? of(part) / all : 0;
}

std::optional<double> Account::joules_per_token() const {
  return joules && tokens > 0 ? std::optional(*joules / static_cast<double>(tokens)) : std::nullopt;
}

void Account::lose_all_since(const Account& kept) {
  for (const Part part : kRepeated) {
    const double lost = std::max(0.0, of(part) - kept.of(part));
    of(part) -= lost;
    of(Part::done_again) += lost;
  }
}

Goodput::Goodput(std::optional<double> began, Clocks clocks)
    : clocks_(clocks), asleep_(clocks.asleep()), since_(began.value_or(clocks.steady())) {
  began_ = clocks.of_day() - (clocks.steady() - since_);
}

Account Goodput::now() const {
  Account account = account_;
  account.of(part_) += clocks_.steady() - since_;
  // Two clocks are asked one after the other: their difference is never the same twice.
  const double slept = clocks_.asleep() - asleep_;
  account.of(Part::standing_still) = slept > 1e-3 ? slept : 0;
  return account;
}

Account Goodput::account() const {
  const std::lock_guard lock(mutex_);
  return now();
}

void Goodput::settle() {
  const double now = clocks_.steady();
  account_.of(part_) += now - since_;
  since_ = now;
}

Part Goodput::turn_to(Part part) {
  const std::lock_guard lock(mutex_);
  settle();
  return std::exchange(part_, part);
}

Goodput::Scope Goodput::saving(std::int64_t step) {
  {
    const std::lock_guard lock(mutex_);
    settle();
    marks_.push_back({step, account_});
  }
  return in(Part::saving);
}

void Goodput::went_back(std::int64_t step) {
  const std::lock_guard lock(mutex_);
  settle();
  std::erase_if(marks_, [&](const Mark& mark) { return mark.step > step; });
  account_.lose_all_since(marks_.empty() ? Account{} : marks_.back().account);
}

void Goodput::ask(const device::GpuMonitor* card) {
  const std::optional<device::GpuSample> sample = card ? card->latest() : std::nullopt;
  if (!sample || !sample->energy_j) return;
  const std::lock_guard lock(mutex_);
  account_.joules = sample->energy_j;
}

void Goodput::stepped(StepMetrics& m) {
  const std::lock_guard lock(mutex_);
  settle();
  const double waited = std::clamp(1e-3 * std::min(m.data_wait_ms, m.idle_ms), 0.0, account_.of(Part::steps));
  account_.of(Part::steps) -= waited;
  account_.of(Part::data) += waited;
  if (m.ranks && m.ranks->wait_ms) {
    const double for_ranks = std::clamp(1e-3 * *m.ranks->wait_ms, 0.0, account_.of(Part::steps));
    account_.of(Part::steps) -= for_ranks;
    account_.of(Part::ranks) += for_ranks;
  }
  account_.tokens += m.tokens;
  if (m.gpu && m.gpu->energy_j) account_.joules = m.gpu->energy_j;
  const Account all = now();
  m.goodput = all.share(Part::steps);
  if (told_ >= 0 && all.wall() - told_ < kBetweenRows) return;
  told_ = all.wall();
  m.account = all;
}

}  // namespace redline::train

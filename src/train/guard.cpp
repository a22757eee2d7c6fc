// Counts updates that were not made, and remembers of which batches they were.
#include "train/guard.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/json.h"

namespace redline::train {
namespace {

std::vector<std::int64_t> integers_at(const io::Json& json, const char* key) {
  return json.contains(key) ? json.at(key).get<std::vector<std::int64_t>>() : std::vector<std::int64_t>{};
}

}  // namespace

io::Json to_json(const GuardState& s) {
  io::Json json = {{"drawn", s.drawn},
                   {"streak", s.streak},
                   {"skipped", s.skipped},
                   {"rollbacks", s.rollbacks},
                   {"to_pass_over", s.to_pass_over}};
  if (s.good) json["good"] = *s.good;
  return json;
}

GuardState guard_state_from(const io::Json& json, const std::string& file) {
  GuardState s;
  s.drawn = io::integer_at(json, "drawn", file);
  s.skipped = io::integer_at(json, "skipped", file);
  s.rollbacks = io::integer_at(json, "rollbacks", file);
  s.streak = integers_at(json, "streak");
  s.to_pass_over = integers_at(json, "to_pass_over");
  if (json.contains("good")) s.good = io::integer_at(json, "good", file);
  return s;
}

void Guard::begin(std::int64_t step) {
  saved_ = step > 0 ? std::optional(step) : std::nullopt;
  clean_ = true;
  last_made_.reset();
  documents_.clear();
}

void Guard::made(std::int64_t draw, std::span<const std::int64_t> documents) {
  state_.streak.clear();
  documents_.clear();
  last_made_ = draw;
  documents_[draw].assign(documents.begin(), documents.end());
}

Guard::Verdict Guard::left_out(std::int64_t draw, std::span<const std::int64_t> documents) {
  clean_ = clean_since_begun_ = false;
  ++state_.skipped;
  state_.streak.push_back(draw);
  documents_[draw].assign(documents.begin(), documents.end());
  if (streak() <= settings_.skips) return Verdict::skip;
  return may_go_back() ? Verdict::go_back : Verdict::end;
}

void Guard::before_save(std::int64_t step) {
  if (clean_ && saved_ && *saved_ < step) state_.good = saved_;
  clean_since_begun_ = true;
}

void Guard::saved(std::int64_t step) {
  saved_ = step;
  clean_ = clean_since_begun_;
}

std::vector<PassedBatch> Guard::go_back(GuardState then, std::int64_t step, bool broken) {
  std::vector<std::int64_t> draws = state_.streak;
  if (broken && last_made_) draws.push_back(*last_made_);
  std::erase_if(draws, [&](std::int64_t draw) { return draw < then.drawn; });
  std::ranges::sort(draws);
  std::vector<PassedBatch> passed;
  for (const std::int64_t draw : draws) passed.push_back({draw, each_once(documents_[draw])});

  draws.insert(draws.end(), state_.to_pass_over.begin(), state_.to_pass_over.end());
  draws.insert(draws.end(), then.to_pass_over.begin(), then.to_pass_over.end());
  then.to_pass_over = each_once(draws);
  then.skipped = state_.skipped;
  then.rollbacks = state_.rollbacks + 1;
  then.streak.clear();
  if (state_.good == step) then.good = step;
  state_ = std::move(then);
  begin(step);
  return passed;
}

bool Guard::passes_over() const { return std::ranges::binary_search(state_.to_pass_over, state_.drawn); }

void Guard::passed_over() {
  ++state_.drawn;
  std::erase_if(state_.to_pass_over, [&](std::int64_t draw) { return draw < state_.drawn; });
}

std::vector<std::int64_t> each_once(std::span<const std::int64_t> documents) {
  std::vector<std::int64_t> once(documents.begin(), documents.end());
  std::ranges::sort(once);
  const auto [end, rest] = std::ranges::unique(once);
  once.erase(end, rest);
  return once;
}

std::string documents_in_words(std::span<const std::int64_t> documents) {
  constexpr std::size_t kShown = 8;
  const std::vector<std::int64_t> all = each_once(documents);
  const std::size_t shown = std::min(all.size(), kShown), more = all.size() - shown;
  return fmt::format("{}{}", fmt::join(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                     more ? fmt::format(" and {} more", more) : "");
}

}  // namespace redline::train

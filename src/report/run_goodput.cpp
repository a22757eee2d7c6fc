// A session ends with its last row. Its steps behind the checkpoint that a later session resumed were done again.
#include "report/run_goodput.h"

#include <algorithm>
#include <limits>

#include "io/json.h"
#include "report/json_rows.h"

namespace redline::report {
namespace {

constexpr double kMostSeconds = 1e10;  // three hundred years

struct Row {
  std::int64_t step = 0;
  train::Account account;
};

bool is_time(double seconds) { return seconds >= 0 && seconds < kMostSeconds; }

// False where the row is none of ours.
bool read_account(const io::Json& row, train::Account& account) {
  const auto seconds = row.find("seconds");
  if (seconds == row.end() || !seconds->is_object()) return false;
  for (std::size_t p = 0; p < train::kParts.size(); ++p) {
    // Rows of before there were ranks say nothing of them.
    const double without = static_cast<train::Part>(p) == train::Part::ranks ? 0 : -1;
    account.seconds[p] = number_or(*seconds, train::kParts[p].key, without);
    if (!is_time(account.seconds[p])) return false;
  }
  account.tokens = std::max<std::int64_t>(integer_or(row, "tokens", 0), 0);
  if (const double joules = number_or(row, "joules", -1); joules >= 0) account.joules = joules;
  return true;
}

io::Json parts(const train::Account& account) {
  io::Json out = io::Json::object();
  for (std::size_t p = 0; p < train::kParts.size(); ++p) out[std::string(train::kParts[p].key)] = account.seconds[p];
  return out;
}

}  // namespace

train::Account RunGoodput::account() const {
  train::Account all;
  for (const SessionGoodput& s : sessions) {
    for (std::size_t p = 0; p < all.seconds.size(); ++p) all.seconds[p] += s.account.seconds[p];
    all.of(train::Part::standing_still) += s.until_next;
    if (!s.account.joules) continue;
    all.joules = all.joules.value_or(0) + *s.account.joules;
    all.tokens += s.account.tokens;
  }
  return all;
}

RunGoodput read_goodput(FileSystem& files, const Path& path, std::vector<std::string>& problems) {
  RunGoodput run;
  std::vector<std::vector<Row>> rows;  // of each session
  JsonRows(files, path, problems).read_objects([&](const io::Json& row) {
    const double time = number_or(row, "time", -1), began = number_or(row, "began", -1);
    Row read{.step = integer_or(row, "step", -1), .account = {}};
    if (!is_time(time) || !is_time(began) || read.step < 0 || !read_account(row, read.account)) return false;
    if (run.sessions.empty() || run.sessions.back().began != began) {
      run.sessions.push_back({.began = began, .first_step = integer_or(row, "first_step", 0)});
      rows.emplace_back();
    }
    run.sessions.back().ended = time;
    rows.back().push_back(std::move(read));
    return true;
  });
  std::int64_t kept_step = std::numeric_limits<std::int64_t>::max();  // that no later session has made again
  for (std::size_t i = run.sessions.size(); i-- > 0;) {
    SessionGoodput& s = run.sessions[i];
    s.account = rows[i].back().account;
    const auto kept = std::find_if(rows[i].rbegin(), rows[i].rend(), [&](const Row& r) { return r.step <= kept_step; });
    s.account.lose_all_since(kept == rows[i].rend() ? train::Account{} : kept->account);
    if (i + 1 < run.sessions.size()) s.until_next = std::max(0.0, run.sessions[i + 1].began - s.ended);
    kept_step = std::min(kept_step, s.first_step);
  }
  return run;
}

io::Json to_json(const RunGoodput& goodput) {
  io::Json out = io::Json::object(), sessions = io::Json::array();
  if (goodput.sessions.empty()) return out;
  for (const SessionGoodput& s : goodput.sessions)
    sessions.push_back({{"began", s.began},
                        {"first_step", s.first_step},
                        {"seconds", parts(s.account)},
                        {"seconds_until_next", s.until_next}});
  const train::Account all = goodput.account();
  out["goodput"] = {{"share", all.share(train::Part::steps)},
                    {"wall_seconds", all.wall()},
                    {"seconds", parts(all)},
                    {"sessions", std::move(sessions)}};
  if (all.joules) {
    out["energy"] = {{"joules", *all.joules}, {"kwh", *all.joules / 3.6e6}};
    if (const auto each = all.joules_per_token()) out["energy"]["joules_per_token"] = *each;
  }
  return out;
}

}  // namespace redline::report

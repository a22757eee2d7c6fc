// Reads looks one after the other and keeps the middle of each kind.
#include "report/run_norms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "io/json.h"
#include "report/json_rows.h"

namespace redline::report {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t kMostTensors = 20;

// Without the layer.
std::string kind_of(const std::string& name) {
  const std::size_t slash = name.find('/');
  return name.starts_with("layer ") && slash != name.npos ? name.substr(slash + 1) : name;
}

double median(std::vector<double> values) {
  std::erase_if(values, [](double v) { return std::isnan(v); });
  if (values.empty()) return kUnknown;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

// As many digits as can be seen; NaN stays, and JSON writes it as null.
double short_of(double value) { return std::isfinite(value) ? std::stod(fmt::format("{:.4g}", value)) : value; }

class Reading {
 public:
  explicit Reading(RunNorms& norms) : norms_(norms) {}

  bool take(const io::Json& row) {
    const auto tensors = row.find("tensors");
    const std::int64_t step = integer_or(row, "step", -1);
    if (step < 0 || tensors == row.end() || !tensors->is_array()) return false;
    while (!norms_.steps.empty() && norms_.steps.back() >= step) norms_.steps.pop_back();  // as for metrics
    resize();
    norms_.steps.push_back(step);
    resize();
    norms_.last.clear();
    std::map<std::size_t, KindNorms> of_kinds;  // all layers' of this look
    for (const io::Json& t : *tensors) {
      if (!t.is_object() || text_or(t, "name").empty()) continue;
      const LastNorms& seen =
          norms_.last.emplace_back(LastNorms{text_or(t, "name"), number_or(t, "gradient", kUnknown),
                                             number_or(t, "weight", kUnknown), number_or(t, "update", kUnknown)});
      KindNorms& of = of_kinds[index_of(kind_of(seen.name))];
      of.gradient.push_back(seen.gradient);
      of.weight.push_back(seen.weight);
      of.change.push_back(seen.change());
    }
    for (const auto& [kind, of] : of_kinds) {
      norms_.kinds[kind].gradient.back() = median(of.gradient);
      norms_.kinds[kind].weight.back() = median(of.weight);
      norms_.kinds[kind].change.back() = median(of.change);
    }
    return true;
  }

 private:
  std::size_t index_of(const std::string& kind) {
    const auto [it, is_new] = index_.try_emplace(kind, norms_.kinds.size());
    if (is_new) norms_.kinds.push_back({kind, {}, {}, {}});
    if (is_new) resize();
    return it->second;
  }
  void resize() {
    for (KindNorms& of : norms_.kinds)
      for (auto* values : {&of.gradient, &of.weight, &of.change}) values->resize(norms_.steps.size(), kUnknown);
  }

  RunNorms& norms_;
  std::map<std::string, std::size_t> index_;
};

}  // namespace

RunNorms read_norms(FileSystem& files, const Path& path, std::vector<std::string>& problems) {
  RunNorms norms;
  Reading reading(norms);
  JsonRows(files, path, problems).read_objects([&](const io::Json& row) { return reading.take(row); });
  return norms;
}

io::Json norms_json(const RunNorms& norms, std::size_t most, std::vector<std::size_t>& looks) {
  const std::size_t all = norms.steps.size(), shown = std::min(all, most);
  for (std::size_t s = 0; s < shown; ++s) looks.push_back((s + 1) * all / shown - 1);
  const auto at_looks = [&](const std::vector<double>& values) {
    io::Json y = io::Json::array();
    for (const std::size_t look : looks) y.push_back(short_of(values[look]));
    return y;
  };
  io::Json kinds = io::Json::array(), largest = io::Json::array();
  for (const KindNorms& of : norms.kinds)
    kinds.push_back({{"kind", of.kind},
                     {"gradient", at_looks(of.gradient)},
                     {"weight", at_looks(of.weight)},
                     {"change", at_looks(of.change)}});
  std::vector<LastNorms> last = norms.last;
  const auto change = [](const LastNorms& t) { return std::isnan(t.change()) ? -1 : t.change(); };
  std::ranges::stable_sort(last, std::greater(), change);
  for (const LastNorms& t : last) {
    if (largest.size() == kMostTensors) break;
    largest.push_back({{"name", t.name},
                       {"gradient", short_of(t.gradient)},
                       {"weight", short_of(t.weight)},
                       {"update", short_of(t.update)},
                       {"change", short_of(t.change())}});
  }
  return {{"step", norms.steps.back()},
          {"kinds", std::move(kinds)},
          {"largest", std::move(largest)},
          {"left_out", last.size() - std::min(last.size(), kMostTensors)}};
}

}  // namespace redline::report

// Three significant digits, the unit that suits them, and a bound on the length of whatever comes; bars and paragraphs.
#include "report/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string_view>

#include "base/words.h"

namespace redline::report {
namespace {

// Three significant digits.
std::string three_digits(double v) {
  const double size = std::fabs(v);
  if (size < 9.995) return fmt::format("{:.2f}", v);
  if (size < 99.95) return fmt::format("{:.1f}", v);
  if (size < 999.5) return fmt::format("{:.0f}", v);
  return size < 9999.5 ? fmt::format("{:.0f}", v) : fmt::format("{:.2e}", v);
}

// The value in the largest unit that leaves at least one before the point. Whole numbers of the first unit stay whole.
std::string in_units(double v, double step, std::string_view gap, std::span<const std::string_view> units) {
  if (!std::isfinite(v)) return fmt::format("{}{}{}", v, gap, units[0]);
  std::size_t unit = 0;
  for (; unit + 1 < units.size() && std::fabs(v) >= 0.9995 * step; ++unit) v /= step;
  const std::string number = unit == 0 && v == std::floor(v) ? fmt::format("{:.0f}", v) : three_digits(v);
  return units[unit].empty() ? number : fmt::format("{}{}{}", number, gap, units[unit]);
}

}  // namespace

double quantile(std::vector<double> values, double q) {
  std::erase_if(values, [](double v) { return std::isnan(v); });
  if (values.empty()) return kUnknown;
  const auto at = static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  std::ranges::nth_element(values, values.begin() + at);
  return values[static_cast<std::size_t>(at)];
}

std::string bytes(double n) {
  static constexpr std::array<std::string_view, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  return in_units(n, 1024, " ", kUnits);
}

std::string count(double n) {
  static constexpr std::array<std::string_view, 5> kUnits = {"", "k", "M", "B", "T"};
  return in_units(n, 1000, " ", kUnits);
}

std::string count(double n, std::string_view noun) { return count(n) + " " + noun_for(n, noun); }

std::string token_rate(double per_second) {
  static constexpr std::array<std::string_view, 4> kUnits = {" tok/s", "k tok/s", "M tok/s", "B tok/s"};
  return in_units(per_second, 1000, "", kUnits);
}

std::string flop_rate(double per_second) {
  static constexpr std::array<std::string_view, 6> kUnits = {"FLOP/s",  "kFLOP/s", "MFLOP/s",
                                                             "GFLOP/s", "TFLOP/s", "PFLOP/s"};
  return in_units(per_second, 1000, " ", kUnits);
}

std::string flops(double n) {
  static constexpr std::array<std::string_view, 9> kUnits = {"FLOP",  "kFLOP", "MFLOP", "GFLOP", "TFLOP",
                                                             "PFLOP", "EFLOP", "ZFLOP", "YFLOP"};
  return in_units(n, 1000, " ", kUnits);
}

std::string grouped(std::int64_t n, std::string_view noun) { return grouped(n) + " " + noun_for(n, noun); }

std::string grouped(std::int64_t n) {
  std::string digits = fmt::format("{}", n);
  const std::size_t first = n < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds == 0) return "0 s";
  if (seconds < 0.9995) return fmt::format("{:.3g} ms", seconds * 1e3);
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  if (seconds < 59.5) return fmt::format("{:.0f} s", seconds);
  if (seconds > 86400.0 * 9999) return "years";
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{}h {:02}m", whole / 3600, whole / 60 % 60);
  return fmt::format("{}d {:02}h", whole / 86400, whole / 3600 % 24);
}

std::string eta(double seconds, double done, double of) {
  return done > 0 ? ", eta " + duration(seconds * (of - done) / done) : "";
}

std::string time_left(double seconds, double share) {
  return share > 0.01 && seconds > 1 ? ", " + duration(seconds * (1 - share) / share) + " left" : "";
}

// People pay for kilowatt hours; a short run has few.
std::string energy(double joules) {
  const double kwh = joules / 3.6e6;
  if (kwh >= 0.9995e3) return three_digits(kwh * 1e-3) + " MWh";
  return kwh < 0.00995 ? three_digits(kwh * 1e3) + " Wh" : three_digits(kwh) + " kWh";
}

std::string joules(double n) {
  static constexpr std::array<std::string_view, 5> kUnits = {"µJ", "mJ", "J", "kJ", "MJ"};
  return in_units(n * 1e6, 1000, " ", kUnits);
}

std::string percent(double share) { return plain(100 * share, 1) + "%"; }

std::string plain(double value, int decimals) {
  return !std::isfinite(value) || std::fabs(value) < 1e4 ? fmt::format("{:.{}f}", value, decimals)
                                                         : fmt::format("{:.2e}", value);
}

std::string bar(double columns, bool blocks) {
  constexpr std::string_view kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  std::string out;
  if (!blocks) return std::string(static_cast<std::size_t>(std::lround(columns)), '#');
  const auto eighths = static_cast<std::size_t>(std::lround(8 * columns));
  for (std::size_t i = 0; i < eighths / 8; ++i) out += "█";
  return out += kEighths[eighths % 8];
}

std::string bar_of_two(double needed, double rest, bool blocks) {
  const auto until = static_cast<std::size_t>(std::lround(needed));
  const auto all = static_cast<std::size_t>(std::lround(needed + rest));
  std::string out;
  for (std::size_t i = 0; i < all; ++i) out += i < until ? (blocks ? "█" : "#") : (blocks ? "░" : "-");
  return out;
}

std::string paragraph(std::string_view lead, std::string_view words) {
  constexpr std::size_t kColumns = 100;
  std::string out, line(lead);
  for (std::size_t at = 0; at < words.size();) {
    const std::size_t end = std::min(words.find(' ', at), words.size());
    const std::string_view word = words.substr(at, end - at);
    if (line.size() > lead.size() && line.size() + 1 + word.size() > kColumns) {
      out += line + "\n";
      line = std::string(lead.size(), ' ');
    }
    if (!line.empty() && line.back() != ' ') line += ' ';
    line += word;
    at = end + 1;
  }
  return out + line + "\n";
}

}  // namespace redline::report
